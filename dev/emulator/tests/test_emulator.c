// test_emulator.c - the CUDA emulator finds every planted bug and lets its correct twin pass; instructions of each
// family, and products, give what the host computes.
//
// The plants are in plants.cu and ranks.cu, the instructions in families.cu, the products in products.cu, all compiled
// by nvcc. Each runs in a child process of its own, which is where the emulator starts; a bug must end it with the
// message that names it.
#include "test_helpers.h"

#include <signal.h>
#include <sys/mman.h>

#include "emulator.h"
#include "plants.h"

static void run_bug(void *plant) { ((const Plant *)plant)->run(true); }
static void run_twin(void *plant) { ((const Plant *)plant)->run(false); }

static bool is_wrong_result(const Plant *plant) { return strncmp(plant->words, "wrong result", 12) == 0; }

static void test_plant(void **state) {
    const Plant *plant = *state;
    char words[256];
    snprintf(words, sizeof(words), "%s%s", is_wrong_result(plant) ? "" : "emulator: |", plant->words);
    expect_exit(run_bug, (void *)plant, is_wrong_result(plant) ? 2 : 1, words);
    expect_exit(run_twin, (void *)plant, 0, "");
}

static void run_family(void *family) { ((const Family *)family)->run(); }

static void test_family(void **state) { expect_exit(run_family, *state, 0, ""); }

static const Family *family_named(const char *name) {
    for (int i = 0; i < N_FAMILIES; i++) {
        if (strcmp(FAMILIES[i].name, name) == 0) return &FAMILIES[i];
    }
    fail_msg("no family %s", name);
    return NULL;
}

// Races between streams are found in whatever order operations execute, and correct programs pass in all of them.
static void test_stream_orders(void **state) {
    (void)state;
    static const char *const ORDERS[] = {"eager", "laziest", "1", "2", "3"};
    int n_races = 0;
    for (int i = 0; i < N_PLANTS; i++) {
        if (strstr(PLANTS[i].words, "race between streams") == NULL && !is_wrong_result(&PLANTS[i])) continue;
        for (size_t o = 0; o < sizeof(ORDERS) / sizeof(ORDERS[0]); o++) {
            setenv("EMULATOR_STREAMS", ORDERS[o], 1);
            if (!is_wrong_result(&PLANTS[i])) expect_exit(run_bug, (void *)&PLANTS[i], 1, "race between streams");
            expect_exit(run_twin, (void *)&PLANTS[i], 0, "");
            n_races++;
        }
    }
    assert_true(n_races >= 40);
    unsetenv("EMULATOR_STREAMS");
    for (size_t o = 0; o < 2; o++) {
        setenv("EMULATOR_STREAMS", ORDERS[o], 1);
        for (int i = 0; i < N_FAMILIES; i++) {
            if (strcmp(FAMILIES[i].name, "family_runtime") == 0) expect_exit(run_family, (void *)&FAMILIES[i], 0, "");
        }
    }
    for (size_t o = 0; o < sizeof(ORDERS) / sizeof(ORDERS[0]); o++) {
        setenv("EMULATOR_STREAMS", ORDERS[o], 1);
        expect_exit(run_family, (void *)family_named("family_streams"), 0, "");
    }
    setenv("EMULATOR_STREAMS", "sometimes", 1);
    expect_exit(run_twin, (void *)&PLANTS[0], 1, "EMULATOR_STREAMS");
    unsetenv("EMULATOR_STREAMS");
}

static const Plant *plant_named(const char *name) {
    for (int i = 0; i < N_PLANTS; i++) {
        if (strcmp(PLANTS[i].name, name) == 0) return &PLANTS[i];
    }
    fail_msg("no plant %s", name);
    return NULL;
}

static void run_twin_to_the_end(void *plant) {
    run_twin(plant);
    exit(0);  // with destructors, unlike the end of a child
}

static void test_leaks(void **state) {
    (void)state;
    setenv("EMULATOR_LEAKS", "1", 1);
    expect_exit(run_twin_to_the_end, (void *)plant_named("bounds_read"), 0,
                "leak: 'allocation 1', 400 bytes|'allocation 2'");
    unsetenv("EMULATOR_LEAKS");
}

