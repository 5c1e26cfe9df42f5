// test_threads.c - processors, quotas and threads: whatever the environment allows, the numbers are those of as many
// threads, and what can't be had is said once, before the plan.
#include "program_helpers.h"

#include <math.h>
#include <sched.h>
#include <sys/stat.h>

#include "../dev/threads.h"

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -v 0 -g 0"
#define CLEAN "env"  // main() has taken out what the tests themselves run in

static int n_processors(void) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    return CPU_COUNT(&set);
}

// The number of one that this process may run on.
static int some_processor(void) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &set)) return i;
    }
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------
// How many

// Processors, this rank's part of them, quota, ranks: threads, and whether the quota says so.
static void test_threads_are_chosen(void **state) {
    (void)state;
    static const struct {
        int processors;
        double part, quota;
        int local_size, threads;
        bool limited;
    } cases[] = {{8, 1, 0, 1, 8, false},    {8, 1, 3.5, 1, 4, true},  {8, 1, 0.5, 1, 1, true}, {8, 1, 8, 1, 8, false},
                 {8, 1, 100, 1, 8, false},  {8, 0.25, 0, 4, 2, false}, {8, 1.0 / 3, 0, 3, 2, false},
                 {2, 1.0 / 3, 0, 3, 1, false}, {8, 0.25, 4, 4, 1, true}, {8, 1.0 / 3, 4, 3, 1, true},
                 {8, 1, 5, 4, 1, true},     {1, 1, 0.5, 1, 1, false}, {100000, 1, 0, 1, THREADS_MOST, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool limited;
        const int n = threads_choose(cases[i].processors, cases[i].part, cases[i].quota, cases[i].local_size, &limited);
        assert_int_equal(n, cases[i].threads);
        assert_int_equal(limited, cases[i].limited);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Teams

// The steps' numbers of a run (tokens, losses, norms, rates), without its times, to be freed; and its threads.
__attribute__((format(printf, 2, 3))) static char *numbers_of(int *team, const char *format, ...) {
    char command[1024], directory[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof(command), format, arguments);
    va_end(arguments);
    make_directory(directory);
    char *output = run_command(0, "%s -o %s/out", command, directory), *threads = strstr(output, "\nthreads ");
    assert_says(output, "planned and measured alike");
    assert_non_null(threads);
    *team = atoi(threads + strlen("\nthreads "));
    free(output);
    char *numbers = run_command(0, "cut -d, -f1-3,5,6 %s/out/steps.csv", directory);
    assert_int_equal(count_lines(numbers), 4);
    if (strstr(numbers, "nan") || strstr(numbers, "inf")) fail_msg("%s: %s", command, numbers);
    remove_directory(directory);
    return numbers;
}

static void need_openmp(void) {
#ifndef _OPENMP
    SKIP_AS("this was built without OpenMP");
#endif
}

// Whatever makes a team smaller than OpenMP says: the numbers are the bits of as many threads. The model is of a size
// for which the math library shares a product between threads.
static void test_smaller_teams_give_right_numbers(void **state) {
    (void)state;
    static const struct {
        const char *environment, *same_as;
    } cases[] = {{"OMP_THREAD_LIMIT=1", "OMP_NUM_THREADS=1"},
                 {"OMP_THREAD_LIMIT=3 OMP_NUM_THREADS=4", "OMP_NUM_THREADS=3"},
                 {"OMP_NUM_THREADS=4 OMP_DYNAMIC=true", "OMP_NUM_THREADS=4"},
                 {"OMP_NUM_THREADS=2 OMP_MAX_ACTIVE_LEVELS=0", "OMP_NUM_THREADS=1"},
                 {"OMP_NUM_THREADS=3,2 OMP_NESTED=true", "OMP_NUM_THREADS=3"},
                 {"OMP_NUM_THREADS=2 OMP_PROC_BIND=true", "OMP_NUM_THREADS=2"}};
    static const char *const types[] = {"fp32", "bf16"};
    const char *flags = "-e 1x128x2 --vocab 257 -t 128 -b 5 -d 1280 -i random -v 0 -g 0 -x 3";
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const char *dtype = types[i % 2];
        int team, right_team;
        char *numbers = numbers_of(&team, CLEAN " %s ./train_gpt %s -p %s", cases[i / 2].environment, flags, dtype);
        char *right = numbers_of(&right_team, CLEAN " %s ./train_gpt %s -p %s", cases[i / 2].same_as, flags, dtype);
        assert_int_equal(team, right_team);
        if (strcmp(numbers, right) != 0) {
            fail_msg("%s, %s:\n%snot as with %s:\n%s", cases[i / 2].environment, dtype, numbers, cases[i / 2].same_as,
                     right);
        }
        free(numbers);
        free(right);
    }
}

// The banner's reason.
static void test_the_banner_says_how_many_threads_and_why(void **state) {
    (void)state;
    need_openmp();
    static const struct {
        const char *command, *words;
    } cases[] = {{"OMP_NUM_THREADS=3 ./train_gpt", "threads    3: OMP_NUM_THREADS"},
                 {"OMP_NUM_THREADS=2 OMP_THREAD_LIMIT=1 ./train_gpt",
                  "threads    1: OpenMP gives no more, OMP_THREAD_LIMIT=1"},
                 {"OMP_NUM_THREADS=2 ./train_gpt", "; waiting by " THREADS_WAIT_NAME "=" THREADS_WAIT_VALUE "\n"},
                 {"OMP_NUM_THREADS=2 OMP_WAIT_POLICY=active ./train_gpt", "; waiting by OMP_WAIT_POLICY=active\n"},
                 {"OMP_NUM_THREADS=2 OMP_PROC_BIND=true ./train_gpt", "; waiting by OpenMP's default\n"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *output = run_command(0, CLEAN " sh -c '%s " TINY " --plan'", cases[i].command);
        assert_says(output, cases[i].words);
        free(output);
    }
    char *output = run_command(0, CLEAN " taskset -c %d ./train_gpt " TINY " --plan", some_processor());
    assert_says(output, "threads    1: one for each processor that it may use\n");
    free(output);
    // What OpenMP says of itself is no fault.
    output = run_command(0, CLEAN " OMP_DISPLAY_AFFINITY=true OMP_NUM_THREADS=16 ./train_gpt " TINY " --plan");
    assert_says(output, "threads    16: OMP_NUM_THREADS");
    free(output);
}

// The program keeps its name and its words through its second start, and starts no third time.
static void test_the_second_start(void **state) {
    (void)state;
    need_openmp();
    char *output = run_command(0, "sh -c './train_gpt " TINY " -x 1000000 >/dev/null & p=$!; sleep 1; "
                                  "cat /proc/$p/comm; "
                                  "tr \"\\0\" \"\\n\" </proc/$p/environ | grep -c -e ^TRAIN_GPT_STARTED_AGAIN "
                                  "-e ^" THREADS_WAIT_NAME "=" THREADS_WAIT_VALUE "; kill -9 $p'");
    assert_string_equal(output, "train_gpt\n2\n");
    free(output);
    output = run_command(0, "TRAIN_GPT_STARTED_AGAIN=1 OMP_NUM_THREADS=2 ./train_gpt " TINY " --plan");
    assert_says(output, "; waiting by OpenMP's default\n");
    free(output);
    output = run_command(0, "$(ls /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-x86-64.so.2 2>/dev/null | head -n 1) "
                            "./train_gpt " TINY " --plan");
    assert_says(output, "\nthreads    ");
    free(output);
}

// Binding must not make the machine look like one processor.
static void test_binding_leaves_the_processors(void **state) {
    (void)state;
    need_openmp();
    const char *number = "sed -n 's/^threads    \\([0-9]*\\).*/\\1/p'";
    char *output = run_command(0, CLEAN " ./train_gpt " TINY " --plan | %s", number);
    char *bound = run_command(0, CLEAN " OMP_PROC_BIND=true ./train_gpt " TINY " --plan | %s", number);
    assert_true(atoi(output) >= 1);
    assert_string_equal(bound, output);
    free(output);
    free(bound);
}

// A real quota, where a test may make control groups of version 1.
static void test_a_quota_of_half_a_processor(void **state) {
    (void)state;
    need_openmp();
    if (n_processors() < 2) SKIP_AS("half of one processor is one thread, as is the whole");
    char group[128];
    snprintf(group, sizeof(group), "/sys/fs/cgroup/cpu/train_gpt_test_%d", (int)getpid());
    if (mkdir(group, 0755) != 0) {
        SKIP_AS("no control group can be made here: %s", strerror(errno));
    }
    const char *run = "sh -c 'echo $$ >%s/cgroup.procs; exec " CLEAN " ./train_gpt " TINY " --plan' | grep ^threads";
    write_file(in_directory(group, "cpu.cfs_quota_us"), "50000", 5);
    char *half = run_command(0, run, group);
    write_file(in_directory(group, "cpu.cfs_quota_us"), "-1", 2);
    char *whole = run_command(0, run, group);
    rmdir(group);
    assert_says(half, "threads    1: the control group's quota is 0.50 processors");
    assert_says(whole, "one for each processor that it may use");
    free(half);
    free(whole);
}

// Ranks of one machine share the processors that they may all use, and not those that they are bound to.
static void test_ranks_share_processors(void **state) {
    (void)state;
    need_openmp();
#ifndef USE_MPI
    SKIP_AS("this was built without MPI");
#endif
    if (system("command -v mpirun >/dev/null") != 0) {
        SKIP_AS("there is no mpirun");
    }
    const int processors = n_processors();
    const double quota = process_quota("");
    for (int n = 2; n <= 3; n++) {
        char words[64], *output = run_command(0, CLEAN " scripts/launch.sh %d ./train_gpt " TINY " --plan", n);
        int right = processors / n > 1 ? processors / n : 1;
        if (quota > 0 && ceil(quota) / n < right) right = ceil(quota) / n < 1 ? 1 : (int)(ceil(quota) / n);
        snprintf(words, sizeof(words), "threads    %d: ", right);
        assert_says(output, words);
        free(output);
    }
    free(run_command(0, CLEAN " OMP_NUM_THREADS=3 scripts/launch.sh 2 ./train_gpt " TINY
                              " --plan | grep '^threads    3: OMP_NUM_THREADS'"));
}

// ---------------------------------------------------------------------------------------------------------------
// Teams that change, or can't be had

// The team of a program that began with two threads; a child of it would not have them.
static void check_a_team(void *argument) {
#ifdef _OPENMP
    omp_set_num_threads(*(int *)argument);
#else
    (void)argument;
#endif
    threads_check(2);
}

// The trainer looks at every step (test_model.c).
static void test_a_team_that_changes_is_found(void **state) {
    (void)state;
    need_openmp();
    static const char *const words[] = {NULL, "began with 2 threads and OpenMP gives 1 now|checkpoint", NULL,
                                        "began with 2 threads and OpenMP gives 3 now|checkpoint"};
    for (int n = 1; n <= 3; n++) {
        if (words[n]) expect_die(check_a_team, &n, words[n]);
        else expect_exit(check_a_team, &n, 0, "");
    }
}

static void test_the_first_setting_counts(void **state) {
    (void)state;
    static const char *const names[] = {"TRAIN_GPT_TEST_A", "TRAIN_GPT_TEST_B", NULL};
    char text[64];
    unsetenv(names[0]);
    unsetenv(names[1]);
    assert_string_equal(threads_setting(names, text, sizeof(text)), "");
    setenv(names[1], "2", 1);
    assert_string_equal(threads_setting(names, text, sizeof(text)), "TRAIN_GPT_TEST_B=2");
    setenv(names[0], "", 1);
    assert_string_equal(threads_setting(names, text, sizeof(text)), "TRAIN_GPT_TEST_A=");
    assert_ptr_equal(threads_setting(names, text, 8), text);
    assert_string_equal(text, "TRAIN_G");
    unsetenv(names[0]);
    unsetenv(names[1]);
}

// One message of ours, before the plan, and nothing of OpenMP's own.
static void expect_no_threads(const char *words, const char *command) {
    char *output = run_command(1, CLEAN " %s", command);
    assert_says(output, "train_gpt: ");
    assert_says(output, words);
    if (count_lines(output) != 1) fail_msg("%s\nsays more than one line: %s", command, output);
    free(output);
}

static void test_threads_that_cant_be_had(void **state) {
    (void)state;
    need_openmp();
    const char *shim = "LD_PRELOAD=build/interpose.so";
    char command[1024];
    expect_no_threads("2 threads can't be had: libgomp: ",
                      "OMP_NUM_THREADS=2 OMP_STACKSIZE=1000000G ./train_gpt " TINY);
    expect_no_threads("OMP_STACKSIZE=16k", "OMP_NUM_THREADS=2 OMP_STACKSIZE=16k ./train_gpt " TINY);
    expect_no_threads("stack is too small", "OMP_NUM_THREADS=2 OMP_STACKSIZE=100000B ./train_gpt " TINY);
    expect_no_threads("stack is too small", "sh -c 'ulimit -s 100; OMP_NUM_THREADS=1 exec ./train_gpt " TINY "'");
    expect_no_threads("at most 4096 threads", "OMP_NUM_THREADS=1000000 ./train_gpt " TINY);
    // The last that is made, or the first; OpenMP's or a queue's.
    for (int n = 1; n <= 7; n += 2) {
        snprintf(command, sizeof(command), "%s INTERPOSE_THREADS=%d OMP_NUM_THREADS=3 ./train_gpt " TINY, shim, n);
        expect_no_threads(n < 3 ? "3 threads can't be had" : "can't start a thread", command);
    }
    free(run_command(0, CLEAN " %s INTERPOSE_THREADS=8 OMP_NUM_THREADS=3 ./train_gpt " TINY " -x 1", shim));
}

// The same by the kernel's limit, which does not bind root.
static void test_a_limit_on_processes(void **state) {
    (void)state;
    need_openmp();
    if (getuid() != 0 || system("command -v setpriv >/dev/null") != 0) {
        SKIP_AS("only root can become a user without other processes");
    }
    char command[512];
    for (int n = 1; n <= 5; n++) {
        snprintf(command, sizeof(command), "setpriv --reuid 54321 --regid 54321 --clear-groups prlimit --nproc=%d env "
                 "OMP_NUM_THREADS=4 ./train_gpt " TINY, n);
        expect_no_threads("ulimit -u", command);
    }
}

int main(void) {
    static const char *const variables[] = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY", "OMP_DYNAMIC",
                                            "OMP_PROC_BIND", "OMP_PLACES", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED",
                                            "OMP_STACKSIZE", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "GOMP_STACKSIZE"};
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) unsetenv(variables[i]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_are_chosen),
        cmocka_unit_test(test_the_second_start),
        cmocka_unit_test(test_smaller_teams_give_right_numbers),
        cmocka_unit_test(test_the_banner_says_how_many_threads_and_why),
        cmocka_unit_test(test_binding_leaves_the_processors),
        cmocka_unit_test(test_a_quota_of_half_a_processor),
        cmocka_unit_test(test_ranks_share_processors),
        cmocka_unit_test(test_a_team_that_changes_is_found),
        cmocka_unit_test(test_the_first_setting_counts),
        cmocka_unit_test(test_threads_that_cant_be_had),
        cmocka_unit_test(test_a_limit_on_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
