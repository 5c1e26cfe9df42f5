// test_launch.c - the launchers, the runner of the tests, and what scripts/libraries.sh says: how N ranks start, with
// what, and how they end.
#include "program_helpers.h"

#include <sys/stat.h>
#include <time.h>

// The command's lines, sorted, must be these.
static void expect_lines(const char *lines, const char *command) {
    char *output = run_command(0, "{ %s; } | sort", command);
    if (strcmp(output, lines) != 0) fail_msg("%s\nprinted: %s", command, output);
    free(output);
}

static void need_mpirun(void) {
    if (system("command -v mpirun >/dev/null") != 0) SKIP_AS("there is no mpirun");
}

#define PRINT "sh -c 'echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE, $OMP_NUM_THREADS threads'"

// The user's number of threads reaches every rank, from wherever it starts. Without one the launcher says none: each
// rank finds its share by itself, on its own host (test_threads.c).
static void test_the_number_of_threads_is_passed_on(void **state) {
    (void)state;
    need_mpirun();
    expect_lines("0 of 2, 7 threads\n1 of 2, 7 threads\n", "OMP_NUM_THREADS=7 scripts/launch.sh 2 " PRINT);
    expect_lines("0 of 1, 3 threads\n", "cd /tmp && OMP_NUM_THREADS=3 \"$OLDPWD\"/scripts/launch.sh 1 " PRINT);
    expect_lines("0 of 3, threads\n1 of 3, threads\n2 of 3, threads\n",
                 "unset OMP_NUM_THREADS; scripts/launch.sh 3 " PRINT);
}

static void test_hosts(void **state) {
    (void)state;
    need_mpirun();
    expect_lines("0 of 2, 5 threads\n1 of 2, 5 threads\n",
                 "OMP_NUM_THREADS=5 HOSTS=localhost:2 scripts/launch.sh 2 " PRINT);
    expect_command(2, "room for 3 ranks, not 4|usage:", "HOSTS=localhost:2,b scripts/launch.sh 4 true");
    expect_command(2, "is not host:ranks|usage:", "HOSTS=localhost:x scripts/launch.sh 4 true");
    expect_command(2, "is not host:ranks|usage:", "HOSTS=localhost: scripts/launch.sh 4 true");
}

// What mpirun is called with, by one that prints its words.
static void test_the_words_for_mpirun(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    static const char printer[] = "#!/bin/sh\necho \"[$OMP_NUM_THREADS]\" \"$@\"\n";
    write_file(in_directory(directory, "mpirun"), printer, strlen(printer));
    write_file(in_directory(directory, "srun"), printer, strlen(printer));
    assert_int_equal(chmod(in_directory(directory, "mpirun"), 0700), 0);
    assert_int_equal(chmod(in_directory(directory, "srun"), 0700), 0);
    const char *root = getuid() == 0 ? "--allow-run-as-root " : "";
    char expected[256], *output = run_command(
        0, "env -i PATH=%s:$PATH OMP_NUM_THREADS=2 HOSTS=a:4,b:4 scripts/launch.sh 8 echo 'a  b'", directory);
    snprintf(expected, sizeof(expected), "[2] -np 8 --bind-to none %s--host a:4,b:4 -x OMP_NUM_THREADS echo a  b\n",
             root);
    assert_string_equal(output, expected);
    free(output);
    output = run_command(0, "env -i PATH=%s:$PATH OMP_NUM_THREADS=2 scripts/launch.sh 9 echo -n x", directory);
    snprintf(expected, sizeof(expected), "[2] -np 9 --bind-to none %s--oversubscribe -x OMP_NUM_THREADS echo -n x\n",
             root);
    assert_string_equal(output, expected);
    free(output);
    output = run_command(0, "env -i PATH=%s:$PATH SLURM_CPUS_PER_TASK=6 sh scripts/launch.sbatch ./train_gpt -b 'a  b'",
                         directory);
    assert_string_equal(output, "[6] --mpi=pmix --kill-on-bad-exit=1 ./train_gpt -b a  b\n");
    free(output);
    remove_directory(directory);
    expect_command(2, "usage:", "sh scripts/launch.sbatch");
}

static void test_wrong_calls(void **state) {
    (void)state;
    static const char *const calls[] = {"", "2", "0 true", "-1 true", "x true", "2x true", "'' true", "1000000 true",
                                        "2 /no/such/program"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        expect_command(2, "launch.sh:|usage:", "scripts/launch.sh %s", calls[i]);
    }
    char directory[256];
    make_directory(directory);
    expect_command(1, "mpirun is missing|make setup", "PATH=%s /bin/sh scripts/launch.sh 2 /bin/sh", directory);
    expect_command(1, "srun is missing|launch.sh", "PATH=%s /bin/sh scripts/launch.sbatch x", directory);
    remove_directory(directory);
}

