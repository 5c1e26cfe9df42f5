// test_program.c - ./train_gpt as a user meets it: the command line, the files it writes, what it says when something
// is wrong, and what is left when it is killed.
#include "program_helpers.h"

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -m 2 -g 16"

// ---------------------------------------------------------------------------------------------------------------
// Command line

// What is said of each flag, test_flags.c knows.
static void test_help(void **state) {
    (void)state;
    char *output = run_command(0, "./train_gpt -h"), *again = run_command(0, "./train_gpt --help");
    assert_string_equal(output, again);
    assert_says(output, "usage: train_gpt ");
    assert_says(output, "--swap-dir ");
    free(output);
    free(again);
}

// A wrong flag, a wrong combination, a file that is not there, ranks that are none: each ends the program as it should.
// What else is wrong with a command line, test_flags.c and test_job.c know.
static void test_wrong_command_lines(void **state) {
    (void)state;
    expect_command(2, "unknown flag --nonsense|usage:", "./train_gpt --nonsense");
    expect_command(2, "not a multiple of B T = 64|usage:", "./train_gpt %s -d 100 --plan", TINY);
    expect_command(2, "not a multiple of B T N = 256|usage:", "./train_gpt %s --plan --ranks 4 -d 128", TINY);
    expect_command(2, "--ranks 2 is for a --plan|usage:", "./train_gpt %s --ranks 2", TINY);
    expect_command(2, "HellaSwag|not built yet|usage:", "./train_gpt %s -h 1", TINY);
    expect_command(1, "no_such_file", "./train_gpt -i no_such_file.bin");
    expect_command(1, "built", "OMPI_COMM_WORLD_SIZE=2 ./train_gpt %s --plan", TINY);  // without MPI, or another one
    expect_command(0, "", "./train_gpt %s -h 0 --plan", TINY);
    expect_command(0, "", "./train_gpt %s --plan --ranks 4 -d 512 -z 3", TINY);
}

// ---------------------------------------------------------------------------------------------------------------
// Files and promises

// steps.csv: one row per attempted step, the loss never empty, numbers with 9 digits that agree with what is printed.
static void test_steps_csv(void **state) {
    (void)state;
    char directory[256], field[64];
    make_directory(directory);
    free(run_command(0, "./train_gpt %s -x 5 -v 2 -o %s", TINY, directory));
    char *csv = read_file(in_directory(directory, "steps.csv"), NULL), *line = csv;
    assert_int_equal(count_lines(csv), 6);
    assert_memory_equal(csv, "step,tokens,train_loss,val_loss,norm,lr,ms,tokens_per_second,mfu,peak_device_bytes,"
                             "peak_host_bytes,skipped,loss_scale,good_steps,sent_bytes,disk_read_bytes,"
                             "disk_written_bytes\n", 173);
    for (int step = 1; step <= 5; step++) {
        line = strchr(line, '\n') + 1;
        assert_int_equal(atoi(csv_field(line, 0, field)), step);
        assert_int_equal(atoi(csv_field(line, 1, field)), step * 64);
        double loss = atof(csv_field(line, 2, field));
        assert_true(loss > 3);
        assert_true(loss < 6);
        assert_true(strlen(field) >= 8);
        assert_int_equal(strlen(csv_field(line, 3, field)) > 0, step % 2 == 0 || step == 5);
        for (int k = 4; k <= 9; k++) assert_true(atof(csv_field(line, k, field)) > 0);
        assert_string_equal(csv_field(line, 11, field), "0");
        assert_string_equal(csv_field(line, 12, field), "1");
    }
    free(csv);
    free(run_command(0, "./train_gpt %s -x 1 -v 0 -o %s", TINY, directory));  // an old run's rows are replaced
    csv = read_file(in_directory(directory, "steps.csv"), NULL);
    assert_int_equal(count_lines(csv), 2);
    free(csv);
    remove_directory(directory);
}

static void test_bad_places(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    write_file(in_directory(directory, "file"), "x", 1);
    expect_command(1, "-o", "./train_gpt %s -x 1 -o %s/file", TINY, directory);
    expect_command(1, "-o", "./train_gpt %s -x 1 -o %s/file/below", TINY, directory);
    expect_command(1, "-o", "./train_gpt %s -x 1 --plan -o /proc/nothing", TINY);
    remove_directory(directory);
}

