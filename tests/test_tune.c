// test_tune.c - tune.h, compiled by nvcc for the emulator: what is timed is written, what is written is taken as it is,
// and what can't be used is refused. (How long a product takes there says nothing; which choice is made is not tested.)
//
// Everything on the device is done in child processes.
#include "test_helpers.h"

#include "../dev/devices.h"
#include "../dev/tune.h"

static char directory[256], path[300];

static int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    snprintf(path, sizeof(path), "%s/tuned", directory);
    return 0;
}

static int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

// Of how many products a run is, and what it must find.
typedef struct {
    int n_products;
    const char *says;  // on stdout
    int choice;        // of the first, or -1
    bool tuned;        // the hash must not be 0
} Tuning;

// 48 x 64 x 96 with transposed weights in bf16; the same added to fp32; and one more. For these the emulated library
// has two algorithms.
static MatmulShape shape_of(int i) {
    MatmulShape shape = matmul_shape(BF16, i == 1 ? FP32 : BF16, 48, 64, 96);
    shape.b_transposed = true;
    shape.alignment = 16;
    if (i == 1) shape.add = true;
    if (i == 2) shape.K = 160;
    return shape;
}

static void tune_products(const Tuning *tuning) {
    Device device;
    Memory memory;
    Ledger plan;
    Ranks ranks;
    double given = 0;
    ranks_open_plan(&ranks, 1);
    device_open(&device, "cuda", &given, &ranks);
    for (int i = 0; i < tuning->n_products; i++) {
        const MatmulShape shape = shape_of(i);
        matmul_find(&device, &shape);
    }
    assert_true((int)device.matmul->n_entries == tuning->n_products);
    matmul_create(&device);
    memset(&plan, 0, sizeof(plan));
    plan.phases[PHASE_SETUP].peak[TIER_DEVICE] = 16 << 20;
    memory_reserve(&memory, &device, &plan, ".", 0);
    assert_true(tune_hash(&device) == 0);
    tune_cuda(&device, &memory, path);
    assert_true(memory_slab_used(&memory.slabs[TIER_DEVICE]) == 0);
    if (tuning->choice >= 0) assert_true(device.matmul->entries[0].cuda.choice == tuning->choice);
    if (tuning->tuned) assert_true(tune_hash(&device) != 0);
    memory_close(&memory);
    device_close(&device);
}

static void tune(void *argument) {
    const Tuning *tuning = (const Tuning *)argument;
    dup2(STDERR_FILENO, STDOUT_FILENO);
    tune_products(tuning);
    fflush(stdout);
}

static void expect_tuned(int n_products, const char *says, int choice, bool tuned) {
    Tuning tuning = {n_products, says, choice, tuned};
    expect_exit(tune, &tuning, 0, says);
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// The numbers of a line.
static int numbers_of(const char *line, long long *numbers) {
    int n = 0;
    for (char *end; n < 32; n++, line = end) {
        numbers[n] = strtoll(line, &end, 10);
        if (end == line || *end == '\0') return n;
        if (*end == '\n') return n + 1;
    }
    return n;
}

// A line for each product, in which everything is that the choice depends on: another run takes it, times what is new,
// and adds that.
static void test_what_is_timed_is_written(void **state) {
    (void)state;
    long long numbers[32];
    expect_tuned(2, "2 products timed, the rest from ", -1, false);
    char *first = read_file(path, NULL);
    assert_int_equal(count_lines(first), 2);
    const char *line = first;
    for (int i = 0; i < 2; i++, line = strchr(line, '\n') + 1) {
        // version, capability, M, N, K, A transposed, B transposed, types of A and C, bias, add, alignment, choice
        const long long right[] = {0, 80, 48, 64, 96, 0, 1, BF16, i ? FP32 : BF16, 0, i, 16};
        assert_int_equal(numbers_of(line, numbers), 13);
        assert_true(numbers[0] > 0);
        for (int k = 1; k < 12; k++) assert_int_equal(numbers[k], right[k]);
        assert_in_range(numbers[12], 0, MATMUL_CANDIDATES - 1);
    }
    expect_tuned(2, "0 products timed, the rest from ", -1, false);
    char *again = read_file(path, NULL);
    assert_string_equal(again, first);
    free(again);
    expect_tuned(3, "1 products timed, the rest from ", -1, false);
    again = read_file(path, NULL);
    assert_int_equal(count_lines(again), 3);
    assert_memory_equal(again, first, strlen(first));
    free(again);
    free(first);
}

// Writes one line for the first product, of a version and a choice that are so much larger.
static void write_choice(long long version, long long capability, long long choice) {
    char text[256];
    unlink(path);
    expect_tuned(1, "1 products timed", -1, false);
    long long numbers[32];
    char *line = read_file(path, NULL);
    assert_int_equal(numbers_of(line, numbers), 13);
    free(line);
    const int n = snprintf(text, sizeof(text), "%lld %lld 48 64 96 0 1 1 1 0 0 16 %lld\n", numbers[0] + version,
                           capability, choice);
    write_file(path, text, (size_t)n);
}

static void test_what_is_written_is_taken(void **state) {
    (void)state;
    write_choice(0, 80, 0);
    expect_tuned(1, "0 products timed", 0, false);
    write_choice(0, 80, 1);
    expect_tuned(1, "0 products timed", 1, true);
    // Another version of the library, and another kind of GPU: those lines are for other runs, and stay.
    write_choice(1, 80, 1);
    expect_tuned(1, "1 products timed", -1, false);
    char *text = read_file(path, NULL);
    assert_int_equal(count_lines(text), 2);
    free(text);
    write_choice(0, 90, 1);
    expect_tuned(1, "1 products timed", -1, false);
}

static void test_what_can_not_be_used_is_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"1 2 3\n",
                                        "\n",
                                        "1 80 48 64 96 0 1 1 1 0 0 16\n",
                                        "1 80 48 64 96 0 1 1 1 0 0 16 -1\n",
                                        "1 80 48 64 96 0 1 1 1 0 0 16 8\n",
                                        "x 80 48 64 96 0 1 1 1 0 0 16 0\n"};
    Tuning tuning = {1, "", -1, false};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_file(path, wrong[i], strlen(wrong[i]));
        expect_die(tune, &tuning, "tuned, line 1: not a line that --tune writes|Remove the file");
    }
    char before[300];
    snprintf(before, sizeof(before), "%s", path);
    snprintf(path, sizeof(path), "%s/none/tuned", directory);
    expect_die(tune, &tuning, "none/tuned: No such file|Choose a path that can be written");
    snprintf(path, sizeof(path), "%s", before);
    // The library has fewer algorithms than the file's number says.
    write_choice(0, 80, MATMUL_CANDIDATES - 1);
    expect_die(tune, &tuning, "names an algorithm that the library does not have|Remove the file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_timed_is_written),
        cmocka_unit_test(test_what_is_written_is_taken),
        cmocka_unit_test(test_what_can_not_be_used_is_refused),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
