// test_faults.c - ./train_gpt on one and several ranks when something goes wrong: places for swap files that won't do,
// disks that fail, budgets that are too small, ranks that are killed, signals. Nothing hangs, nothing stays behind, and
// what is wrong is said once.
#include "../program_helpers.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -m 2 -g 16"
#define EVERYTHING_ON_DISK "-r 3 --offload optimizer=disk,gradients=disk,weights=disk,activations=disk"

// The k-th comma-separated field of a line of a file's row for `step`; NaN if there is no such row.
static double csv_number(const char *csv, int step, int k) {
    char start[32];
    snprintf(start, sizeof(start), "\n%d,", step);
    const char *at = strstr(csv, start);
    if (!at) return -1;
    for (at++; k > 0; k--) at = strchr(at, ',') + 1;
    return atof(at);
}

static void assert_same_files(const char *a, const char *b) {
    size_t n_a, n_b;
    char *bytes_a = read_file(a, &n_a), *bytes_b = read_file(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);
    free(bytes_a);
    free(bytes_b);
}

// ---------------------------------------------------------------------------------------------------------------
// Processes

// Walks over the processes that have `words` in their command line: how many there are, and the pid of rank `rank`
// among those whose program is train_gpt, or 0.
static int find_processes(const char *words, int rank, pid_t *pid) {
    int n = 0;
    DIR *listing = opendir("/proc");
    assert_non_null(listing);
    *pid = 0;
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        char path[300], line[4096], environment[1 << 16], wanted[64];
        ssize_t length[2];
        if (atoi(entry->d_name) <= 0 || atoi(entry->d_name) == getpid()) continue;
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof(path), "/proc/%s/%s", entry->d_name, i ? "environ" : "cmdline");
            int fd = open(path, O_RDONLY);
            length[i] = fd < 0 ? 0 : read(fd, i ? environment : line, (i ? sizeof(environment) : sizeof(line)) - 1);
            if (fd >= 0) close(fd);
        }
        if (length[0] <= 0) continue;
        line[length[0]] = 0;
        const char *program = strrchr(line, '/') ? strrchr(line, '/') + 1 : line;
        const bool trainer = strcmp(program, "train_gpt") == 0;
        for (ssize_t i = 0; i < length[0]; i++) line[i] = line[i] ? line[i] : ' ';
        if (!strstr(line, words)) continue;
        n++;
        if (!trainer || length[1] <= 0) continue;
        environment[length[1]] = 0;
        snprintf(wanted, sizeof(wanted), "OMPI_COMM_WORLD_RANK=%d", rank);
        for (ssize_t i = 0; i < length[1]; i += (ssize_t)strlen(environment + i) + 1) {
            if (strcmp(environment + i, wanted) == 0) *pid = atoi(entry->d_name);
        }
    }
    closedir(listing);
    return n;
}

enum { PATIENCE = 60 };  // seconds until something is a hang

