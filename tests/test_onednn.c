// test_onednn.c - the stand-in for oneDNN finds every planted fault and lets its correct twin pass; its products are
// the naive ones; and the trainer runs on it, on whatever processor this is.
//
// The faults are in onednn/plants.c, the products in onednn/products.c. They, and ./train_gpt, are linked with oneDNN
// as usual, and find the stand-in by LD_LIBRARY_PATH.
#include "program_helpers.h"

#include "onednn/plants.h"

#ifndef USE_ONEDNN
#define USE_ONEDNN 0
#endif

#define STANDIN "LD_LIBRARY_PATH=build/onednn"
#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -m 2 -g 16"

typedef struct {
    const char *name, *words;
} Plant;

#define PLANT_ROW(name, words) {#name, words},
static Plant plants[] = {PLANTS(PLANT_ROW)};
enum { N_PLANTS = sizeof(plants) / sizeof(plants[0]) };

static void skip_without_library(void) {
    if (USE_ONEDNN && access("build/onednn/plants", X_OK) == 0) return;
    SKIP_AS("oneDNN is not there, so nothing can stand in for it");
}

// The number behind a word in a line of words and numbers.
static long number_after(const char *text, const char *word) {
    const char *at = strstr(text, word);
    if (!at) fail_msg("'%s' is not in: %s", word, text);
    return atol(at + strlen(word));
}

// ---------------------------------------------------------------------------------------------------------------
// Faults

static void test_plant(void **state) {
    const Plant *plant = *state;
    skip_without_library();
    const bool silent = strcmp(plant->words, "wrong result") == 0;
    char words[256];
    snprintf(words, sizeof(words), "%s%s", silent ? "" : "onednn stand-in: |", plant->words);
    expect_command(silent ? 2 : 86, words, STANDIN " OMP_NUM_THREADS=2 build/onednn/plants %s wrong", plant->name);
    // The twin destroys what it has created.
    expect_command(0, "", STANDIN " OMP_NUM_THREADS=2 ONEDNN_STANDIN_LEAKS=1 build/onednn/plants %s right",
                   plant->name);
}

// Also where all else is skipped.
static void test_plants_are_named_once(void **state) {
    (void)state;
    for (int i = 0; i < N_PLANTS; i++) {
        for (int j = 0; j < i; j++) assert_string_not_equal(plants[i].name, plants[j].name);
    }
}

static void test_what_is_not_destroyed(void **state) {
    (void)state;
    skip_without_library();
    expect_command(86, "post-operations was never destroyed",
                   STANDIN " ONEDNN_STANDIN_LEAKS=1 build/onednn/plants leak");
    expect_command(0, "", STANDIN " ONEDNN_STANDIN_LEAKS=1 build/onednn/plants nothing");
    expect_command(0, "", STANDIN " build/onednn/plants leak");
}

// Fewer threads than were promised spoil the result, and say so only if that is asked for.
static void test_small_teams(void **state) {
    (void)state;
    skip_without_library();
    expect_command(86, "onednn stand-in: a product for 3 threads was executed by a team of 1",
                   STANDIN " OMP_NUM_THREADS=3 ONEDNN_STANDIN_STRICT=1 build/onednn/plants small_team wrong");
    expect_command(0, "", STANDIN " OMP_NUM_THREADS=3 ONEDNN_STANDIN_STRICT=1 build/onednn/plants small_team right");
    expect_command(86, "a product for 3 threads was executed by a team of 2",
                   STANDIN
                   " OMP_NUM_THREADS=3 OMP_THREAD_LIMIT=2 ONEDNN_STANDIN_STRICT=1 build/onednn/plants "
                   "small_team right");
    expect_command(2, "wrong result",
                   STANDIN " OMP_NUM_THREADS=3 OMP_THREAD_LIMIT=2 build/onednn/plants small_team right");
    expect_command(0, "", STANDIN " OMP_NUM_THREADS=2 OMP_THREAD_LIMIT=2 build/onednn/plants small_team right");
}