// The README's command with fewer steps: it learns, samples, and ends with the peak, the saving and a next command.
static void test_readme_command(void **state) {
    (void)state;
    char *output = run_command(0, "./train_gpt -b 8 -r 1 -z 1 -x 5 -m 2");
    const char *words[] = {"parameters",      "-z 1 has nothing to share", "planned, MiB",  "device peak", "step 5/5",
                           "validation loss", "--- sample after step 5",   "measured, MiB", "peak  ",      "saved  ",
                           "next  "};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) assert_says(output, words[i]);
    double first = atof(strstr(strstr(output, "step 1/5"), "loss ") + 5);
    double last = atof(strstr(strstr(output, "step 5/5"), "loss ") + 5);
    assert_true(first > 5);
    assert_true(first < 6.5);
    assert_true(last < first - 0.5);
    // The suggestion is a command that works.
    char *next = strstr(output, "next       ") + strlen("next       ");
    next[strcspn(next, "(")] = 0;
    char *plan = run_command(0, "%s --plan", next);
    assert_says(plan, "device peak");
    free(plan);
    free(output);
}

// The smallest and oddest of everything still trains, validates, samples and saves as planned.
static void test_extreme_shapes(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    const char *lines[] = {"-t 1 -b 1 -e 1x1x1 --vocab 2",
                           "-t 1 -b 3 -e 2x6x3 --vocab 300 -p bf16",
                           "-t 7 -e 3x5x1 --vocab 1",
                           "-t 3 -b 2 -e 1x7x7 --vocab 128 -r 3 --head-chunks 1000000",
                           "-t 2 -g 1 -e 1x16x1 -d 160",
                           "-t 300 -b 1 -e 1x64x1 --attention plain -p bf16",
                           "-t 8 -g 8 -e 1x16x1 --prompt 12345678",
                           "-t 33 -b 1 -e 12x1x1 -r 2 --recompute-layers 100 --max-length 2000"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char *output = run_command(0, "./train_gpt -i random -x 2 -v 1 -m 1 -n 1 -o %s/%zu %s", directory, i, lines[i]);
        assert_says(output, "planned and measured alike");
        free(output);
    }
    char *output = run_command(0, "./train_gpt %s -x 0", TINY);
    assert_says(output, "peak ");
    free(output);
    remove_directory(directory);
}

static void test_prompt_is_printed(void **state) {
    (void)state;
    char *output =
        run_command(0,
                    "./train_gpt -e 1x16x2 -t 32 -i random --vocab 257 -x 1 -v 0 --prompt 'In the beginning' "
                    "--temperature 0");
    assert_says(output, "In the beginning");
    free(output);
}

// Loops over single numbers vectorise only where the number's function is no call: none of those that dev/ marks
// HOST_DEVICE is a symbol of the program. (GCC stops inlining when a program has grown enough, and exponentials became
// six times as slow.)
static void test_scalar_functions_are_inlined(void **state) {
    (void)state;
    char *names = run_command(0, "sed -n 's/^HOST_DEVICE [^(]*[ *]\\([a-z0-9_]*\\)(.*/\\1/p' dev/*.h dev/kernels/*.h | "
                                 "sort -u");
    assert_says(names, "number_exp\n");
    assert_says(names, "gelu_scalar\n");
    assert_true(count_lines(names) > 20);
    char *symbols = run_command(0, "nm train_gpt | sed 's/.* //; s/[.].*//' | sort -u");
    assert_says(symbols, "\nmain\n");
    for (char *name = strtok(names, "\n"); name; name = strtok(NULL, "\n")) {
        char line[128];
        snprintf(line, sizeof(line), "\n%s\n", name);
        if (strstr(symbols, line)) fail_msg("%s is called", name);
    }
    free(names);
    free(symbols);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalar_functions_are_inlined),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_wrong_command_lines),
        cmocka_unit_test(test_steps_csv),
        cmocka_unit_test(test_bad_places),
        cmocka_unit_test(test_readme_command),
        cmocka_unit_test(test_extreme_shapes),
        cmocka_unit_test(test_prompt_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
