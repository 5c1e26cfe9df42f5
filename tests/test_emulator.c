// test_emulator.c - the CUDA emulator finds every planted bug and lets its correct twin pass; instructions of each
// family give what the host computes.
//
// The plants are in emulator/plants.cu, the instructions in emulator/families.cu, both compiled by nvcc. Each runs in
// a child process of its own, which is where the emulator starts; a bug must end it with the message that names it.
#include "test_helpers.h"

#include "emulator/plants.h"

static void run_bug(void *plant) { ((const Plant *)plant)->run(true); }
static void run_twin(void *plant) { ((const Plant *)plant)->run(false); }

static void test_plant(void **state) {
    const Plant *plant = *state;
    bool is_wrong_result = strncmp(plant->words, "wrong result", 12) == 0;  // found by the program itself
    char words[256];
    snprintf(words, sizeof(words), "%s%s", is_wrong_result ? "" : "emulator: |", plant->words);
    expect_exit(run_bug, (void *)plant, is_wrong_result ? 2 : 1, words);
    expect_exit(run_twin, (void *)plant, 0, "");
}

static void run_family(void *family) { ((const Family *)family)->run(); }

static void test_family(void **state) { expect_exit(run_family, *state, 0, ""); }

int main(void) {
    struct CMUnitTest tests[256];
    size_t n = 0;
    for (int i = 0; i < N_PLANTS; i++) {
        tests[n++] = (struct CMUnitTest){PLANTS[i].name, test_plant, NULL, NULL, (void *)&PLANTS[i]};
    }
    for (int i = 0; i < N_FAMILIES; i++) {
        tests[n++] = (struct CMUnitTest){FAMILIES[i].name, test_family, NULL, NULL, (void *)&FAMILIES[i]};
    }
    return _cmocka_run_group_tests("emulator", tests, n, NULL, NULL);
}