static void test_settings(void **state) {
    (void)state;
    skip_without_library();
    expect_command(86, "ONEDNN_STANDIN_ISA|'sse'", STANDIN " ONEDNN_STANDIN_ISA=sse build/onednn/plants nothing");
    expect_command(86, "ONEDNN_STANDIN_SEED|'1x'", STANDIN " ONEDNN_STANDIN_SEED=1x build/onednn/plants nothing");
}

static void test_execution_allocates_nothing(void **state) {
    (void)state;
    skip_without_library();
    char *output = run_command(0, STANDIN " build/onednn/plants allocations");
    assert_string_equal(output, "allocations 0\n");
    free(output);
}

// ---------------------------------------------------------------------------------------------------------------
// What the library claims to have

// What is set, and the answer: what is claimed, and whether there is brgemm for fp32 and bf16.
static const char *const ISAS[][2] = {
    {"", "isa e7 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=avx2", "isa 7 fp32 other bf16 unimplemented"},
    {"ONEDNN_STANDIN_ISA=avx512", "isa 27 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=bf16", "isa e7 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=amx", "isa 3e7 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=amx DNNL_MAX_CPU_ISA=AVX512_CORE_BF16", "isa e7 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=amx DNNL_MAX_CPU_ISA=avx512_core", "isa 27 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=amx ONEDNN_MAX_CPU_ISA=AVX2", "isa 7 fp32 other bf16 unimplemented"},
    {"ONEDNN_STANDIN_ISA=avx512 DNNL_MAX_CPU_ISA=AVX512_CORE_BF16", "isa 27 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_STANDIN_ISA=avx2 DNNL_MAX_CPU_ISA=AVX512_CORE", "isa 7 fp32 other bf16 unimplemented"},
    {"ONEDNN_MAX_CPU_ISA=AVX512_CORE DNNL_MAX_CPU_ISA=AVX2", "isa 27 fp32 brgemm bf16 brgemm"},
    {"ONEDNN_MAX_CPU_ISA= DNNL_MAX_CPU_ISA=AVX2", "isa 7 fp32 other bf16 unimplemented"},
    {"DNNL_MAX_CPU_ISA=anything", "isa e7 fp32 brgemm bf16 brgemm"},
};

static void test_isa(void **state) {
    (void)state;
    skip_without_library();
    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        char *output = run_command(0,
                                   "env -u DNNL_MAX_CPU_ISA -u ONEDNN_MAX_CPU_ISA -u ONEDNN_STANDIN_ISA " STANDIN
                                   " %s build/onednn/plants isa",
                                   ISAS[i][0]);
        assert_says(output, ISAS[i][1]);
        assert_says(output, "fp16 unimplemented fp32 to bf16 unimplemented");
        free(output);
    }
}

// Every attribute changes the scratchpad of nearly every shape; the sum form needs more, or less.
static void test_scratchpad_sizes(void **state) {
    (void)state;
    skip_without_library();
    static const char *const ATTRIBUTES[] = {
        "M ", "N ", "K ", "\ntype ", "c_dtype ", "a_transposed ", "b_transposed ", "bias ", "sum ", "threads "};
    char *first = NULL;
    for (int seed = 1; seed <= 3; seed++) {
        char *output = run_command(0, STANDIN " ONEDNN_STANDIN_SEED=%d build/onednn/plants sizes", seed);
        for (size_t i = 0; i < sizeof(ATTRIBUTES) / sizeof(ATTRIBUTES[0]); i++) {
            assert_in_range(number_after(output, ATTRIBUTES[i]), 180, 200);
        }
        assert_true(number_after(output, "larger ") > 60);
        assert_true(number_after(output, "smaller ") > 60);
        assert_in_range(number_after(output, "empty "), 100, 500);  // one in eight of 2000
        assert_int_equal(number_after(output, "round "), 0);
        assert_in_range(number_after(output, "large "), 1, 500);
        if (first) assert_true(strcmp(first, output) != 0);
        else first = strdup(output);
        free(output);
    }
    free(first);
}

