// test_disk.c - swap files: what was written comes back, whatever the kernel does; what can't work is refused at once.
//
// With "--scenario NAME DIRECTORY" the program does one thing and ends, so that it can be run with faults from
// interpose.c.
#include "test_helpers.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>

#include "../dev/disk.h"
#include "../dev/queue_cpu.h"

enum { SECTORS = 64 };

static unsigned char *new_pages(size_t n_bytes) {
    void *pages = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) abort();
    return (unsigned char *)pages;
}

static int count_files(const char *directory) {
    DIR *opened = opendir(directory);
    int n = 0;
    assert_non_null(opened);
    for (struct dirent *entry; (entry = readdir(opened)) != NULL;) n += entry->d_name[0] != '.';
    closedir(opened);
    return n;
}

// ---------------------------------------------------------------------------------------------------------------
// Contents

// Random reads and writes of any size, against a copy in memory. NULL, or what is wrong.
static const char *compare_with_memory(Disk *disk, uint64_t seed, int n_transfers) {
    const size_t n = SECTORS * DISK_SECTOR;
    unsigned char *copy = new_pages(n), *known = new_pages(n), *data = new_pages(n + DISK_SECTOR);
    uint64_t n_read = disk->n_read, n_written = disk->n_written;
    const char *wrong = NULL;
    for (uint64_t i = 0; i < (uint64_t)n_transfers && !wrong; i++) {
        size_t offset = random_bits(seed, 0, i) % SECTORS * DISK_SECTOR, most = n - offset;
        size_t n_bytes = random_bits(seed, 1, i) % (most + 1), padded = size_round_up(n_bytes, DISK_SECTOR);
        if (i % 4 == 0) n_bytes = padded;
        if (random_bits(seed, 2, i) % 2) {
            for (size_t j = 0; j < n_bytes; j++) data[j] = (unsigned char)random_mix(seed + i * n + j);
            memcpy(copy + offset, data, n_bytes);
            memset(known + offset, 0, padded);
            memset(known + offset, 1, n_bytes);
            disk_write(disk, data, offset, n_bytes);
            n_written += disk->direct ? padded : n_bytes;
        } else {
            memset(data, 0x5a, n + DISK_SECTOR);
            disk_read(disk, data, offset, n_bytes);
            n_read += disk->direct ? padded : n_bytes;
            for (size_t j = 0; j < n_bytes; j++) {
                if (known[offset + j] && data[j] != copy[offset + j]) wrong = "other bytes came back";
            }
            for (size_t j = n_bytes; j < n_bytes + DISK_SECTOR; j++) {
                if (data[j] != 0x5a) wrong = "bytes behind those that were asked for were written";
            }
        }
        if (disk->n_read != n_read || disk->n_written != n_written) wrong = "miscounted";
    }
    munmap(copy, n);
    munmap(known, n);
    munmap(data, n + DISK_SECTOR);
    return wrong;
}

static void test_what_was_written_comes_back(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    Disk disk;
    disk_open(&disk, directory, SECTORS * DISK_SECTOR - 1, 0);
    print_message("%s: %s\n", directory, disk.direct ? "O_DIRECT" : "through the page cache");
    assert_int_equal(disk.n_bytes, SECTORS * DISK_SECTOR);
    for (uint64_t seed = 0; seed < 3; seed++) {
        const char *wrong = compare_with_memory(&disk, seed, 200);
        if (wrong) fail_msg("%s", wrong);
    }
    disk_close(&disk);
    remove_directory(directory);
}

// Both queues of a rank at a time, and two ranks in one directory.
typedef struct {
    Disk *disk;
    unsigned char *data;
    size_t offset, n_bytes;
    bool writes;
} Transfer;

static void run_transfer(void *argument) {
    const Transfer *t = (const Transfer *)argument;
    if (t->writes) disk_write(t->disk, t->data, t->offset, t->n_bytes);
    else disk_read(t->disk, t->data, t->offset, t->n_bytes);
}

