// test_threads.c - processors, quotas and threads: whatever the environment allows, the numbers are those of as many
// threads, and what can't be had is said once, before the plan.
#include "trainer_helpers.h"

#include "program_helpers.h"

#include <sched.h>
#include <sys/stat.h>

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
// Control groups, as files that a test makes

static char machine[256];  // the root of a machine that is not there

static void put(const char *path, const char *text) {
    char folder[512];
    snprintf(folder, sizeof(folder), "%s%s", machine, path);
    *strrchr(folder, '/') = 0;
    expect_command(0, "", "mkdir -p '%s'", folder);
    write_file(in_directory(machine, "%s", path + 1), text, strlen(text));
}

static void open_machine(const char *groups, const char *mounts) {
    make_directory(machine);
    put("/proc/self/cgroup", groups);
    put("/proc/self/mountinfo", mounts);
}

static void expect_quota(double quota) {
    const double found = process_quota(machine);
    if (found != quota) fail_msg("%s: %g processors, not %g", machine, found, quota);
    remove_directory(machine);
}

#define V1 "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
#define V1_MEMORY "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define V2 "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_quota_of_version_2(void **state) {
    (void)state;
    open_machine("0::/user/job\n", V2);
    put("/sys/fs/cgroup/user/job/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/user/cpu.max", "max 100000\n");
    expect_quota(1.5);

    open_machine("0::/user/job\n", V2);  // a parent allows less
    put("/sys/fs/cgroup/user/job/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/user/cpu.max", "50000 100000\n");
    expect_quota(0.5);

    open_machine("0::/\n", V2);  // in a container that sees its own group as the root
    put("/sys/fs/cgroup/cpu.max", "25000 50000\n");
    expect_quota(0.5);

    open_machine("0::/user/job\n", V2);  // no limit, and no file at all
    put("/sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
    expect_quota(0);
}

static void test_quota_of_version_1(void **state) {
    (void)state;
    open_machine("5:memory:/m\n4:cpuacct,cpu:/a/b\n", V1_MEMORY V1);
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/m/cpu.max", "1 100000\n");  // not of this controller
    expect_quota(3);
}

static void test_quota_of_both_versions(void **state) {
    (void)state;
    open_machine("4:cpu,cpuacct:/\n0::/slice\n", V1 V2);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/slice/cpu.max", "100000 100000\n");
    expect_quota(1);
}

// A container without a namespace of its own: a part of the hierarchy is mounted, and /proc tells the whole path.
static void test_quota_of_a_part_that_is_mounted(void **state) {
    (void)state;
    open_machine("0::/docker/abc/inner\n", "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put("/sys/fs/cgroup/inner/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/cpu.max", "75000 100000\n");
    expect_quota(0.75);

    open_machine("0::/docker/abcdef\n", "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put("/sys/fs/cgroup/cpu.max", "75000 100000\n");
    put("/sys/fs/cgroup/def/cpu.max", "10000 100000\n");
    expect_quota(0.75);

    open_machine("0::/../../other\n", "31 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");  // outside
    put("/sys/fs/cgroup/cpu.max", "60000 100000\n");
    expect_quota(0.6);
}

static void test_quota_of_odd_files(void **state) {
    (void)state;
    open_machine("0::/a b\n", "31 23 0:28 / /sys/fs/c\\040group rw - cgroup2 x\\040y rw\n");  // spaces in names
    put("/sys/fs/c group/a b/cpu.max", "40000 100000\n");
    expect_quota(0.4);

    static const char *const texts[] = {"", "\n", "x y\n", "0 0\n", "100000\n", "100000 0\n", "-5 100000\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        open_machine("0::/\n", V2);
        put("/sys/fs/cgroup/cpu.max", texts[i]);
        expect_quota(0);
    }
    open_machine("", "");
    expect_quota(0);
    open_machine("no colons\n:\n::\n", "garbage\n - \n1 2 - cgroup2\n - cgroup cgroup cpu\n");
    expect_quota(0);
    make_directory(machine);  // no /proc
    expect_quota(0);
}

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

static const char *test_program;  // argv[0]

// Two steps with so many threads for the second.
static void change_the_team(int n) {
    Trainer *m = open_trainer(TINY " -p fp32");
    start_trainer(m);
    run_steps(m, 1);
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
    run_steps(m, 1);
    close_trainer(m);
}

static void test_a_team_that_changes_ends_the_run(void **state) {
    (void)state;
    need_openmp();
    expect_command(0, "", "OMP_NUM_THREADS=2 %s --change 2", test_program);
    expect_command(1, "train_gpt: the run began with 2 threads and OpenMP gives 1 now|checkpoint",
                   "OMP_NUM_THREADS=2 %s --change 1", test_program);
    expect_command(1, "train_gpt: the run began with 2 threads and OpenMP gives 3 now|checkpoint",
                   "OMP_NUM_THREADS=2 %s --change 3", test_program);
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

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--change") == 0) {
        change_the_team(atoi(argv[2]));
        return 0;
    }
    test_program = argv[0];
    static const char *const variables[] = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY", "OMP_DYNAMIC",
                                            "OMP_PROC_BIND", "OMP_PLACES", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED",
                                            "OMP_STACKSIZE", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "GOMP_STACKSIZE"};
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) unsetenv(variables[i]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota_of_version_2),
        cmocka_unit_test(test_quota_of_version_1),
        cmocka_unit_test(test_quota_of_both_versions),
        cmocka_unit_test(test_quota_of_a_part_that_is_mounted),
        cmocka_unit_test(test_quota_of_odd_files),
        cmocka_unit_test(test_threads_are_chosen),
        cmocka_unit_test(test_the_second_start),
        cmocka_unit_test(test_smaller_teams_give_right_numbers),
        cmocka_unit_test(test_the_banner_says_how_many_threads_and_why),
        cmocka_unit_test(test_binding_leaves_the_processors),
        cmocka_unit_test(test_a_quota_of_half_a_processor),
        cmocka_unit_test(test_ranks_share_processors),
        cmocka_unit_test(test_a_team_that_changes_ends_the_run),
        cmocka_unit_test(test_threads_that_cant_be_had),
        cmocka_unit_test(test_a_limit_on_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