static void test_the_exit_status_is_passed_on(void **state) {
    (void)state;
    need_mpirun();
    expect_command(0, "", "scripts/launch.sh 3 true");
    expect_command(2, "", "scripts/launch.sh 2 sh -c 'exit 2'");
    expect_command(3, "", "scripts/launch.sh 3 sh -c 'exit $((OMPI_COMM_WORLD_RANK == 1 ? 3 : 0))'");
    // A rank that is killed ends all.
    time_t start = time(NULL);
    expect_command(137, "", "scripts/launch.sh 2 sh -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -9 $$; exec sleep 60'");
    assert_true(time(NULL) - start < 20);
}

// The flags of libraries.sh build what they promise, and WITHOUT leaves out.
static void test_libraries(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    static const char program[] = "#ifdef USE_MPI\n#include <mpi.h>\n#endif\n#include <stdio.h>\nint main(void) {\n"
                                  "    int rank = 0;\n#ifdef USE_MPI\n    MPI_Init(0, 0);\n"
                                  "    MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n    MPI_Finalize();\n#endif\n"
                                  "    printf(\"rank %d\\n\", rank);\n    return 0;\n}\n";
    write_file(in_directory(directory, "ranks.c"), program, strlen(program));
    char *flags = run_command(0, "sh scripts/libraries.sh gcc quiet");
    static const char *const compilers[] = {"gcc -x c -std=c11", "g++ -x c++ -std=c++17"};
    for (int i = 0; i < 2; i++) {
        free(run_command(0, "%s -Wall -Wextra -Wpedantic -Werror %s/ranks.c -o %s/ranks -x none %s", compilers[i],
                         directory, directory, strtok(flags, "\n")));
        if (!strstr(flags, "-DUSE_MPI=1")) continue;
        char command[512];
        snprintf(command, sizeof(command), "scripts/launch.sh 2 %s/ranks", directory);
        expect_lines("rank 0\nrank 1\n", command);
    }
    free(flags);
    flags = run_command(0, "WITHOUT='onednn openmp mpi' sh scripts/libraries.sh gcc quiet");
    assert_string_equal(flags, " -Wno-unknown-pragmas -lm -lpthread\n");
    free(flags);
    flags = run_command(0, "WITHOUT=mpi sh scripts/libraries.sh gcc");
    assert_non_null(strstr(flags, "MPI is missing (make setup): one rank only\n"));
    free(flags);
    expect_command(2, "usage:", "sh scripts/libraries.sh gcc quite");
    remove_directory(directory);
}

// tests/run.sh: what it counts, of programs that print what cmocka prints, and of one that dies.
static void test_tests_are_counted(void **state) {
    (void)state;
    static const char *const programs[][2] = {
        {"good", "echo '[       OK ] test_a'; echo '[       OK ] test_b'\n"},
        {"bad",
         "echo '[       OK ] test_a'; for i in 1 2; do echo '[  FAILED  ] test_b'; echo '[  FAILED  ] test_X'; "
         "echo '[  FAILED  ] 2 test(s), listed below:'; done; exit 2\n"},
        {"dies", "echo '[       OK ] test_a'; kill -9 $$\n"},
        {"empty", "exit 0\n"},
        {"skips",
         "echo '[       OK ] test_a'; echo 'skipped, as it is Sunday'; for i in 1 2; do echo '[  SKIPPED ] test_b'; "
         "done; echo '[  SKIPPED ] 1 test(s), listed below:'\n"}};
    char directory[256];
    make_directory(directory);
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        const char *path = in_directory(directory, "%s", programs[i][0]);
        write_file(path, programs[i][1], strlen(programs[i][1]));
        expect_command(0, "", "chmod +x %s", path);
    }
    char command[512];
    snprintf(command, sizeof(command), "sh tests/run.sh '' %s/good | tail -n 1", directory);
    expect_lines("2 passed, 0 failed, 0 skipped\n", command);
    char *output =
        run_command(1, "cd %s && sh \"$OLDPWD\"/tests/run.sh '' ./good ./bad ./dies ./empty ./skips 2>&1", directory);
    char *last = strstr(output, "== ./bad");
    assert_non_null(last);
    assert_says(last, "   1 passed, 2 failed, 0 skipped, ");
    assert_says(strstr(last, "== ./dies"), "   1 passed, 1 failed, 0 skipped, ");
    assert_says(strstr(last, "== ./empty"), "   0 passed, 1 failed, 0 skipped, ");
    assert_says(strstr(last, "== ./skips"), "   1 x skipped, as it is Sunday\n   1 passed, 0 failed, 1 skipped, ");
    const char *sum = "\n5 passed, 4 failed, 1 skipped\n";
    assert_string_equal(output + strlen(output) - strlen(sum), sum);
    free(output);
    remove_directory(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tests_are_counted),
        cmocka_unit_test(test_the_number_of_threads_is_passed_on),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_the_words_for_mpirun),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_the_exit_status_is_passed_on),
        cmocka_unit_test(test_libraries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