// A new file reads as zeros, its first sector, too, with which O_DIRECT was tried.
static void test_a_new_file_is_zero(void **state) {
    (void)state;
    char directory[256];
    Disk disk;
    make_directory(directory);
    const size_t n = SECTORS * DISK_SECTOR;
    unsigned char *data = new_pages(n);
    memset(data, 0x5a, n);
    disk_open(&disk, directory, n, 0);
    disk_read(&disk, data, 0, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(data[i], 0);
    disk_close(&disk);
    munmap(data, n);
    remove_directory(directory);
}

static void test_two_queues_and_two_ranks(void **state) {
    (void)state;
    enum { PARTS = 8, PART = 5 * DISK_SECTOR, USED = PART - 123 };
    char directory[256];
    make_directory(directory);
    Disk disks[2];
    unsigned char *out = new_pages(2 * PARTS * PART), *in = new_pages(2 * PARTS * PART);
    for (size_t i = 0; i < 2 * PARTS * PART; i++) out[i] = (unsigned char)random_mix(i);
    for (int rank = 0; rank < 2; rank++) disk_open(&disks[rank], directory, PARTS * PART, rank);
    assert_int_equal(count_files(directory), 0);
    Queues *queues = queues_open(QUEUE_THREADS, 0);
    for (int part = 0; part < PARTS; part++) {
        QueueEvent stashed = {0, 0};
        for (int rank = 0; rank < 2; rank++) {
            size_t at = (size_t)part * PART, there = at + (size_t)rank * PARTS * PART;
            Transfer write = {&disks[rank], out + there, at, USED, true};
            Transfer read = {&disks[rank], in + there, at, USED, false};
            queue_call(queues, QUEUE_STASH, run_transfer, &write, sizeof(write));
            queue_record(queues, QUEUE_STASH, &stashed);
            queue_await(queues, QUEUE_FETCH, &stashed);
            queue_call(queues, QUEUE_FETCH, run_transfer, &read, sizeof(read));
        }
        queues_wait(queues);
    }
    queues_close(queues);
    for (size_t part = 0; part < 2 * PARTS; part++) assert_memory_equal(in + part * PART, out + part * PART, USED);
    for (int rank = 0; rank < 2; rank++) {
        const size_t n = PARTS * (disks[rank].direct ? size_round_up(USED, DISK_SECTOR) : USED);
        assert_int_equal(disks[rank].n_read, n);
        assert_int_equal(disks[rank].n_written, n);
        disk_close(&disks[rank]);
    }
    munmap(out, 2 * PARTS * PART);
    munmap(in, 2 * PARTS * PART);
    remove_directory(directory);
}

// A transfer that is larger than any that the kernel does at once, into pages that lie behind each other many times.
static void test_a_transfer_beyond_2_gib(void **state) {
    (void)state;
    const size_t n = (size_t)5 << 29, n_pages = 1 << 26;
    char directory[256];
    make_directory(directory);
    const size_t available = disk_available(directory);
    Disk disk;
    disk_open(&disk, directory, available > 2 * n ? n : 1, 0);
    if (disk.n_bytes < n || !disk.direct) {  // no room, or the file might be in memory
        disk_close(&disk);
        remove_directory(directory);
        SKIP_AS("there is no room for a swap file of this size, or it might be in memory");
    }
    int fd = memfd_create("test_disk", 0);
    assert_int_equal(ftruncate(fd, (off_t)n_pages), 0);
    unsigned char *pages = new_pages(n), sector[2 * DISK_SECTOR], *last = disk_sector_in(sector);
    for (size_t at = 0; at < n; at += n_pages) {
        assert_true(mmap(pages + at, n_pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == pages + at);
    }
    memset(pages, 1, n_pages);
    memset(last, 2, DISK_SECTOR);
    disk_write(&disk, last, n - DISK_SECTOR, DISK_SECTOR);
    disk_read(&disk, pages, 0, n);  // zeros, which the file system makes, and the last sector
    assert_int_equal(pages[n - 1], 2);
    assert_int_equal(pages[n - DISK_SECTOR], 2);
    assert_int_equal(pages[n - DISK_SECTOR - 1], 0);
    if (getenv("TEST_ALL")) {
        for (size_t i = 0; i < n_pages; i++) pages[i] = (unsigned char)(i >> 12);
        disk_write(&disk, pages, 0, n);
        disk_read(&disk, last, n - 7 * DISK_SECTOR, DISK_SECTOR);
        assert_int_equal(last[0], (unsigned char)-7);
    }
    disk_close(&disk);
    munmap(pages, n);
    close(fd);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Refused at the start, or a bug

typedef struct {
    const char *directory;
    size_t n_bytes, offset, length, shift;
    size_t file_limit;
} Attempt;

static void attempt_open(void *argument) {
    const Attempt *attempt = (const Attempt *)argument;
    Disk disk;
    if (attempt->file_limit > 0) {
        struct rlimit limit = {attempt->file_limit, attempt->file_limit};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) abort();
    }
    disk_open(&disk, attempt->directory, attempt->n_bytes, 0);
}

// Nothing is forbidden to root.
static void attempt_open_as_nobody(void *argument) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(97);
    attempt_open(argument);
}

static void attempt_read(void *argument) {
    const Attempt *attempt = (const Attempt *)argument;
    Disk disk;
    disk_open(&disk, attempt->directory, attempt->n_bytes, 0);
    disk_read(&disk, new_pages(1 << 20) + attempt->shift, attempt->offset, attempt->length);
}

static void attempt_write(void *argument) {
    const Attempt *attempt = (const Attempt *)argument;
    Disk disk;
    disk_open(&disk, attempt->directory, attempt->n_bytes, 0);
    disk_write(&disk, new_pages(1 << 20) + attempt->shift, attempt->offset, attempt->length);
}

static void test_directories_that_do_not_serve(void **state) {
    (void)state;
    char directory[256], longer[PATH_MAX];
    make_directory(directory);
    Attempt missing = {in_directory(directory, "missing"), 1, 0, 0, 0, 0};
    expect_die(attempt_open, &missing, "--swap-dir|missing: No such file|Make the directory");
    write_file(in_directory(directory, "file"), "", 0);
    Attempt file = {in_directory(directory, "file"), 1, 0, 0, 0, 0};
    expect_die(attempt_open, &file, "is not a directory|Choose another --swap-dir");
    memset(longer, '/', sizeof(longer));
    memcpy(longer, directory, strlen(directory));
    longer[PATH_MAX - 10] = 0;
    Attempt too_long = {longer, 1, 0, 0, 0, 0};
    expect_die(attempt_open, &too_long, "too long");
    assert_int_equal(chmod(directory, 0555), 0);
    Attempt read_only = {directory, 1, 0, 0, 0, 0};
    expect_die(attempt_open_as_nobody, &read_only, "can't make a file there: Permission denied|--swap-dir");
    assert_int_equal(chmod(directory, 0700), 0);
    remove_directory(directory);
}

static void test_wrong_transfers_are_bugs(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    const size_t n = 8 * DISK_SECTOR;
    Attempt attempts[] = {{directory, n, n, 1, 0, 0},
                          {directory, n, 0, n + 1, 0, 0},
                          {directory, n, n - DISK_SECTOR, DISK_SECTOR + 1, 0, 0},
                          {directory, n, SIZE_MAX - DISK_SECTOR + 1, DISK_SECTOR, 0, 0},
                          {directory, n, DISK_SECTOR, SIZE_MAX - DISK_SECTOR + 1, 0, 0},
                          {directory, n, 512, 512, 0, 0},
                          {directory, n, 0, DISK_SECTOR, 16, 0}};
    for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++) {
        const char *words = i < 5 ? "beyond the end|is a bug" : "not a multiple|is a bug";
        expect_die(attempt_read, &attempts[i], words);
        expect_die(attempt_write, &attempts[i], words);
    }
    Attempt good[] = {{directory, n, n - DISK_SECTOR, DISK_SECTOR, 0, 0}, {directory, n, n, 0, 0, 0},
                      {directory, 0, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        expect_exit(attempt_read, &good[i], 0, "");
        expect_exit(attempt_write, &good[i], 0, "");
    }
    remove_directory(directory);
}

static void test_a_limit_on_file_sizes(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    Attempt attempt = {directory, 1 << 20, 0, 0, 0, 1 << 19};
    expect_die(attempt_open, &attempt, "1048576 bytes are needed|524288|ulimit -f");
    attempt.file_limit = 1 << 20;
    expect_exit(attempt_open, &attempt, 0, "");
    remove_directory(directory);
}

// Real file systems that are full and read-only, where this user may mount some.
static void test_a_full_disk(void **state) {
    (void)state;
    char directory[256], command[600];
    make_directory(directory);
    snprintf(command, sizeof(command), "mount -t tmpfs -o size=1m tmpfs '%s' 2>/dev/null", directory);
    if (system(command) != 0) {
        remove_directory(directory);
        SKIP_AS("nothing can be mounted here");
    }
    Attempt fits = {directory, 1 << 20, 0, 0, 0, 0}, too_large = {directory, (1 << 20) + 1, 0, 0, 0, 0};
    expect_exit(attempt_open, &fits, 0, "");
    expect_die(attempt_open, &too_large,
               "1052672 bytes are needed, 1048576 are free|No space left|Choose another --swap-dir or offload less");
    snprintf(command, sizeof(command), "mount -o remount,ro '%s'", directory);
    assert_int_equal(system(command), 0);
    expect_die(attempt_open, &fits, "can't make a file there: Read-only file system|--swap-dir");
    snprintf(command, sizeof(command), "umount '%s'", directory);
    assert_int_equal(system(command), 0);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// A process that is killed leaves nothing

static void test_a_killed_process_leaves_nothing(void **state) {
    (void)state;
    char directory[256], ready;
    make_directory(directory);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        Disk disk;
        disk_open(&disk, directory, 64 << 20, 1);
        disk_write(&disk, new_pages(1 << 20), 0, 1 << 20);
        if (write(ends[1], "r", 1) == 1) pause();
        _exit(1);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    assert_int_equal(count_files(directory), 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(count_files(directory), 0);
    close(ends[0]);
    close(ends[1]);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Faults

static int scenario(const char *name, const char *directory) {
    Disk disk;
    disk_open(&disk, directory, SECTORS * DISK_SECTOR, strcmp(name, "rank 1") == 0);
    const char *wrong = compare_with_memory(&disk, 7, 300);
    if (wrong) printf("wrong: %s\n", wrong);
    else printf("right, %s\n", disk.direct ? "direct" : "buffered");
    return wrong != NULL;
}

// What `environment` makes of a scenario: its exit status, and in `message` all that it says.
static int run_faulty(const char *environment, const char *name, const char *directory, char *message, size_t n) {
    char program[512], command[2048];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    assert_true(length > 0);
    program[length] = 0;
    snprintf(command, sizeof(command), "exec 1>&2; %s LD_PRELOAD=build/interpose.so exec '%s' --scenario '%s' '%s'",
             environment, program, name, directory);
    return run_child(run_shell_command, command, message, n);
}

static void expect_faulty(const char *environment, const char *name, int status, const char *words) {
    char directory[256], message[4096], part[256];
    make_directory(directory);
    int actual = run_faulty(environment, name, directory, message, sizeof(message));
    if (actual != status) fail_msg("%s: status %d, saying: %s", environment, actual, message);
    for (const char *word = words; *word; word += strcspn(word, "|") + (word[strcspn(word, "|")] == '|')) {
        snprintf(part, sizeof(part), "%.*s", (int)strcspn(word, "|"), word);
        if (!strstr(message, part)) fail_msg("%s: '%s' is not in: %s", environment, part, message);
    }
    if (status == 1) {  // one message of one line
        const char *start = strstr(message, "train_gpt: ");
        assert_non_null(start);
        assert_null(strstr(start + 1, "train_gpt: "));
        assert_ptr_equal(strchr(start, '\n'), message + strlen(message) - 1);
    }
    assert_int_equal(count_files(directory), 0);
    remove_directory(directory);
}

static void test_faults(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    SKIP_AS("the address sanitizer does not get on with another library before it");
#endif
    char directory[256], message[4096];
    make_directory(directory);
    assert_int_equal(run_faulty("", "plain", directory, message, sizeof(message)), 0);
    const bool direct = strstr(message, "right, direct") != NULL;
    remove_directory(directory);
    const char *usual = direct ? "right, direct" : "right, buffered";

    expect_faulty("INTERPOSE_SHORT=1", "plain", 0, usual);
    expect_faulty("INTERPOSE_SHORT=1 INTERPOSE_SWAP_ZEROS=1", "plain", 0, usual);
    expect_faulty("INTERPOSE_SHORT=1 INTERPOSE_SWAP_BUFFERED=1", "plain", 0, "right, buffered");
    expect_faulty("INTERPOSE_SWAP_BUFFERED=1", "plain", 0, "right, buffered|note: |O_DIRECT");
    expect_faulty("INTERPOSE_SWAP_BUFFERED=2", "plain", 0, "right, buffered|note: |O_DIRECT");
    make_directory(directory);
    assert_int_equal(run_faulty("INTERPOSE_SWAP_BUFFERED=1", "rank 1", directory, message, sizeof(message)), 0);
    assert_null(strstr(message, "note"));  // said once
    remove_directory(directory);

    const char *full = "--swap-dir|262144 bytes are needed|are free: No space left|offload less";
    expect_faulty("INTERPOSE_SWAP_FULL=1", "plain", 1, full);
    expect_faulty("INTERPOSE_SWAP_FULL=1 INTERPOSE_SWAP_ZEROS=1", "plain", 1, full);
    expect_faulty("INTERPOSE_SWAP_FAIL=20", "plain", 1, "train_gpt_swap_|at offset|Input/output error|--swap-dir");
    expect_faulty("INTERPOSE_SWAP_FAIL=21", "plain", 1, "train_gpt_swap_|at offset|Input/output error|--swap-dir");
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--scenario") == 0) return scenario(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_written_comes_back),
        cmocka_unit_test(test_a_new_file_is_zero),
        cmocka_unit_test(test_two_queues_and_two_ranks),
        cmocka_unit_test(test_a_transfer_beyond_2_gib),
        cmocka_unit_test(test_directories_that_do_not_serve),
        cmocka_unit_test(test_wrong_transfers_are_bugs),
        cmocka_unit_test(test_a_limit_on_file_sizes),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_a_killed_process_leaves_nothing),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