// Of 4000 shapes one in eight lacks brgemm, in one form or in both, from seed 100 on.
static void test_missing_forms(void **state) {
    (void)state;
    skip_without_library();
    char *output = run_command(0, STANDIN " ONEDNN_STANDIN_SEED=99 build/onednn/plants forms");
    assert_string_equal(output, "plain 0 sum 0 both 0 nothing 0\n");
    free(output);
    output = run_command(0, STANDIN " ONEDNN_STANDIN_SEED=100 build/onednn/plants forms");
    assert_in_range(number_after(output, "plain "), 120, 220);
    assert_in_range(number_after(output, "sum "), 120, 220);
    assert_in_range(number_after(output, "both "), 120, 220);
    assert_in_range(number_after(output, "nothing "), 240, 440);
    free(output);
}

// ---------------------------------------------------------------------------------------------------------------
// Products

static void test_products(void **state) {
    (void)state;
    skip_without_library();
    static const char *const ENVIRONMENTS[] = {"OMP_NUM_THREADS=2", "OMP_NUM_THREADS=3 ONEDNN_STANDIN_SEED=2",
                                               "OMP_NUM_THREADS=1 ONEDNN_STANDIN_SEED=101 ONEDNN_STANDIN_ISA=amx",
                                               "OMP_NUM_THREADS=2 ONEDNN_STANDIN_ISA=avx512"};
    for (size_t i = 0; i < sizeof(ENVIRONMENTS) / sizeof(ENVIRONMENTS[0]); i++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            char *output = run_command(0,
                                       STANDIN
                                       " ONEDNN_STANDIN_LEAKS=1 ONEDNN_STANDIN_STRICT=1 %s "
                                       "build/onednn/products %s",
                                       ENVIRONMENTS[i], bf16 ? "bf16" : "fp32");
            assert_says(output, bf16 ? "480 products, 0 wrong" : "240 products, 0 wrong");
            free(output);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The trainer

// Runs the trainer on the stand-in; returns the line of the report.
static char *run_trainer(const char *directory, const char *environment, const char *arguments) {
    const char *report = in_directory(directory, "report");
    unlink(report);
    free(run_command(0,
                     STANDIN
                     " ONEDNN_STANDIN_LEAKS=1 ONEDNN_STANDIN_STRICT=1 ONEDNN_STANDIN_REPORT=%s %s ./train_gpt " TINY
                     " -x 2 -n 2 -v 0 %s -o %s/out",
                     report, environment, arguments, directory));
    return read_file(report, NULL);
}

// The path is taken in the types that the processor is said to multiply, and in no other.
static void test_trainer_takes_the_path(void **state) {
    (void)state;
    skip_without_library();
    static const struct {
        const char *isa, *dtype;
        bool fp32, bf16;
    } RUNS[] = {{"avx2", "fp32", false, false},   {"avx2", "bf16", false, false}, {"avx512", "fp32", true, false},
                {"avx512", "bf16", false, false}, {"bf16", "fp32", true, false},  {"bf16", "bf16", false, true},
                {"amx", "bf16", false, true},     {"bf16", "fp16", false, false}};
    char directory[256], environment[64], arguments[64];
    make_directory(directory);
    for (size_t i = 0; i < sizeof(RUNS) / sizeof(RUNS[0]); i++) {
        snprintf(environment, sizeof(environment), "ONEDNN_STANDIN_ISA=%s", RUNS[i].isa);
        snprintf(arguments, sizeof(arguments), "-p %s", RUNS[i].dtype);
        char *report = run_trainer(directory, environment, arguments);
        const bool any = RUNS[i].fp32 || RUNS[i].bf16;
        assert_int_equal(number_after(report, "primitives ") > 0, any);
        assert_int_equal(number_after(report, "executions ") > 50, any);
        assert_int_equal(number_after(report, "fp32 ") > 50, RUNS[i].fp32);
        assert_int_equal(number_after(report, "bf16 ") > 50, RUNS[i].bf16);
        assert_int_equal(number_after(report, "sum "), 0);
        assert_int_equal(number_after(report, "short "), 0);
        free(report);
        // Three micro-batches in two steps: the gradients of 9 products of the second and the third are added.
        snprintf(arguments, sizeof(arguments), "-p %s -d 192", RUNS[i].dtype);
        report = run_trainer(directory, environment, arguments);
        assert_int_equal(number_after(report, "sum ") >= 36, any);
        assert_int_equal(number_after(report, "short "), 0);
        free(report);
    }
    remove_directory(directory);
}

// The stand-in adds in the order in which the trainer's own tiles do: the same checkpoint, with other scratchpads,
// another number of threads, and products of which the library has only one form, or none. With accumulation, too.
static void test_trainer_gets_the_bits_of_own_tiles(void **state) {
    (void)state;
    skip_without_library();
    static const char *const ENVIRONMENTS[] = {"ONEDNN_STANDIN_ISA=avx2", "ONEDNN_STANDIN_SEED=1",
                                               "ONEDNN_STANDIN_SEED=7 OMP_NUM_THREADS=3",
                                               "ONEDNN_STANDIN_SEED=100 ONEDNN_STANDIN_ISA=amx",
                                               "ONEDNN_STANDIN_SEED=103", "ONEDNN_STANDIN_SEED=112"};
    static const char *const FLAGS[] = {"-p fp32", "-p bf16", "-p fp32 -d 192", "-p bf16 -d 256 --head-chunks 3 -r 3"};
    char directory[256];
    make_directory(directory);
    for (size_t f = 0; f < sizeof(FLAGS) / sizeof(FLAGS[0]); f++) {
        char *first = NULL;
        size_t n_first = 0, n;
        for (size_t i = 0; i < sizeof(ENVIRONMENTS) / sizeof(ENVIRONMENTS[0]); i++) {
            free(run_trainer(directory, ENVIRONMENTS[i], FLAGS[f]));
            char *checkpoint = read_file(in_directory(directory, "out/checkpoint_00000002.bin"), &n);
            if (first) {
                assert_int_equal(n, n_first);
                assert_memory_equal(checkpoint, first, n);
                free(checkpoint);
            } else {
                first = checkpoint;
                n_first = n;
            }
        }
        free(first);
    }
    remove_directory(directory);
}

static void test_trainer_allocates_nothing(void **state) {
    (void)state;
    skip_without_library();
    char directory[256];
    make_directory(directory);
    char *output = run_command(0,
                               STANDIN " INTERPOSE_REPORT=%s/report LD_PRELOAD=build/interpose.so ./train_gpt " TINY
                                       " -x 4 -n 2 -v 2 -s 2 -p bf16 -o %s/out",
                               directory, directory);
    assert_memory_stayed(output, in_directory(directory, "report"));
    free(output);
    remove_directory(directory);
}

int main(void) {
    static const char *const variables[] = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC",
                                            "OMP_MAX_ACTIVE_LEVELS", "DNNL_MAX_CPU_ISA",
                                            "ONEDNN_MAX_CPU_ISA", "ONEDNN_STANDIN_ISA",
                                            "ONEDNN_STANDIN_SEED", "ONEDNN_STANDIN_STRICT", "ONEDNN_STANDIN_LEAKS"};
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) unsetenv(variables[i]);
    enum { OTHERS = 12 };
    static struct CMUnitTest tests[N_PLANTS + OTHERS];
    const struct CMUnitTest others[OTHERS] = {
        cmocka_unit_test(test_plants_are_named_once),
        cmocka_unit_test(test_what_is_not_destroyed),
        cmocka_unit_test(test_small_teams),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_execution_allocates_nothing),
        cmocka_unit_test(test_isa),
        cmocka_unit_test(test_scratchpad_sizes),
        cmocka_unit_test(test_missing_forms),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_trainer_takes_the_path),
        cmocka_unit_test(test_trainer_gets_the_bits_of_own_tiles),
        cmocka_unit_test(test_trainer_allocates_nothing),
    };
    for (int i = 0; i < N_PLANTS; i++) {
        tests[i] = (struct CMUnitTest){plants[i].name, test_plant, NULL, NULL, &plants[i]};
    }
    memcpy(tests + N_PLANTS, others, sizeof(others));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
