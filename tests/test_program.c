// test_program.c - ./train_gpt as a user meets it: the command line, the files it writes, what it says when something
// is wrong, and what is left when it is killed.
#include "program_helpers.h"

#include "../dev/flags.h"
#include "../dev/schedule.h"

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -m 2 -g 16"

// ---------------------------------------------------------------------------------------------------------------
// Command line

static void test_help_names_every_flag(void **state) {
    (void)state;
    char *output = run_command(0, "./train_gpt -h"), *again = run_command(0, "./train_gpt --help");
    assert_string_equal(output, again);
    for (int i = 0; i < N_FLAGS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "--%s ", FLAGS[i].name);
        assert_says(output, name);
        assert_true(strlen(FLAGS[i].help) > 10);
        for (int j = 0; j < i; j++) {
            assert_true(!FLAGS[i].letter || FLAGS[i].letter != FLAGS[j].letter);
            assert_true(strcmp(FLAGS[i].name, FLAGS[j].name) != 0);
        }
    }
    free(output);
    free(again);
}

// Every flag refuses what is not of its kind, out of its range, or missing: exit 2 and a usage line.
static void test_every_flag_refuses_bad_values(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < N_FLAGS; i++) {
        const Flag *f = &FLAGS[i];
        if (f->kind == FLAG_SWITCH) {
            expect_command(2, "usage:", "./train_gpt --%s=1", f->name);
            continue;
        }
        expect_command(2, "usage:|needs a value", "./train_gpt --%s", f->name);
        if (f->letter && f->letter != 'h') expect_command(2, "usage:", "./train_gpt -%c", f->letter);
        if (f->kind == FLAG_TEXT) {
            expect_command(2, "usage:", "./train_gpt --%s ''", f->name);
            continue;
        }
        const char *bad[] = {"x", "1x", "", "nan", "--"};
        for (size_t j = 0; j < sizeof(bad) / sizeof(bad[0]); j++, n++) {
            expect_command(2, "usage:", "./train_gpt --plan --%s '%s'", f->name, bad[j]);
        }
        if (f->kind == FLAG_CHOICE) continue;
        expect_command(2, "usage:", "./train_gpt --plan --%s=%.17g", f->name, f->low - 1);
        expect_command(2, "usage:", "./train_gpt --plan --%s=%.17g", f->name, f->high * 2 + 1);
        if (f->kind == FLAG_INTEGER) expect_command(2, "usage:", "./train_gpt --plan --%s=1.5", f->name);
    }
    assert_true(n > 100);
}

static void test_wrong_combinations(void **state) {
    (void)state;
    expect_command(2, "unknown flag --nonsense|usage:", "./train_gpt --nonsense");
    expect_command(2, "unknown flag -b8|usage:", "./train_gpt -b8");
    expect_command(2, "unknown flag word|usage:", "./train_gpt word");
    expect_command(2, "not a multiple of B T = 64|usage:", "./train_gpt %s -d 100 --plan", TINY);
    expect_command(2, "-e 2x48x5|usage:", "./train_gpt -e 2x48x5 -i random --plan");
    expect_command(2, "-e d13|usage:", "./train_gpt -e d13 -i random --plan");
    expect_command(2, "-n needs -o|usage:", "./train_gpt %s -n 5", TINY);
    expect_command(2, "-y 1 needs -o|usage:", "./train_gpt %s -y 1", TINY);
    expect_command(2, "longer than -t|usage:", "./train_gpt %s -g 33", TINY);
    expect_command(2, "HellaSwag|not built yet|usage:", "./train_gpt %s -h 1", TINY);
    expect_command(0, "", "./train_gpt %s -h 0 --plan", TINY);
    expect_command(1, "no model|nothing_here", "./train_gpt -e nothing_here -i random --plan");
    expect_command(1, "positions|--max-length", "./train_gpt %s --max-length 31 --plan", TINY);
    expect_command(1, "built", "OMPI_COMM_WORLD_SIZE=2 ./train_gpt %s --plan", TINY);  // without MPI, or another one
    expect_command(1, "no_such_file", "./train_gpt -i no_such_file.bin");
    expect_command(1, "prompt has 5 tokens", "./train_gpt -e 1x16x2 -t 8 -i random -g 4 --prompt 12345");
}

