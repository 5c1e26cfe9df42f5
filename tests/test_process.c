// test_process.c - process.h: what control groups allow of the processors' time, on machines that a test makes of
// files, and what the kernel says of memory.
#include "test_helpers.h"

#include <sys/mman.h>

#include "../dev/process.h"

// ---------------------------------------------------------------------------------------------------------------
// Control groups, as files that a test makes

static char machine[256];  // the root of a machine that is not there

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

// Words of a line of /proc, between any spaces; octal escapes are decoded, what does not fit is cut.
static void test_words(void **state) {
    (void)state;
    static const char line[] = "32 31 0:29 /a\\040b  last\\134\n";
    static const char *const words[] = {"32", "31", "0:29", "/a b", "last\\"};
    char word[16];
    for (int k = 0; k < 5; k++) {
        assert_true(process_word(line, k, word, sizeof(word)));
        assert_string_equal(word, words[k]);
    }
    assert_false(process_word(line, 5, word, sizeof(word)));
    assert_false(process_word(line, 100, word, sizeof(word)));
    assert_false(process_word("", 0, word, sizeof(word)));
    assert_true(process_word(line, 2, word, 3));
    assert_string_equal(word, "0:");
}

static void test_lists(void **state) {
    (void)state;
    assert_true(process_listed("cpu", "cpu"));
    assert_true(process_listed("cpuacct,cpu", "cpu"));
    assert_true(process_listed("cpu,cpuacct", "cpu"));
    assert_true(process_listed("rw,cpu,x", "cpu"));
    assert_false(process_listed("cpuacct", "cpu"));
    assert_false(process_listed("acpu,cpus", "cpu"));
    assert_false(process_listed("", "cpu"));
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

static void test_lines_of_proc(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    const char *path = in_directory(directory, "status");
    static const char text[] = "VmHWM:\t     10 kB\nRssAnon:\t    1234 kB\nMemAvailable: 99999999999 kB\nNone:\n";
    write_file(path, text, strlen(text));
    assert_int_equal(process_bytes_of(path, "RssAnon:"), 1234 * 1024);
    assert_int_equal(process_bytes_of(path, "VmHWM:"), 10240);
    assert_int_equal(process_bytes_of(path, "MemAvailable:"), 99999999999ull * 1024);
    assert_int_equal(process_bytes_of(path, "None:"), 0);
    assert_int_equal(process_bytes_of(path, "Missing:"), 0);
    assert_int_equal(process_bytes_of(in_directory(directory, "none"), "RssAnon:"), 0);
    assert_int_equal(process_bytes_of(directory, "RssAnon:"), 0);
    write_file(path, "", 0);
    assert_int_equal(process_bytes_of(path, "RssAnon:"), 0);
    remove_directory(directory);
}

// 32 MiB that are touched are in RAM, and what was only taken is not.
static void test_memory_in_ram(void **state) {
    (void)state;
    if (getenv("TEST_RUNNER") != NULL) SKIP_AS("%s has memory of its own", getenv("TEST_RUNNER"));
    enum { N = 32 << 20, SLACK = 2 << 20 };
    const size_t before = process_rss_anonymous();
    assert_true(before > 0);
    char *bytes = (char *)mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(bytes != MAP_FAILED);
    assert_true(process_rss_anonymous() < before + SLACK);
    for (size_t i = 0; i < N; i += 4096) bytes[i] = 1;
    const size_t touched = process_rss_anonymous();
    assert_true(touched >= before + N);
    assert_true(touched < before + N + SLACK);
    munmap(bytes, N);
    assert_true(process_rss_anonymous() < before + SLACK);
}

static void test_memory_available(void **state) {
    (void)state;
    const size_t available = process_memory_available();
    assert_true(available > 0);
    assert_true(available <= process_bytes_of("/proc/meminfo", "MemTotal:"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota_of_version_2),
        cmocka_unit_test(test_quota_of_version_1),
        cmocka_unit_test(test_quota_of_both_versions),
        cmocka_unit_test(test_quota_of_a_part_that_is_mounted),
        cmocka_unit_test(test_quota_of_odd_files),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_lines_of_proc),
        cmocka_unit_test(test_memory_in_ram),
        cmocka_unit_test(test_memory_available),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