static void pause_a_little(void) {
    const struct timespec pause = {0, 20 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

static void assert_no_process_remains(const char *directory) {
    pid_t pid;
    for (time_t start = time(NULL); find_processes(directory, 0, &pid) > 0; pause_a_little()) {
        if (time(NULL) - start > PATIENCE) fail_msg("processes remain: pgrep -f %s", directory);
    }
}

// A command of the shell in the background, its output in a file.
typedef struct {
    pid_t pid;
    char log[512];
} Run;

static pid_t running;  // a command in the background, while there is one

// After a test that failed: killing the launcher ends mpirun and the ranks.
static int kill_running(void **state) {
    (void)state;
    if (running > 0) kill(running, SIGKILL);
    running = 0;
    return 0;
}

__attribute__((format(printf, 2, 3))) static Run start_run(const char *directory, const char *format, ...) {
    Run run;
    char command[2048];
    va_list arguments;
    va_start(arguments, format);
    int n = snprintf(command, sizeof(command), "exec env ");
    vsnprintf(command + n, sizeof(command) - (size_t)n, format, arguments);
    va_end(arguments);
    snprintf(run.log, sizeof(run.log), "%s/log", directory);
    fflush(NULL);
    run.pid = fork();
    assert_true(run.pid >= 0);
    running = run.pid;
    if (run.pid > 0) return run;
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};  // a test in the background would hand down that it ignores some
    for (int i = 0; i < 3; i++) signal(signals[i], SIG_DFL);
    int fd = open(run.log, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(97);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(98);
}

// Its exit status; its output in *output, to be freed.
static int end_run(const Run *run, char **output) {
    int status;
    for (time_t start = time(NULL); waitpid(run->pid, &status, WNOHANG) == 0; pause_a_little()) {
        if (time(NULL) - start > PATIENCE) fail_msg("it hangs: see %s", run->log);
    }
    running = 0;
    *output = read_file(run->log, NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Waits until a file has these words; NULL: until it is there.
static void wait_for(const Run *run, const char *path, const char *words) {
    for (time_t start = time(NULL);; pause_a_little()) {
        if (access(path, R_OK) == 0) {
            char *text = words ? read_file(path, NULL) : NULL;
            bool there = !words || strstr(text, words);
            free(text);
            if (there) return;
        }
        if (time(NULL) - start > PATIENCE) fail_msg("no %s in %s; see %s", words ? words : "file", path, run->log);
    }
}

static pid_t wait_for_rank(const char *directory, int rank) {
    pid_t pid;
    for (time_t start = time(NULL);; pause_a_little()) {
        find_processes(directory, rank, &pid);
        if (pid > 0) return pid;
        if (time(NULL) - start > PATIENCE) fail_msg("rank %d does not start", rank);
    }
}

// Waits for a name with this ending in a directory, or (wait false) counts them.
static int count_files(const char *directory, const char *end, bool wait) {
    for (time_t start = time(NULL);; pause_a_little()) {
        int n = 0;
        DIR *listing = opendir(directory);
        for (struct dirent *entry = listing ? readdir(listing) : NULL; entry; entry = readdir(listing)) {
            size_t length = strlen(entry->d_name);
            n += length > strlen(end) && strcmp(entry->d_name + length - strlen(end), end) == 0;
        }
        if (listing) closedir(listing);
        if (n > 0 || !wait) return n;
        if (time(NULL) - start > PATIENCE) fail_msg("no file %s in %s", end, directory);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Places for swap files, and disks that fail

static char mounted[512];  // a tmpfs, while there is one

static int unmount(void **state) {
    (void)state;
    if (mounted[0] && umount2(mounted, MNT_DETACH) != 0) return -1;
    mounted[0] = 0;
    return 0;
}

#define OFFLOADED TINY " -x 1 --offload optimizer=disk --swap-dir"

static void test_swap_directories_that_wont_do(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    write_file(in_directory(directory, "file"), "x", 1);
    expect_command(1, "No such file|--swap-dir|missing", "./train_gpt " OFFLOADED " %s/missing", directory);
    expect_command(1, "is not a directory|--swap-dir", "./train_gpt " OFFLOADED " %s/file", directory);
    remove_directory(directory);
}

static void test_a_swap_directory_that_no_rank_has(void **state) {
    (void)state;
    need_program_ranks();
    char *output = run_command(-1, LAUNCH " 2 ./train_gpt " OFFLOADED " /nowhere/missing");
    assert_says_once(output, "train_gpt: --swap-dir");
    free(output);
}

// A file system of 400 KiB in a directory of its own.
static void mount_small(char *directory) {
    make_directory(directory);
    if (mount("tmpfs", directory, "tmpfs", 0, "size=400k") != 0) {
        remove_directory(directory);
        SKIP_AS("nothing can be mounted here");
    }
    snprintf(mounted, sizeof(mounted), "%s", directory);
}

// Full: found at the start, with the numbers; nothing stays behind. Read-only: the same.
static void test_full_swap_directories(void **state) {
    char small[256];
    mount_small(small);
    char *output = run_command(0, "./train_gpt " OFFLOADED " %s --plan", small);
    assert_says(output, "disk peak");
    free(output);
    expect_command(1, "--swap-dir|bytes are needed|409600 are free|No space left", "./train_gpt " OFFLOADED " %s",
                   small);
    assert_int_equal(count_files(small, "", false), 2);  // . and ..
    assert_int_equal(mount("tmpfs", small, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    expect_command(1, "make a file there|Read-only", "./train_gpt " OFFLOADED " %s", small);
    assert_int_equal(unmount(state), 0);
    remove_directory(small);
}

// There is room for one rank's file, not for two; then for both.
static void test_a_swap_directory_that_is_full_for_two(void **state) {
    char small[256];
    need_program_ranks();
    mount_small(small);
    char *output = run_command(-1, LAUNCH " 2 ./train_gpt " OFFLOADED " %s -z 1", small);
    assert_says_once(output, "bytes are needed");
    free(output);
    free(run_command(0, LAUNCH " 2 ./train_gpt -e 1x32x2 --vocab 67 -t 32 -b 2 -i random -g 0 -v 0 -x 1 -z 1 "
                        "--offload optimizer=disk --swap-dir %s", small));
    assert_int_equal(count_files(small, "", false), 2);
    assert_int_equal(unmount(state), 0);
    remove_directory(small);
}

// Reads and writes that are short or interrupted: the same losses, norms and checkpoints.
static void short_transfers(int N) {
    char directory[256];
    make_directory(directory);
    for (int i = 0; i < 3; i++) {
        static const char *const shims[] = {"", INTERPOSED " INTERPOSE_SHORT=1",
                                            INTERPOSED " INTERPOSE_SHORT=1 INTERPOSE_SWAP_BUFFERED=1"};
        free(run_command(0, "%s %s ./train_gpt " TINY " %s -d 256 -x 3 -n 2 -v 2 %s -o %s/%d_%d",
                         N > 1 ? LAUNCH " 2" : "OMP_NUM_THREADS=1", i == 0 && N == 1 ? "env" : shims[i],
                         EVERYTHING_ON_DISK, N > 1 ? "-z 2" : "", directory, N, i));
        if (i == 0) continue;
        char *csv[2];
        for (int k = 0; k < 2; k++) csv[k] = read_file(in_directory(directory, "%d_%d/steps.csv", N, k * i), NULL);
        for (int step = 1; step <= 3; step++) {
            for (int k = 1; k <= 4; k++) {
                assert_true(csv_number(csv[0], step, k) == csv_number(csv[1], step, k));
            }
            assert_true(csv_number(csv[0], step, 2) > 3);
        }
        free(csv[0]);
        free(csv[1]);
        for (int step = 2; step <= 3; step++) {
            assert_same_files(in_directory(directory, "%d_0/checkpoint_%08d.bin", N, step),
                              in_directory(directory, "%d_%d/checkpoint_%08d.bin", N, i, step));
        }
    }
    remove_directory(directory);
}

static void test_short_transfers_change_nothing(void **state) {
    (void)state;
    short_transfers(1);
}

static void test_short_transfers_of_two_ranks(void **state) {
    (void)state;
    need_program_ranks();
    short_transfers(2);
}

// A disk that fails in the middle of a run: one message, exit 1, all ranks end, earlier checkpoints are good.
static void failing_disk(int N) {
    char directory[256];
    make_directory(directory);
    char *output = run_command(
        N == 1 ? 1 : -1,
        "%s sh -c \"[ \\${OMPI_COMM_WORLD_RANK:-1} = 1 ] && export INTERPOSE_SWAP_FAIL=%d; LD_PRELOAD="
        "build/interpose.so exec ./train_gpt " TINY " " EVERYTHING_ON_DISK " -x 10000 -n 2 -v 0 -o %s/%d\"",
        N > 1 ? LAUNCH " 2" : "", 600, directory, N);
    assert_says_once(output, "Input/output error");
    assert_says_once(output, N > 1 ? "train_gpt: rank 1: " : "train_gpt: ");
    assert_says(output, "train_gpt_swap_");
    assert_no_process_remains(directory);
    free(output);
    const int saved = count_files(in_directory(directory, "%d", N), ".bin", false);
    assert_true(saved >= 2);
    output = run_command(0, "%s ./train_gpt " TINY " -x 1 -y 1 -o %s/%d", N > 1 ? LAUNCH " 2" : "", directory, N);
    assert_says_once(output, "going on from");
    assert_null(strstr(output, "train_gpt: "));
    free(output);
    remove_directory(directory);
}

static void test_a_disk_that_fails(void **state) {
    (void)state;
    failing_disk(1);
}

static void test_a_disk_that_fails_one_of_two_ranks(void **state) {
    (void)state;
    need_program_ranks();
    failing_disk(2);
}

// ---------------------------------------------------------------------------------------------------------------
// Budgets and flags

// What is wrong on several ranks is told once, and ends all of them.
static void test_refusals_are_told_once(void **state) {
    (void)state;
    need_program_ranks();
    char directory[256];
    make_directory(directory);
    const struct {
        int status;
        const char *flags, *words;
    } refusals[] = {{2, "--nonsense", "train_gpt: unknown flag --nonsense"},
                    {2, TINY " -d 64", "train_gpt: -d 64 is not a multiple of B T N = 192"},
                    {2, TINY " -x 1 --ranks 2", "train_gpt: --ranks 2 is for a --plan"},
                    {2, TINY " --offload activations=host", "train_gpt: --offload activations"},
                    {1, "-i no_such_file.bin", "train_gpt: no file matches"},
                    {1, TINY " --device-memory 100K", "train_gpt: does not fit"},
                    {1, TINY " -o /proc/nothing", "train_gpt: -o "}};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        char *output = run_command(refusals[i].status, LAUNCH " 3 ./train_gpt %s", refusals[i].flags);
        assert_says_once(output, refusals[i].words);
        assert_says_once(output, "train_gpt: ");
        free(output);
    }
    char *help = run_command(0, LAUNCH " 2 ./train_gpt --help");
    assert_says_once(help, "--swap-dir ");
    free(help);
    // A damaged checkpoint is passed over, told once.
    free(run_command(0, LAUNCH " 2 ./train_gpt " TINY " -x 2 -n 1 -v 0 -z 1 -o %s", directory));
    write_file(in_directory(directory, "checkpoint_00000002.bin"), "damaged", 7);
    char *output = run_command(0, LAUNCH " 2 ./train_gpt " TINY " -x 2 -v 0 -z 1 -y 1 -o %s", directory);
    assert_says_once(output, "trying the one before");
    assert_says_once(output, "(step 1)");
    free(output);
    write_file(in_directory(directory, "checkpoint_00000001.bin"), "damaged", 7);
    output = run_command(1, LAUNCH " 2 ./train_gpt " TINY " -x 2 -v 0 -z 1 -y 1 -o %s", directory);
    assert_says_once(output, "no checkpoint is good");
    free(output);
    assert_no_process_remains(directory);
    remove_directory(directory);
}

// What is wrong reaches stderr in one write, in no pieces between which a launcher could put what it reads from stdout.
// (A pipe with O_DIRECT keeps writes apart.)
static void test_refusals_are_one_write(void **state) {
    (void)state;
    char directory[256], damaged[512];
    make_directory(directory);
    write_file(in_directory(directory, "checkpoint_00000001.bin"), "damaged", 7);
    snprintf(damaged, sizeof(damaged), TINY " -x 2 -v 0 -y 1 -o %s", directory);
    const struct {
        int status, n_messages;
        const char *flags, *end;
    } refusals[] = {{2, 1, "--nonsense", "(-h: all flags)\n"},
                    {1, 1, TINY " --device-memory 100K", "\n"},
                    {1, 1, TINY " -o /proc/nothing", "/proc/nothing: No such file or directory\n"},
                    {1, 2, damaged, "\n"}};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        int ends[2], status, n_messages = 0;
        char message[1 << 13], command[1024];
        snprintf(command, sizeof(command), "exec ./train_gpt %s >/dev/null", refusals[i].flags);
        assert_int_equal(pipe2(ends, O_DIRECT), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            if (dup2(ends[1], 2) < 0) _exit(97);
            close(ends[0]);
            close(ends[1]);
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
            _exit(98);
        }
        close(ends[1]);
        for (ssize_t n; (n = read(ends[0], message, sizeof(message) - 1)) > 0; n_messages++) {
            message[n] = 0;
            if (strncmp(message, "train_gpt: ", 11) != 0 || message[n - 1] != '\n') fail_msg("a piece: '%s'", message);
        }
        close(ends[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), refusals[i].status);
        assert_int_equal(n_messages, refusals[i].n_messages);
        assert_string_equal(message + strlen(message) - strlen(refusals[i].end), refusals[i].end);
    }
    remove_directory(directory);
}

// mpirun without the launcher: everything is printed once, the files have the rows of all ranks, and losses are those
// of one rank with the same sequences.
static void test_bare_mpirun(void **state) {
    (void)state;
    need_program_ranks();
    char directory[256];
    make_directory(directory);
    free(run_command(0, "./train_gpt " TINY " -p fp32 -d 128 -x 3 -v 1 -m 3 -s 2 -n 3 -o %s/one", directory));
    char *output = run_command(
        0, "env -u OMP_NUM_THREADS mpirun %s --oversubscribe -np 2 ./train_gpt " TINY " -p fp32 -x 3 -v 1 -m 3 -s 2 "
           "-n 3 -z 3 -o %s/two", getuid() == 0 ? "--allow-run-as-root" : "", directory);
    static const char *const words[] = {"planned, MiB", "measured, MiB", "step 3/3", "step 3 | validation loss",
                                        "--- sample after step 3", "\npeak ", "\nnext ", "ranks      2, ZeRO stage 3"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) assert_says_once(output, words[i]);
    free(output);
    char *one = read_file(in_directory(directory, "one/steps.csv"), NULL);
    char *two = read_file(in_directory(directory, "two/steps.csv"), NULL);
    for (int step = 1; step <= 3; step++) {
        for (int k = 2; k <= 4; k++) {  // train_loss, val_loss, norm: the order of additions, hundreds of roundings
            double x = csv_number(one, step, k), y = csv_number(two, step, k);
            if (!(x > 0 && (x > y ? x - y : y - x) < 1e-4 * x)) fail_msg("step %d field %d: %.9g %.9g", step, k, x, y);
        }
    }
    assert_int_equal(count_words(one, "\n"), count_words(two, "\n"));
    free(one);
    free(two);
    char *memory = read_file(in_directory(directory, "two/memory.csv"), NULL);
    assert_int_equal(count_words(memory, "\n0,"), 8 * 3 * 12);
    assert_int_equal(count_words(memory, "\n1,"), 8 * 3 * 12);
    for (char *line = strtok(memory, "\n"); (line = strtok(NULL, "\n")) != NULL;) {
        char *measured = strrchr(line, ',');
        *measured = 0;
        assert_string_equal(strrchr(line, ',') + 1, measured + 1);
    }
    free(memory);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Kills and signals

// kill -9 of one rank ends the job with a message, whatever it is doing, and leaves no process. (Not before the ranks
// have found each other: mpirun 4.1 itself may then say that one was killed, end the others, and stay.)
static void test_a_killed_rank_ends_all(void **state) {
    (void)state;
    need_program_ranks();
    const struct {
        const char *flags, *words;  // of its output, when the phase has begun
    } phases[] = {{TINY, "planned, MiB"},
                  {"-e d4 --vocab 257 -t 256 -b 1 -i random -v 0 -g 0", "step 2/"},
                  {TINY " -v 1 -m 100000", "step 1/"},
                  {"-e d4 --vocab 257 -t 256 -b 1 -i random -v 0 -s 1 -g 256", "--- sample after step 1"}};
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
        char directory[256], *output;
        make_directory(directory);
        Run run = start_run(directory, LAUNCH " 2 ./train_gpt %s -x 1000000 -z %zu -o %s/out", phases[i].flags, i,
                            directory);
        wait_for(&run, run.log, phases[i].words);
        assert_int_equal(kill(wait_for_rank(directory, i % 2 ? 0 : 1), SIGKILL), 0);
        assert_true(end_run(&run, &output) != 0);
        assert_says(output, "signal 9");
        free(output);
        assert_no_process_remains(directory);
        remove_directory(directory);
    }
}

// A kill while a checkpoint is written leaves the last good one.
static void test_a_kill_during_a_save(void **state) {
    (void)state;
    need_program_ranks();
    char directory[256], *output;
    make_directory(directory);
    // Rank 0 after half of its Nth write; the others are then in the middle of sending their shards.
    for (int i = 0; i < 3; i++) {
        free(run_command(0, LAUNCH " 3 ./train_gpt " TINY " -x 2 -n 2 -v 0 -z %d -o %s/%d", 1 + i, directory, i));
        output = run_command(-1, LAUNCH " 3 " INTERPOSED " INTERPOSE_KILL=%d ./train_gpt " TINY " -x 4 -n 4 -v 0 -y 1 "
                             "-z %d -o %s/%d", 1 + 20 * i, 1 + i, directory, i);
        assert_says(output, "signal 9");
        free(output);
        assert_no_process_remains(directory);
        assert_int_equal(count_files(in_directory(directory, "%d", i), ".bin", false), 1);
        output = run_command(0, LAUNCH " 2 ./train_gpt " TINY " -x 4 -n 4 -v 0 -y 1 -z %d -o %s/%d", 3 - i, directory,
                             i);
        assert_says_once(output, "(step 2)");
        free(output);
        assert_int_equal(count_files(in_directory(directory, "%d", i), ".bin", false), 2);
        assert_int_equal(count_files(in_directory(directory, "%d", i), ".partial", false), 0);
    }
    // Any rank at any moment of a run that does little else than saving.
    for (int rank = 0; rank < 2; rank++) {
        const char *out = in_directory(directory, "saving_%d", rank);
        Run run = start_run(directory, LAUNCH " 2 ./train_gpt -e d4 --vocab 257 -t 32 -b 1 -i random -v 0 -g 0 -x 1000 "
                            "-n 1 -z 2 --offload optimizer=disk -o %s", out);
        wait_for(&run, in_directory(out, "checkpoint_00000001.bin"), NULL);
        count_files(out, ".bin.partial", true);
        assert_int_equal(kill(wait_for_rank(directory, rank), SIGKILL), 0);
        assert_true(end_run(&run, &output) != 0);
        free(output);
        assert_no_process_remains(directory);
        output = run_command(0, "./train_gpt -t 32 -b 1 -i random -v 0 -g 0 -x 1 -y 1 -o %s", out);
        assert_says(output, "going on from");
        assert_null(strstr(output, "train_gpt: "));  // none was damaged
        free(output);
    }
    remove_directory(directory);
}

// Ctrl-C or SIGTERM, to one rank or to the launcher: all ranks stop after the same step, save once, and exit with 0.
// The run goes on from there with the same bits.
static void test_signals_save(void **state) {
    (void)state;
    need_program_ranks();
    const struct {
        int number, rank;  // rank < 0: the launcher
    } signals[] = {{SIGINT, 1}, {SIGTERM, 0}, {SIGINT, -1}, {SIGTERM, -1}};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        char directory[256], *output;
        make_directory(directory);
        const char *flags = TINY " -k constant -v 0 -z 2 --offload optimizer=disk,gradients=host";
        Run run = start_run(directory, LAUNCH " 2 ./train_gpt %s -x 1000000 -o %s/out", flags, directory);
        wait_for(&run, in_directory(directory, "out/steps.csv"), "\n3,");
        pid_t pid = signals[i].rank < 0 ? run.pid : wait_for_rank(directory, signals[i].rank);
        assert_int_equal(kill(pid, signals[i].number), 0);
        if (end_run(&run, &output) != 0) fail_msg("not 0 after signal %d: %s", signals[i].number, output);
        const char *said = strstr(output, "interrupted after step ");
        assert_non_null(said);
        const int step = atoi(said + strlen("interrupted after step "));
        assert_says_once(output, "saved, go on with -y 1");
        free(output);
        assert_no_process_remains(directory);
        assert_int_equal(count_files(in_directory(directory, "out"), ".bin", false), 1);
        assert_int_equal(access(in_directory(directory, "out/checkpoint_%08d.bin", step), R_OK), 0);
        char *csv = read_file(in_directory(directory, "out/steps.csv"), NULL);
        assert_int_equal(count_words(csv, "\n"), step + 1);
        free(csv);
        if (i % 3 == 0) {
            const char *more = "-n 1000000 -x";
            free(run_command(0, LAUNCH " 2 ./train_gpt %s -y 1 -o %s/out %s %d", flags, directory, more, step + 2));
            free(run_command(0, LAUNCH " 2 ./train_gpt %s -o %s/whole %s %d", flags, directory, more, step + 2));
            assert_same_files(in_directory(directory, "out/checkpoint_%08d.bin", step + 2),
                              in_directory(directory, "whole/checkpoint_%08d.bin", step + 2));
        }
        remove_directory(directory);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// One rank: files that move little at a time, saves that are killed or find no room, checkpoints that are damaged

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swap_directories_that_wont_do),
        cmocka_unit_test(test_a_swap_directory_that_no_rank_has),
        cmocka_unit_test_teardown(test_full_swap_directories, unmount),
        cmocka_unit_test_teardown(test_a_swap_directory_that_is_full_for_two, unmount),
        cmocka_unit_test(test_short_transfers_change_nothing),
        cmocka_unit_test(test_short_transfers_of_two_ranks),
        cmocka_unit_test(test_a_disk_that_fails),
        cmocka_unit_test(test_a_disk_that_fails_one_of_two_ranks),
        cmocka_unit_test(test_refusals_are_told_once),
        cmocka_unit_test(test_refusals_are_one_write),
        cmocka_unit_test(test_bare_mpirun),
        cmocka_unit_test_teardown(test_a_killed_rank_ends_all, kill_running),
        cmocka_unit_test_teardown(test_a_kill_during_a_save, kill_running),
        cmocka_unit_test_teardown(test_signals_save, kill_running),
        cmocka_unit_test(test_random_short_transfers),
        cmocka_unit_test(test_interrupted_saves),
        cmocka_unit_test(test_no_good_checkpoint),
        cmocka_unit_test(test_interrupt_saves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