static void test_flags_are_parsed(void **state) {
    (void)state;
    const char *words[] = {"train_gpt", "-b", "3", "--length=77", "-l", "5e-4", "--device-memory", "1.5GiB", "-e", "d6",
                           "--attention", "plain", "-q", "0", "--device=plan"};
    Options o;
    flags_parse(&o, (int)(sizeof(words) / sizeof(words[0])), (char **)(uintptr_t)words);
    assert_true(o.B == 3 && o.T == 77 && o.lr == 5e-4 && o.device_memory == 1.5 * 1073741824.0 && o.plan);
    assert_true(strcmp(o.model, "d6") == 0 && o.model_given && strcmp(o.attention, "plain") == 0);
    assert_true(o.final_fraction == 0 && o.recompute == 0 && o.clip == 1 && o.head_chunks == 1 && o.seed == 1337);
    double bytes;
    assert_true(flags_parse_size("512MiB", &bytes) && bytes == 512.0 * 1048576);
    assert_true(flags_parse_size("2K", &bytes) && bytes == 2048);
    assert_true(flags_parse_size("300000", &bytes) && bytes == 300000);
    assert_true(flags_parse_size("7B", &bytes) && bytes == 7);
    assert_false(flags_parse_size("2GiBx", &bytes) || flags_parse_size("G", &bytes) || flags_parse_size("-1K", &bytes));
}

static void test_schedules(void **state) {
    (void)state;
    Schedule s = {"cosine", 2.0, 0.1, 10, 110};
    assert_true(schedule_lr(&s, 0) == 0.2 && schedule_lr(&s, 9) == 2.0 && schedule_lr(&s, 10) == 2.0);
    assert_true(fabs(schedule_lr(&s, 60) - 1.1) < 1e-12 && fabs(schedule_lr(&s, 110) - 0.2) < 1e-12);
    assert_true(schedule_lr(&s, 1000) == schedule_lr(&s, 110));
    s.kind = "linear";
    assert_true(fabs(schedule_lr(&s, 35) - (0.2 + 0.75 * 1.8)) < 1e-12 && fabs(schedule_lr(&s, 110) - 0.2) < 1e-12);
    s.kind = "constant";
    assert_true(schedule_lr(&s, 4) == 1.0 && schedule_lr(&s, 109) == 2.0);
    s.kind = "wsd";
    assert_true(schedule_lr(&s, 87) == 2.0 && schedule_lr(&s, 88) == 2.0 && fabs(schedule_lr(&s, 99) - 1.1) < 1e-12);
    for (int64_t t = 10; t < 110; t++) assert_true(schedule_lr(&s, t + 1) <= schedule_lr(&s, t));
    s.warmup = 0;
    assert_true(schedule_lr(&s, 0) == 2.0);
}

// ---------------------------------------------------------------------------------------------------------------
// Files and promises

static const char *phase_of(const char *line, char *field) { return csv_field(line, 1, field); }

enum { KINDS_IN_CSV = 12 };

// memory.csv: planned by --plan = planned by the run = measured; rows add up; a fixed order.
static void test_plan_and_run_write_the_same_memory(void **state) {
    (void)state;
    char directory[256], field[64];
    make_directory(directory);
    const char *lines[] = {"-r 0", "-r 3 --head-chunks 4 -d 192 -p bf16",
                           "-r 2 --attention plain --recompute-layers 1"};
    for (int i = 0; i < 3; i++) {
        free(run_command(0, "./train_gpt %s %s --plan -o %s/plan%d", TINY, lines[i], directory, i));
        free(run_command(0, "./train_gpt %s %s -x 2 -n 1 -o %s/run%d", TINY, lines[i], directory, i));
        char *plan = read_file(in_directory(directory, "plan%d/memory.csv", i), NULL);
        char *run = read_file(in_directory(directory, "run%d/memory.csv", i), NULL), *p = plan, *r = run;
        assert_int_equal(access(in_directory(directory, "plan%d/steps.csv", i), F_OK), -1);
        assert_int_equal(count_lines(plan), 1 + 8 * 3 * KINDS_IN_CSV);
        assert_int_equal(count_lines(run), count_lines(plan));
        assert_memory_equal(plan, "rank,phase,tier,kind,planned_bytes,measured_bytes\n", 50);
        const char *order[] = {"setup", "forward", "head", "backward", "update", "validation", "sample", "save"};
        for (int line = 0; line < 8 * 3 * KINDS_IN_CSV; line++) {
            p = strchr(p, '\n') + 1;
            r = strchr(r, '\n') + 1;
            size_t common = strcspn(p, "\n");
            assert_memory_equal(p, r, common);  // up to the empty column of the plan
            assert_true(p[common - 1] == ',');
            char planned[64];
            csv_field(r, 4, planned);
            assert_string_equal(planned, csv_field(r, 5, field));
            assert_string_equal(phase_of(r, field), order[line / (3 * KINDS_IN_CSV)]);
        }
        free(plan);
        free(run);
    }
    remove_directory(directory);
}

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
        assert_true(loss > 3 && loss < 6 && strlen(field) >= 8);
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