// Which lines of a kernel were executed: the file has each line of each kernel, launched or not.
static void test_coverage(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    const char *path = in_directory(directory, "coverage");
    setenv("EMULATOR_COVERAGE", path, 1);
    expect_exit(run_twin_to_the_end, (void *)plant_named("divergent_barrier"), 0, "");
    expect_exit(run_twin_to_the_end, (void *)plant_named("bounds_read"), 0, "");
    unsetenv("EMULATOR_COVERAGE");
    size_t n;
    char *text = read_file(path, &n);
    assert_non_null(strstr(text, "plants.cu\t"));
    assert_non_null(strstr(text, "\t1\tdivergent_barrier_kernel"));
    assert_non_null(strstr(text, "\t1\tcopy("));
    assert_null(strstr(text, "\t1\ttrap_kernel"));
    assert_non_null(strstr(text, "\t0\ttrap_kernel"));
    free(text);
    expect_command(0, "", "sh dev/emulator/coverage.sh %s plants.cu | grep -q 'plants.cu .*%%'", path);
    remove_directory(directory);
}

static void run_without_checks(void *plant) {
    setenv("EMULATOR_CHECKS", "0", 1);
    run_bug(plant);
}

#ifdef USE_NCCL
// Ranks: found, and right, in every order of their streams.
static void test_rank_orders(void **state) {
    (void)state;
    static const char *const ORDERS[] = {"eager", "1", "2", "3"};
    for (size_t o = 0; o < sizeof(ORDERS) / sizeof(ORDERS[0]); o++) {
        setenv("EMULATOR_STREAMS", ORDERS[o], 1);
        for (int i = 0; i < N_RANK_PLANTS; i++) {
            void *plant = (void *)&RANK_PLANTS[i];
            test_plant(&plant);
        }
        for (int i = 0; i < N_RANK_FAMILIES; i++) expect_exit(run_family, (void *)&RANK_FAMILIES[i], 0, "");
    }
    unsetenv("EMULATOR_STREAMS");
}

static char *segment_name;  // in memory that children share

static void leave_segment(void *kills) {
    ranks_leave_segment(segment_name, 256);
    if (kills) raise(SIGKILL);
    exit(0);
}

static void test_segments(void **state) {
    (void)state;
    segment_name = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char message[256], killed[256];
    assert_int_equal(run_child(leave_segment, segment_name, message, sizeof(message)), 128 + SIGKILL);
    memcpy(killed, segment_name, sizeof(killed));
    assert_int_equal(access(killed, F_OK), 0);
    expect_exit(leave_segment, NULL, 0, "");
    assert_int_not_equal(access(killed, F_OK), 0);
    assert_int_not_equal(access(segment_name, F_OK), 0);
    munmap(segment_name, 4096);
}
#else
// In place of all of them.
static void test_ranks(void **state) {
    (void)state;
    SKIP_AS("NCCL's header is not there");
}
#endif

// Checks can be turned off; what would touch memory of the process stays.
static void test_checks_off(void **state) {
    (void)state;
    expect_exit(run_without_checks, (void *)plant_named("uninitialised"), 0, "");
    expect_exit(run_without_checks, (void *)plant_named("race_halo"), 0, "");
    expect_exit(run_without_checks, (void *)plant_named("host_pointer"), 1, "access to host memory");
    expect_exit(run_without_checks, (void *)plant_named("copy_beyond"), 1, "invalid argument");
}

int main(void) {
    static struct CMUnitTest tests[256];
    size_t n = 0;
    for (int i = 0; i < N_PLANTS; i++) {
        tests[n++] = (struct CMUnitTest){PLANTS[i].name, test_plant, NULL, NULL, (void *)&PLANTS[i]};
    }
    for (int i = 0; i < N_FAMILIES; i++) {
        tests[n++] = (struct CMUnitTest){FAMILIES[i].name, test_family, NULL, NULL, (void *)&FAMILIES[i]};
    }
    tests[n++] = (struct CMUnitTest){PRODUCTS.name, test_family, NULL, NULL, (void *)&PRODUCTS};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_stream_orders);
#ifdef USE_NCCL
    for (int i = 0; i < N_RANK_PLANTS; i++) {
        tests[n++] = (struct CMUnitTest){RANK_PLANTS[i].name, test_plant, NULL, NULL, (void *)&RANK_PLANTS[i]};
    }
    for (int i = 0; i < N_RANK_FAMILIES; i++) {
        tests[n++] = (struct CMUnitTest){RANK_FAMILIES[i].name, test_family, NULL, NULL, (void *)&RANK_FAMILIES[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_rank_orders);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_segments);
#else
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_ranks);
#endif
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_leaks);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_coverage);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_checks_off);
    return _cmocka_run_group_tests("emulator", tests, n, NULL, NULL);
}
