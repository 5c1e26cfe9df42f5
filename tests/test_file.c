// test_file.c - file.h: transfers that are complete or say why not, whatever the kernel does; the hash, against one
// written another way; and files that take their name only when they are whole.
#include "test_helpers.h"

#include <errno.h>
#include <fcntl.h>

// What the next calls do: the header's read and write are these.
typedef enum { WELL, BADLY, NOTHING, FAIL } Mode;
static Mode mode;
static int n_calls;

// How much of n bytes a call moves; below 0: it fails.
static ssize_t part_of(size_t n) {
    n_calls++;
    if (mode == NOTHING) return 0;
    if (mode == FAIL && n_calls > 3) {
        errno = EIO;
        return -1;
    }
    if (mode == BADLY && n_calls % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    const size_t most = mode == WELL ? n : 1 + (size_t)n_calls % 5;
    return (ssize_t)(n < most ? n : most);
}

static ssize_t test_write(int fd, const void *data, size_t n) {
    const ssize_t part = part_of(n);
    return part > 0 ? write(fd, data, (size_t)part) : part;
}

static ssize_t test_read(int fd, void *data, size_t n) {
    const ssize_t part = part_of(n);
    return part > 0 ? read(fd, data, (size_t)part) : part;
}

#define write test_write
#define read test_read
#include "../dev/file.h"
#include "../dev/file.h"
#undef write
#undef read

static char directory[256];

static int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    return 0;
}

static int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

static void set_mode(Mode next) {
    mode = next;
    n_calls = 0;
    errno = 0;
}

static int open_new(const char *name) {
    int fd = open(in_directory(directory, "%s", name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void test_transfers_are_complete(void **state) {
    (void)state;
    char data[1000], back[1000];
    for (size_t i = 0; i < sizeof(data); i++) data[i] = (char)(i * 7 % 251);
    static const Mode modes[] = {WELL, BADLY};
    for (int m = 0; m < 2; m++) {
        for (size_t n = 0; n <= sizeof(data); n = n < 12 ? n + 1 : n + 494) {
            int fd = open_new("transfer");
            set_mode(modes[m]);
            assert_true(file_write(fd, data, n));
            assert_int_equal(lseek(fd, 0, SEEK_END), n);
            assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
            memset(back, 0x5a, sizeof(back));
            assert_true(file_read(fd, back, n));
            assert_memory_equal(back, data, n);
            if (n < sizeof(back)) assert_int_equal(back[n], 0x5a);
            if (m == 1 && n > 100) assert_true(n_calls > 100);
            close(fd);
        }
    }
}

// A device that takes nothing is full; the end of a file is no error; an error keeps its number.
static void test_what_is_not_complete_says_why(void **state) {
    (void)state;
    char data[100] = {0};
    int fd = open_new("short");
    set_mode(NOTHING);
    assert_false(file_write(fd, data, 10));
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(n_calls, 1);
    set_mode(FAIL);
    assert_false(file_write(fd, data, 100));
    assert_int_equal(errno, EIO);
    assert_int_equal(n_calls, 4);
    assert_int_equal(lseek(fd, 0, SEEK_END), 2 + 3 + 4);
    set_mode(WELL);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    errno = EBADF;
    assert_false(file_read(fd, data, 10));  // 9 are there
    assert_int_equal(errno, 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    set_mode(FAIL);
    assert_false(file_read(fd, data, 100));
    assert_int_equal(errno, EIO);
    set_mode(WELL);
    close(fd);
    assert_false(file_read(fd, data, 1));
    assert_int_equal(errno, EBADF);
    assert_false(file_write(fd, data, 1));
    assert_int_equal(errno, EBADF);
}

// For each word of four bytes, least first: xor, times 2^64 divided by the golden ratio (a sum of shifted numbers
// here), folded by 29 bits.
static uint64_t hash_by_hand(uint64_t hash, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i + 3 < n; i += 4) {
        hash ^= bytes[i] + 256ull * bytes[i + 1] + 65536ull * bytes[i + 2] + 16777216ull * bytes[i + 3];
        uint64_t product = 0;
        for (int bit = 0; bit < 64; bit++) product += 11400714819323198485ull >> bit & 1 ? hash << bit : 0;
        hash = product;
        hash ^= hash / 536870912ull;
    }
    return hash;
}

static void test_hash(void **state) {
    (void)state;
    unsigned char bytes[101];
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (unsigned char)(i * i + 3);
    assert_int_equal(file_hash(12345, bytes, 0), 12345);
    assert_int_equal(file_hash(12345, bytes, 3), 12345);
    for (size_t n = 0; n <= 100; n++) {
        assert_int_equal(file_hash(n, bytes, n), hash_by_hand(n, bytes, n));
        assert_int_equal(file_hash(7, bytes + 1, n), hash_by_hand(7, bytes + 1, n));  // no alignment is needed
    }
    // In two parts it is the same, and every bit of every whole word counts.
    const uint64_t whole = file_hash(0, bytes, 100);
    for (size_t cut = 0; cut <= 100; cut += 4) {
        assert_int_equal(file_hash(file_hash(0, bytes, cut), bytes + cut, 100 - cut), whole);
    }
    for (int bit = 0; bit < 800; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_not_equal(file_hash(0, bytes, 100), whole);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

static void test_commit(void **state) {
    (void)state;
    set_mode(WELL);
    char partial[512], path[512];
    snprintf(partial, sizeof(partial), "%s/name.partial", directory);
    snprintf(path, sizeof(path), "%s/name", directory);
    write_file(path, "old", 3);
    int fd = open_new("name.partial");
    assert_true(file_write(fd, "new one", 7));
    assert_true(file_commit(fd, partial, path, directory));
    assert_int_equal(fcntl(fd, F_GETFD), -1);  // it is closed
    assert_int_equal(access(partial, F_OK), -1);
    size_t n;
    char *bytes = read_file(path, &n);
    assert_int_equal(n, 7);
    assert_string_equal(bytes, "new one");
    free(bytes);
    // Nowhere to put it: what was there stays.
    fd = open_new("name.partial");
    assert_false(file_commit(fd, partial, in_directory(directory, "none/name"), directory));
    assert_int_equal(errno, ENOENT);
    assert_int_equal(access(partial, F_OK), 0);
    fd = open_new("name.partial");
    assert_false(file_commit(fd, partial, path, in_directory(directory, "none")));
    assert_int_equal(errno, ENOENT);
    assert_false(file_commit(-1, partial, path, directory));
    assert_int_equal(errno, EBADF);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfers_are_complete),
        cmocka_unit_test(test_what_is_not_complete_says_why),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_commit),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