// A budget that is too small: refused with the numbers and flags that fit, and those do fit. --plan says so, exit 0.
static void test_too_small_a_budget(void **state) {
    (void)state;
    const char *big = "-e d4 -t 256 -b 8 -i random --vocab 257 -p fp32 -g 0 -v 0";
    char *plan = run_command(0, "./train_gpt %s --plan --device-memory 150MiB --headroom 0", big);
    assert_says(plan, "does not fit: the plan needs ");
    assert_says(plan, "157286400 bytes (150.0 MiB) are usable (0 % headroom)");
    char *refused = run_command(1, "./train_gpt %s --device-memory 150MiB --headroom 0", big);
    assert_says(refused, "does not fit");
    char *would = strstr(refused, "This would fit: ");
    assert_non_null(would);
    would += strlen("This would fit: ");
    would[strcspn(would, "\n")] = 0;
    char *fits = run_command(
        0, "./train_gpt -e d4 -i random --vocab 257 -p fp32 -g 0 -v 0 %s -x 1 --device-memory 150MiB --headroom 0",
        would);
    assert_says(fits, "fits: ");
    // Exactly what the plan needs is enough, one byte less is not.
    size_t needed = strtoull(strstr(plan, "the plan needs ") + strlen("the plan needs "), NULL, 10);
    free(run_command(0, "./train_gpt %s -x 1 --device-memory %zu --headroom 0", big, needed));
    free(run_command(1, "./train_gpt %s -x 1 --device-memory %zu --headroom 0", big, needed - 1));
    free(run_command(1, "./train_gpt %s -x 1 --device-memory %zu --headroom 1", big, needed));
    expect_command(1, "No flags make it fit: the least is", "./train_gpt %s --device-memory 10MiB", big);
    free(plan);
    free(refused);
    free(fits);
}

// After the first step the program allocates nothing and nobody allocates 64 KiB or more; RssAnon stays flat.
static void test_nothing_is_allocated_after_the_first_step(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    // The larger model's products are of a size for which some libraries take buffers of megabytes at every call.
    const char *models[] = {TINY " -d 128", "-e 2x256x4 --vocab 300 -t 64 -b 8 -i random -m 2 -g 16"};
    for (int i = 0; i < 4; i++) {
        char *output = run_command(0,
                                   "INTERPOSE_REPORT=%s/report LD_PRELOAD=build/interpose.so ./train_gpt %s -x 4 -n 2 "
                                   "-v 2 -s 2 -p %s -o %s/out",
                                   directory, models[i / 2], i % 2 ? "bf16" : "fp32", directory);
        assert_memory_stayed(output, in_directory(directory, "report"));
        free(output);
    }
    remove_directory(directory);
}

static void test_random_short_transfers(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    for (int i = 0; i < 2; i++) {
        free(run_command(0, "%s ./train_gpt -e 2x48x3 -t 32 -b 2 -g 0 -m 2 -x 3 -n 2 -o %s/out%d",
                         i ? "INTERPOSE_SHORT=1 LD_PRELOAD=build/interpose.so" : "", directory, i));
        free(run_command(0, "%s ./train_gpt -t 32 -b 2 -g 0 -m 2 -x 4 -y 1 -n 2 -o %s/out%d",
                         i ? "INTERPOSE_SHORT=1 LD_PRELOAD=build/interpose.so" : "", directory, i));
    }
    size_t n0, n1;
    char *a = read_file(in_directory(directory, "out0/checkpoint_00000004.bin"), &n0);
    char *b = read_file(in_directory(directory, "out1/checkpoint_00000004.bin"), &n1);
    assert_int_equal(n0, n1);
    assert_memory_equal(a, b, n0);
    free(a);
    free(b);
    remove_directory(directory);
}

// A save that is killed half way, or whose disk is full, leaves the last good checkpoint, and nothing that looks good.
static void test_interrupted_saves(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    for (int i = 1; i <= 6; i++) {
        const char *how = i % 2 ? "INTERPOSE_KILL" : "INTERPOSE_FULL";
        free(run_command(0, "./train_gpt %s -x 2 -n 2 -o %s/out%d", TINY, directory, i));
        int status = i % 2 ? 137 : 1;
        char *output =
            run_command(status, "sh -c '%s=%d LD_PRELOAD=build/interpose.so ./train_gpt %s -x 4 -n 4 -y 1 -o %s/out%d'",
                        how, 1 + i * 6, TINY, directory, i);
        if (status == 1) assert_says(output, "No space left");
        assert_int_equal(access(in_directory(directory, "out%d/checkpoint_00000004.bin", i), F_OK), -1);
        free(output);
        output = run_command(0, "./train_gpt %s -x 4 -n 4 -y 1 -o %s/out%d", TINY, directory, i);
        assert_says(output, "(step 2)");
        char *csv = read_file(in_directory(directory, "out%d/steps.csv", i), NULL);
        assert_int_equal(count_lines(csv), 5);  // steps 1 ... 4 once each, though 3 and 4 were run twice
        free(csv);
        free(output);
        output = run_command(0, "ls %s/out%d", directory, i);
        assert_null(strstr(output, "partial"));
        free(output);
    }
    remove_directory(directory);
}

// All checkpoints bad: stop, never start from scratch unasked.
static void test_no_good_checkpoint(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    char *fresh =
        run_command(0, "./train_gpt %s -x 1 -v 0 -y 1 -n 1 -o %s", TINY, directory);  // none at all: from scratch
    free(fresh);
    write_file(in_directory(directory, "checkpoint_00000001.bin"), "damaged", 7);
    char *output = run_command(1, "./train_gpt %s -x 2 -y 1 -o %s", TINY, directory);
    assert_says(output, "is shorter than a header");
    assert_says(output, "no checkpoint is good");
    free(output);
    free(run_command(0, "./train_gpt %s -x 2 -n 2 -o %s", TINY, directory));
    output = run_command(1, "./train_gpt -e 2x48x4 --vocab 67 -t 32 -i random -x 3 -y 1 -o %s", directory);
    assert_says(output, "not -e 2x48x4");
    free(output);
    expect_command(1, "vocabulary of 67", "./train_gpt --vocab 68 -t 32 -i random -x 3 -y 1 -o %s", directory);
    remove_directory(directory);
}

// Ctrl-C and SIGTERM save and exit with 0; the run goes on from there.
static void test_interrupt_saves(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    for (int i = 0; i < 2; i++) {
        char *output = run_command(0, "sh -c './train_gpt %s -x 100000 -v 0 -o %s/out & p=$!; while ! grep -q ^3, "
                                      "%s/out/steps.csv 2>/dev/null; do sleep 0.1; done; kill -%s $p; wait $p'",
                                   TINY, directory, directory, i ? "TERM" : "INT");
        assert_says(output, "saved, go on with -y 1");
        assert_says(output, "peak ");
        free(output);
        output = run_command(0, "./train_gpt %s -x 3 -v 0 -y 1 -o %s/out", TINY, directory);
        assert_says(output, "going on from");
        free(output);
        free(run_command(0, "rm -r %s/out", directory));
    }
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
    assert_true(first > 5 && first < 6.5 && last < first - 0.5);
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
        cmocka_unit_test(test_help_names_every_flag),
        cmocka_unit_test(test_every_flag_refuses_bad_values),
        cmocka_unit_test(test_wrong_combinations),
        cmocka_unit_test(test_flags_are_parsed),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_plan_and_run_write_the_same_memory),
        cmocka_unit_test(test_steps_csv),
        cmocka_unit_test(test_too_small_a_budget),
        cmocka_unit_test(test_nothing_is_allocated_after_the_first_step),
        cmocka_unit_test(test_random_short_transfers),
        cmocka_unit_test(test_interrupted_saves),
        cmocka_unit_test(test_no_good_checkpoint),
        cmocka_unit_test(test_interrupt_saves),
        cmocka_unit_test(test_bad_places),
        cmocka_unit_test(test_readme_command),
        cmocka_unit_test(test_extreme_shapes),
        cmocka_unit_test(test_prompt_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
