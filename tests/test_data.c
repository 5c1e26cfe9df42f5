// test_data.c - the token loader, the tokenizer and the programs that make token files.
//
// Run it in the root of the repository. MAKE_TOKENS names the make_tokens program (default: build/make_tokens, and if
// that isn't there, one that is compiled for the test).
#include "test_helpers.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

// What the next reads do: the loader's pread is this one.
typedef enum { READ_WELL, READ_BADLY, READ_END, READ_ERROR } ReadMode;
static ReadMode read_mode = READ_WELL;
static int n_reads = 0;

static ssize_t test_pread(int file, void *buffer, size_t n_bytes, off_t offset) {
    n_reads++;
    if (read_mode == READ_ERROR) {
        errno = EIO;
        return -1;
    }
    if (read_mode == READ_END) return 0;
    if (read_mode == READ_BADLY) {  // interrupted two times of three, and then one to seven bytes
        if (n_reads % 3 != 0) {
            errno = EINTR;
            return -1;
        }
        size_t most = 1 + (size_t)n_reads % 7;
        n_bytes = n_bytes < most ? n_bytes : most;
    }
    return pread(file, buffer, n_bytes, offset);
}

#define pread test_pread
#include "../data/loader.h"
#include "../data/loader.h"
#undef pread
#include "../data/tokenizer.h"
#include "../data/tokenizer.h"

static char directory[256];
static char make_tokens[PATH_MAX];

// ---------------------------------------------------------------------------------------------------------------
// Token files

// The first four entries of a header: for tokens magic, version, number of tokens, vocabulary.
static void put_header(unsigned char *header, uint32_t magic, uint32_t version, uint32_t third, uint32_t fourth) {
    const uint32_t entries[4] = {magic, version, third, fourth};
    memset(header, 0, 1024);
    for (int i = 0; i < 16; i++) header[i] = (unsigned char)(entries[i / 4] >> (i % 4 * 8));
}

static const char *write_shard(const char *name, const uint16_t *tokens, size_t n, uint32_t vocabulary) {
    const char *path = in_directory(directory, "%s", name);
    unsigned char *bytes = malloc(1024 + 2 * n);
    put_header(bytes, 20240520, 1, (uint32_t)n, vocabulary);
    for (size_t i = 0; i < n; i++) {
        bytes[1024 + 2 * i] = (unsigned char)tokens[i];
        bytes[1025 + 2 * i] = (unsigned char)(tokens[i] >> 8);
    }
    write_file(path, bytes, 1024 + 2 * n);
    free(bytes);
    return path;
}

// A shard with the tokens first, first + 1, ...
static const char *write_counting_shard(const char *name, size_t first, size_t n) {
    uint16_t *tokens = malloc(2 * n);
    for (size_t i = 0; i < n; i++) tokens[i] = (uint16_t)(first + i);
    const char *path = write_shard(name, tokens, n, 0);
    free(tokens);
    return path;
}

typedef struct {
    uint16_t buffer[65];
    int32_t inputs[64], targets[64];
} Window;

static void read_window(const Loader *loader, size_t window, size_t vocabulary, Window *into) {
    memset(into, 0x55, sizeof(*into));
    loader_read(loader, window, vocabulary, into->buffer, into->inputs, into->targets);
}

static void test_every_target_once(void **state) {
    (void)state;
    for (size_t T = 1; T <= 9; T++) {
        for (size_t n = 2; n <= 4 * T + 3; n++) {
            Loader loader;
            loader_open(&loader, write_counting_shard("once.bin", 100, n), T);
            assert_int_equal(loader.n_tokens, n);
            assert_int_equal(loader.T, T);
            assert_int_equal(loader.n_shards, 1);
            assert_int_equal(loader.n_windows, (n - 1 + T - 1) / T);
            size_t target = 1;  // the next that has to come
            for (size_t w = 0; w < loader.n_windows; w++) {
                Window window;
                read_window(&loader, w, 50257, &window);
                size_t n_targets = 0;
                for (size_t i = 0; i < T; i++) {
                    size_t token = w * T + i;
                    assert_int_equal(window.inputs[i], token < n ? 100 + (int)token : 0);
                    if (window.targets[i] == -1) continue;
                    assert_int_equal(n_targets, i);
                    assert_int_equal(window.targets[i], 100 + (int)target);
                    assert_int_equal(window.inputs[i] + 1, window.targets[i]);
                    n_targets++;
                    target++;
                }
                assert_int_equal(n_targets, loader_window_targets(&loader, w));
                assert_true(n_targets > 0);
                assert_int_equal(window.inputs[T], 0x55555555);  // nothing behind the window was written
                assert_int_equal(window.targets[T], 0x55555555);
                assert_int_equal(window.buffer[T + 1], 0x5555);
            }
            assert_int_equal(target, n);
            loader_close(&loader);
        }
    }
}

static void test_shard_ends(void **state) {
    (void)state;
    const size_t n_tokens[3] = {23, 24, 25}, last_targets[3] = {6, 7, 8};
    for (int i = 0; i < 3; i++) {
        Loader loader;
        loader_open(&loader, write_counting_shard("end.bin", 0, n_tokens[i]), 8);
        assert_int_equal(loader.n_windows, 3);
        assert_int_equal(loader_window_targets(&loader, 0), 8);
        assert_int_equal(loader_window_targets(&loader, 1), 8);
        assert_int_equal(loader_window_targets(&loader, 2), last_targets[i]);
        Window window;
        read_window(&loader, 2, 50257, &window);
        assert_int_equal(window.inputs[0], 16);
        assert_int_equal(window.targets[last_targets[i] - 1], (int)n_tokens[i] - 1);
        if (last_targets[i] < 8) assert_int_equal(window.targets[last_targets[i]], -1);
        loader_close(&loader);
    }
    Loader loader;
    loader_open(&loader, write_counting_shard("end.bin", 0, 26), 8);
    assert_int_equal(loader.n_windows, 4);
    assert_int_equal(loader_window_targets(&loader, 3), 1);
    loader_close(&loader);
}

static void test_several_shards(void **state) {
    (void)state;
    write_counting_shard("s_3.bin", 3000, 2);
    write_counting_shard("s_1.bin", 1000, 10);
    write_counting_shard("s_2.bin", 2000, 9);
    write_counting_shard("s_[1].bin", 4000, 5);
    write_counting_shard("other.bin", 5000, 5);
    Loader loader;
    loader_open(&loader, in_directory(directory, "s_?.bin"), 4);
    assert_int_equal(loader.n_shards, 3);
    assert_int_equal(loader.n_tokens, 21);
    assert_int_equal(loader.n_windows, 3 + 2 + 1);
    const int first_input[6] = {1000, 1004, 1008, 2000, 2004, 3000};
    const size_t n_targets[6] = {4, 4, 1, 4, 4, 1};
    for (size_t w = 0; w < 6; w++) {
        Window window;
        read_window(&loader, w, 50257, &window);
        assert_int_equal(window.inputs[0], first_input[w]);
        assert_int_equal(loader_window_targets(&loader, w), n_targets[w]);
        assert_int_equal(window.targets[n_targets[w] - 1], first_input[w] + (int)n_targets[w]);
    }
    loader_close(&loader);

    loader_open(&loader, in_directory(directory, "s_[1].bin"), 4);  // the pattern matches s_1.bin
    assert_int_equal(loader.n_tokens, 10);
    loader_close(&loader);
    unlink(in_directory(directory, "s_1.bin"));
    loader_open(&loader, in_directory(directory, "s_[1].bin"), 4);  // now only the name itself is there
    assert_int_equal(loader.n_tokens, 5);
    loader_close(&loader);
}

static void test_vocabulary(void **state) {
    (void)state;
    const uint16_t tokens[2] = {1, 65535};
    const uint32_t said[4] = {0, 257, 65536, 67}, meant[4] = {50257, 257, 65536, 67};
    for (int i = 0; i < 4; i++) {
        Loader loader;
        loader_open(&loader, write_shard("vocabulary.bin", tokens, 2, said[i]), 1);
        assert_int_equal(loader.vocabulary, meant[i]);
        Window window;
        read_window(&loader, 0, 65536, &window);
        assert_int_equal(window.targets[0], 65535);  // not -1
        loader_close(&loader);
    }
}

static void test_epochs(void **state) {
    (void)state;
    const size_t counts[6] = {1, 2, 3, 4, 17, 1000};
    for (int c = 0; c < 6; c++) {
        size_t n = counts[c];
        Loader loader;
        loader_open(&loader, write_counting_shard("epochs.bin", 0, n + 1), 1);
        assert_int_equal(loader.n_windows, n);
        unsigned char *seen = malloc(n);
        for (uint64_t seed = 0; seed < 3; seed++) {
            for (size_t epoch = 0; epoch < 5; epoch++) {
                memset(seen, 0, n);
                for (size_t i = 0; i < n; i++) {
                    size_t window = loader_shuffled_window(&loader, seed, epoch * n + i);
                    assert_true(window < n);
                    assert_int_equal(seen[window]++, 0);
                }
            }
        }
        free(seen);
        loader_close(&loader);
    }
}

static void test_orders_differ(void **state) {
    (void)state;
    Loader loader;
    loader_open(&loader, write_counting_shard("orders.bin", 0, 1001), 1);
    size_t same_in_epoch = 0, same_in_seed = 0, same_unshuffled = 0;
    for (size_t i = 0; i < 1000; i++) {
        size_t window = loader_shuffled_window(&loader, 1, i);
        assert_int_equal(window, loader_shuffled_window(&loader, 1, i));
        same_in_epoch += window == loader_shuffled_window(&loader, 1, 1000 + i);
        same_in_seed += window == loader_shuffled_window(&loader, 2, i);
        same_unshuffled += window == i;
    }
    assert_true(same_in_epoch < 10 && same_in_seed < 10 && same_unshuffled < 10);  // 1 of 1000 is to be expected
    size_t far = loader_shuffled_window(&loader, 1, UINT64_MAX);
    assert_true(far < 1000);
    loader_close(&loader);
}

static uint64_t fingerprint_of(const char *pattern, size_t T) {
    Loader loader;
    loader_open(&loader, pattern, T);
    uint64_t fingerprint = loader.fingerprint;
    loader_close(&loader);
    return fingerprint;
}

static void test_fingerprint(void **state) {
    (void)state;
    static uint16_t tokens[5000];
    for (int i = 0; i < 5000; i++) tokens[i] = (uint16_t)i;
    uint64_t original = fingerprint_of(write_shard("f_1.bin", tokens, 5000, 0), 4);
    assert_int_equal(fingerprint_of(in_directory(directory, "f_1.bin"), 7), original);
    assert_int_equal(fingerprint_of(write_shard("other_name.bin", tokens, 5000, 0), 4), original);
    assert_int_not_equal(fingerprint_of(write_shard("f_1.bin", tokens, 4999, 0), 4), original);
    const int changed[4] = {0, 1023, 5000 - 1024, 4999};
    for (int i = 0; i < 4; i++) {
        tokens[changed[i]] ^= 0x100;
        assert_int_not_equal(fingerprint_of(write_shard("f_1.bin", tokens, 5000, 0), 4), original);
        tokens[changed[i]] ^= 0x100;
    }
    assert_int_equal(fingerprint_of(write_shard("f_1.bin", tokens, 5000, 0), 4), original);
    write_shard("f_2.bin", tokens, 2, 0);
    assert_int_not_equal(fingerprint_of(in_directory(directory, "f_?.bin"), 4), original);
    memset(tokens, 0, sizeof(tokens));  // now only the size tells
    uint64_t zeros = fingerprint_of(write_shard("f_1.bin", tokens, 5000, 0), 4);
    assert_int_not_equal(fingerprint_of(write_shard("f_1.bin", tokens, 4999, 0), 4), zeros);
}

typedef struct {
    const char *pattern;
    size_t T;
} Opening;

static void open_loader(void *argument) {
    const Opening *opening = argument;
    Loader loader;
    loader_open(&loader, opening->pattern, opening->T);
    loader_close(&loader);
}

static void expect_refused(const char *pattern, const char *words) {
    Opening opening = {pattern, 4};
    expect_die(open_loader, &opening, words);
}

static void test_damaged_headers(void **state) {
    (void)state;
    static unsigned char bytes[1024 + 20];
    const char *path = in_directory(directory, "damaged.bin");
    put_header(bytes, 20240520, 1, 10, 0);
    write_file(path, bytes, sizeof(bytes));
    Opening opening = {path, 4};
    expect_exit(open_loader, &opening, 0, "");  // whole, it is accepted
    for (size_t n = 0; n < 1024; n += 4) {
        write_file(path, bytes, n);
        expect_refused(path, n == 0 ? "damaged.bin|0 bytes" : "damaged.bin|cut short");
    }
    const size_t wrong_sizes[7] = {1, 3, 1023, 1024, 1025, 1024 + 18, 1024 + 19};
    for (int i = 0; i < 7; i++) {
        write_file(path, bytes, wrong_sizes[i]);
        expect_refused(path, "damaged.bin|bytes");
    }
    const struct {
        uint32_t magic, version, n_tokens, vocabulary;
        const char *words;
    } faults[12] = {
        {0, 1, 10, 0, "no token file|begins with 0 "},
        {20240521, 1, 10, 0, "no token file|20240521|20240520"},
        {20240326, 3, 10, 0, "no token file|20240326"},
        {20240801, 7, 5, 0, "Llama-3|20240801|GPT-2"},
        {20240520, 0, 10, 0, "version 0"},
        {20240520, 2, 10, 0, "version 2"},
        {20240520, 1, 9, 0, "1044 bytes|9 tokens|1042 bytes"},
        {20240520, 1, 11, 0, "1044 bytes|11 tokens|1046 bytes"},
        {20240520, 1, 5, 0, "1044 bytes|5 tokens|16 bits"},  // what 32-bit tokens would be
        {20240520, 1, 0, 0, "0 tokens"},
        {20240520, 1, 0xffffffffu, 0, "4294967295 tokens"},
        {20240520, 1, 10, 65537, "65537|65536"},
    };
    for (int i = 0; i < 12; i++) {
        put_header(bytes, faults[i].magic, faults[i].version, faults[i].n_tokens, faults[i].vocabulary);
        write_file(path, bytes, sizeof(bytes));
        expect_refused(path, faults[i].words);
    }
    for (size_t n = 0; n < 2; n++) {
        put_header(bytes, 20240520, 1, (uint32_t)n, 0);
        write_file(path, bytes, 1024 + 2 * n);
        expect_refused(path, n == 0 ? "0 tokens|at least 2" : "1 tokens|at least 2");
    }
}

static void open_unreadable(void *argument) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(97);
    open_loader(argument);
}

static void test_unsuitable_files(void **state) {
    (void)state;
    const uint16_t tokens[4] = {1, 2, 3, 4};
    const char *text = "In the beginning God created the heaven and the earth.\n";
    write_file(in_directory(directory, "text.bin"), text, strlen(text));
    expect_refused(in_directory(directory, "text.bin"), "text.bin|looks like text|make_tokens");
    expect_refused(in_directory(directory, "nothing*.bin"), "no file matches|nothing*.bin");
    expect_refused("", "no file matches");
    expect_refused(directory, "is a directory|*.bin");
    expect_refused(in_directory(directory, "text.bin/x.bin"), "cannot open|Not a directory");
    assert_int_equal(symlink("/nonexistent", in_directory(directory, "dangling_1.bin")), 0);
    expect_refused(in_directory(directory, "dangling_*.bin"), "cannot open|dangling_1.bin|No such file");
    assert_int_equal(mkfifo(in_directory(directory, "pipe.bin"), 0600), 0);
    expect_refused(in_directory(directory, "pipe.bin"), "pipe.bin|not a regular file");
    write_shard("v_1.bin", tokens, 4, 257);
    write_shard("v_2.bin", tokens, 4, 0);
    expect_refused(in_directory(directory, "v_?.bin"), "v_1.bin|257|v_2.bin|50257");

    Opening opening = {write_shard("unreadable.bin", tokens, 4, 0), 4};
    assert_int_equal(chmod(opening.pattern, 0), 0);
    expect_die(open_unreadable, &opening, "unreadable.bin|Permission denied");
    opening.pattern = in_directory(directory, "v_1.bin");
    opening.T = 0;
    expect_die(open_loader, &opening, "window|one token");
}

// Leaves the process room for `soft` open files, at most `hard`, and opens the 40 shards.
static void open_with_limit(unsigned soft, unsigned hard) {
    struct rlimit limit = {soft, hard};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(97);
    Opening opening = {in_directory(directory, "many_*.bin"), 4};
    open_loader(&opening);
}

static void open_raising(void *argument) {
    (void)argument;
    open_with_limit(20, 80);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != 80) _exit(96);
}

static void open_failing(void *argument) {
    (void)argument;
    open_with_limit(20, 30);
}

static void open_in_limit(void *argument) {
    (void)argument;
    open_with_limit(60, 80);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != 60) _exit(96);
}

static void test_many_shards(void **state) {
    (void)state;
    if (getenv("TEST_RUNNER") != NULL) SKIP_AS("%s keeps the limit of open files to itself", getenv("TEST_RUNNER"));
    char name[32];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "many_%02d.bin", i);
        write_counting_shard(name, 0, 3);
    }
    expect_exit(open_raising, NULL, 0, "");
    expect_exit(open_in_limit, NULL, 0, "");  // a limit that suffices stays as it is
    expect_die(open_failing, NULL, "many_|of 40|Too many open files|ulimit -n");
}

typedef struct {
    const char *path;
    size_t window, vocabulary;
    ReadMode mode;
} Reading;

static void open_and_read(void *argument) {
    const Reading *reading = argument;
    Loader loader;
    loader_open(&loader, reading->path, 4);
    Window window;
    read_mode = reading->mode;
    read_window(&loader, reading->window, reading->vocabulary, &window);
    loader_close(&loader);
}

static void test_ids(void **state) {
    (void)state;
    uint16_t tokens[11] = {0};
    const struct {
        size_t token, window;
        uint16_t id;
        const char *words;
    } faults[6] = {
        {0, 0, 67, "ids.bin|token 0 |id 67|vocabulary is 67"},       // only ever an input
        {10, 2, 67, "ids.bin|token 10 |id 67|vocabulary is 67"},     // only ever a target
        {4, 0, 68, "ids.bin|token 4 |id 68"},                        // the target of one window ...
        {4, 1, 68, "ids.bin|token 4 |id 68"},                        // ... and the input of the next
        {9, 2, 65535, "ids.bin|token 9 |id 65535|vocabulary is 67"},  // not taken for -1
        {10, 2, 65535, "ids.bin|token 10 |id 65535"},
    };
    for (int i = 0; i < 6; i++) {
        tokens[faults[i].token] = faults[i].id;
        Reading reading = {write_shard("ids.bin", tokens, 11, 67), faults[i].window, 67, READ_WELL};
        expect_die(open_and_read, &reading, faults[i].words);
        reading.vocabulary = (size_t)faults[i].id + 1;
        expect_exit(open_and_read, &reading, 0, "");
        tokens[faults[i].token] = 66;
        reading.path = write_shard("ids.bin", tokens, 11, 67);
        reading.vocabulary = 67;
        expect_exit(open_and_read, &reading, 0, "");
        reading.window = 3;
        expect_die(open_and_read, &reading, "window 3|3");
    }
}

static void test_bad_reads(void **state) {
    (void)state;
    const char *path = write_counting_shard("bad_reads.bin", 7, 3000);
    Loader well, badly;
    loader_open(&well, path, 64);
    read_mode = READ_BADLY;
    loader_open(&badly, path, 64);
    assert_int_equal(well.fingerprint, badly.fingerprint);
    assert_int_equal(well.n_windows, badly.n_windows);
    for (size_t w = 0; w < well.n_windows; w++) {
        static Window a, b;
        read_mode = READ_WELL;
        n_reads = 0;
        loader_read(&well, w, 50257, a.buffer, a.inputs, a.targets);
        assert_int_equal(n_reads, 1);
        read_mode = READ_BADLY;
        loader_read(&badly, w, 50257, b.buffer, b.inputs, b.targets);
        assert_true(n_reads > 10);
        assert_memory_equal(a.inputs, b.inputs, sizeof(a.inputs));
        assert_memory_equal(a.targets, b.targets, sizeof(a.targets));
    }
    read_mode = READ_WELL;
    loader_close(&well);
    loader_close(&badly);

    Reading reading = {path, 1, 50257, READ_END};
    expect_die(open_and_read, &reading, "bad_reads.bin|short read at offset 1032");
    reading.mode = READ_ERROR;
    expect_die(open_and_read, &reading, "bad_reads.bin|offset 1032|Input/output error");
}

static void read_while_cut(void *argument) {
    const char *path = argument;
    Loader loader;
    loader_open(&loader, path, 4);
    Window window;
    if (truncate(path, 1024 + 2 * 7) != 0) _exit(97);
    read_window(&loader, 0, 50257, &window);
    read_window(&loader, 1, 50257, &window);
}

static void test_cut_while_open(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof(path), "%s", write_counting_shard("cut.bin", 0, 20));
    expect_die(read_while_cut, path, "cut.bin|short read at offset 1038");
}

// More than 4 GiB of tokens, nearly all of them a hole in the file.
static void test_large_shard(void **state) {
    (void)state;
    const size_t n = ((size_t)1 << 31) + 5000;
    const char *path = in_directory(directory, "large_2.bin");
    unsigned char header[1024];
    put_header(header, 20240520, 1, (uint32_t)n, 0);
    write_file(path, header, sizeof(header));
    assert_int_equal(truncate(path, (off_t)(1024 + 2 * n)), 0);
    int file = open(path, O_WRONLY);
    assert_true(file >= 0);
    const unsigned char last[6] = {1, 0, 2, 0, 3, 0};
    assert_int_equal(pwrite(file, last, 6, (off_t)(1024 + 2 * (n - 3))), 6);
    const unsigned char around[4] = {4, 0, 5, 0};  // tokens 2^31 - 1 and 2^31
    assert_int_equal(pwrite(file, around, 4, (off_t)(1024 + 2 * (((size_t)1 << 31) - 1))), 4);
    close(file);
    write_counting_shard("large_1.bin", 10, 64 + 1);
    write_counting_shard("large_3.bin", 20, 64 + 1);

    Loader loader;
    loader_open(&loader, in_directory(directory, "large_?.bin"), 64);
    assert_int_equal(loader.n_tokens, n + 130);
    assert_int_equal(loader.n_windows, 1 + (n - 1 + 63) / 64 + 1);
    Window window;
    read_window(&loader, ((size_t)1 << 31) / 64, 50257, &window);  // token 2^31 - 1 is in the window before
    assert_int_equal(window.inputs[63], 4);
    assert_int_equal(window.targets[63], 5);
    size_t n_targets = loader_window_targets(&loader, loader.n_windows - 2);
    assert_int_equal(n_targets, (n - 1) % 64);
    read_window(&loader, loader.n_windows - 2, 50257, &window);
    assert_int_equal(window.targets[n_targets - 2], 2);
    assert_int_equal(window.targets[n_targets - 1], 3);
    assert_int_equal(window.targets[n_targets], -1);
    read_window(&loader, loader.n_windows - 1, 50257, &window);
    assert_int_equal(window.inputs[0], 20);
    loader_close(&loader);
    unlink(path);
}

// ---------------------------------------------------------------------------------------------------------------
// Text

#define REPLACED "\xef\xbf\xbd"

// What comes out for these bytes (to be freed), with the end of the text after them.
static char *shown(const char *bytes, size_t n, size_t *n_shown) {
    char *text = NULL;
    FILE *file = open_memstream(&text, n_shown);
    TextOut out;
    text_open(&out, file);
    text_put(&out, bytes, n);
    assert_true(text_flush(&out));
    fclose(file);
    return text;
}

static void test_utf8(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *shown;
    } cases[] = {
        {"plain text\n\tand tab", "plain text\n\tand tab"},
        {"", ""},
        {"\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80", "\xc3\xa9\xe6\xad\xa3\xf0\x9f\x98\x80"},
        {"\xe6\xad", REPLACED},                            // ends within a character
        {"\xe6\xad" "a", REPLACED "a"},                    // cut off by another
        {"\xe6\xad\xe6\xad\xa3", REPLACED "\xe6\xad\xa3"},  // cut off by the beginning of another
        {"\xf0\x9f\x98", REPLACED},
        {"\x80" "a\xbf", REPLACED "a" REPLACED},           // continuations of nothing
        {"\xc0\xaf", REPLACED REPLACED},                   // overlong
        {"\xc1\xbf", REPLACED REPLACED},
        {"\xe0\x80\xaf", REPLACED REPLACED REPLACED},
        {"\xe0\x9f\xbf", REPLACED REPLACED REPLACED},
        {"\xf0\x8f\xbf\xbf", REPLACED REPLACED REPLACED REPLACED},
        {"\xed\xa0\x80", REPLACED REPLACED REPLACED},      // surrogates
        {"\xed\xbf\xbf", REPLACED REPLACED REPLACED},
        {"\xf4\x90\x80\x80", REPLACED REPLACED REPLACED REPLACED},  // U+110000
        {"\xf5\x80\x80\x80", REPLACED REPLACED REPLACED REPLACED},
        {"\xff\xfe", REPLACED REPLACED},
        {"\x1b[31mred\x1b]0;title\x07", REPLACED "[31mred" REPLACED "]0;title" REPLACED},
        {"a\r\b\x7f\x0c\x01z", "a" REPLACED REPLACED REPLACED REPLACED REPLACED "z"},
        {"\xc2\x9b" "31m", REPLACED "31m"},                // ESC [ in one character
        {"\xc2\x80\xc2\x9f\xc2\xa0", REPLACED REPLACED "\xc2\xa0"},
        {"\xf4\x8f\xbf\xbf\xef\xbf\xbf", "\xf4\x8f\xbf\xbf\xef\xbf\xbf"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n;
        char *text = shown(cases[i].bytes, strlen(cases[i].bytes), &n);
        assert_string_equal(text, cases[i].shown);
        free(text);
    }
    size_t n;
    char *text = shown("a\0b", 3, &n);
    assert_string_equal(text, "a" REPLACED "b");
    free(text);
}

// Every number up to 2^21 - 1 in the form of a character of the shortest length: what is one comes out unchanged.
static void test_every_character(void **state) {
    (void)state;
    char *text = NULL;
    size_t n;
    FILE *file = open_memstream(&text, &n);
    TextOut out;
    text_open(&out, file);
    size_t expected = 0, n_wrong = 0;
    for (uint32_t c = 0; c < 0x200000; c++) {
        char bytes[4];
        size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = length; i-- > 1;) bytes[i] = (char)(0x80 | ((c >> 6 * (length - 1 - i)) & 0x3f));
        const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
        bytes[0] = (char)(lead[length] | c >> 6 * (length - 1));
        bool is_control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
        bool is_character = (c < 0xd800 || c > 0xdfff) && c <= 0x10ffff;
        rewind(file);
        text_put(&out, bytes, length);
        fflush(file);
        if (is_character && !is_control) {
            n_wrong += n != length || memcmp(text, bytes, length) != 0;
            expected++;
        } else {
            size_t n_replaced = is_character ? 1 : length;
            n_wrong += n != 3 * n_replaced || memcmp(text, REPLACED REPLACED REPLACED REPLACED, n) != 0;
        }
        n_wrong += out.n_pending != 0;
    }
    fclose(file);
    free(text);
    assert_int_equal(n_wrong, 0);
    assert_int_equal(expected, 0x110000 - 0x800 - 65 + 2);
}

static void test_write_error(void **state) {
    (void)state;
    TextOut out;
    text_open(&out, fopen("/dev/full", "w"));
    assert_non_null(out.file);
    text_put(&out, "lost", 4);
    assert_false(text_flush(&out));
    fclose(out.file);
    text_open(&out, fopen("/dev/full", "w"));
    assert_non_null(out.file);
    setvbuf(out.file, NULL, _IONBF, 0);
    text_put(&out, "lost", 4);  // fails here, so flushing has nothing to do
    assert_false(text_flush(&out));
    fclose(out.file);
}

// ---------------------------------------------------------------------------------------------------------------
// Tokenizers

static char *shown_ids(const Tokenizer *tokenizer, const int *ids, size_t n) {
    char *text = NULL;
    size_t n_shown;
    FILE *file = open_memstream(&text, &n_shown);
    TextOut out;
    text_open(&out, file);
    for (size_t i = 0; i < n; i++) tokenizer_put(tokenizer, &out, ids[i]);
    assert_true(text_flush(&out));
    fclose(file);
    return text;
}

static void test_byte_tokens(void **state) {
    (void)state;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, NULL, 257);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), 256);
    int32_t ids[16];
    assert_int_equal(tokenizer_encode(&tokenizer, "a\xe6\xad\xff", ids, 16), 4);
    const int32_t right[4] = {'a', 0xe6, 0xad, 0xff};
    assert_memory_equal(ids, right, sizeof(right));
    assert_int_equal(tokenizer_encode(&tokenizer, "", ids, 0), 0);
    assert_int_equal(tokenizer_encode(&tokenizer, "sixteen tokens !", ids, 16), 16);
    const int out[12] = {'H', 0xc3, 0xa9, 0xe6, 0xad, 256, 'x', 0x1b, '\n', 257, -1, 0xc3};
    char *text = shown_ids(&tokenizer, out, 12);
    assert_string_equal(text, "H\xc3\xa9" REPLACED "<|endoftext|>x" REPLACED "\n<257><-1>" REPLACED);
    free(text);
    tokenizer_close(&tokenizer);
}

static void test_no_tokenizer(void **state) {
    (void)state;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, NULL, 50257);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), 50256);
    const int ids[4] = {15496, 11, 50256, INT32_MIN};
    char *text = shown_ids(&tokenizer, ids, 4);
    assert_string_equal(text, "<15496><11><50256><-2147483648>");
    free(text);
    tokenizer_close(&tokenizer);
    tokenizer_open(&tokenizer, NULL, 67);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), -1);
    tokenizer_close(&tokenizer);
}

// A tokenizer file of five tokens, one with half a character and one of 255 bytes.
static size_t make_tokenizer(unsigned char *bytes) {
    put_header(bytes, 20240328, 2, 5, 4);
    size_t n = 1024;
    const char *tokens[5] = {"Hello", "\xe6\xad", "\xa3\x1b[0m", NULL, "<|endoftext|>"};
    for (int i = 0; i < 5; i++) {
        size_t length = tokens[i] != NULL ? strlen(tokens[i]) : 255;
        bytes[n++] = (unsigned char)length;
        if (tokens[i] != NULL) memcpy(bytes + n, tokens[i], length);
        else memset(bytes + n, 'z', length);
        n += length;
    }
    return n;
}

typedef struct {
    const char *path;
    size_t vocabulary;
} TokenizerOpening;

static void open_tokenizer(void *argument) {
    const TokenizerOpening *opening = argument;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, opening->path, opening->vocabulary);
    tokenizer_close(&tokenizer);
}

static void test_tokenizer_file(void **state) {
    (void)state;
    unsigned char bytes[2048];
    size_t n = make_tokenizer(bytes);
    const char *path = in_directory(directory, "tokenizer.bin");
    write_file(path, bytes, n);
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, path, 5);
    assert_int_equal(tokenizer_end_of_text(&tokenizer), 4);
    const int ids[8] = {0, 1, 2, 4, 1, 0, 5, -1};
    char *text = shown_ids(&tokenizer, ids, 8);
    assert_string_equal(text, "Hello\xe6\xad\xa3" REPLACED "[0m<|endoftext|>" REPLACED "Hello<5><-1>");
    free(text);
    const int longest = 3;
    text = shown_ids(&tokenizer, &longest, 1);
    assert_int_equal(strlen(text), 255);
    free(text);
    tokenizer_close(&tokenizer);
}

static void test_damaged_tokenizers(void **state) {
    (void)state;
    unsigned char bytes[2048];
    size_t n = make_tokenizer(bytes);
    const char *path = in_directory(directory, "damaged_tokenizer.bin");
    TokenizerOpening opening = {path, 5};
    write_file(path, bytes, n);
    expect_exit(open_tokenizer, &opening, 0, "");
    for (size_t cut = 0; cut < n; cut += cut < 1020 ? 4 : 1) {
        write_file(path, bytes, cut);
        expect_die(open_tokenizer, &opening, "damaged_tokenizer.bin|cut short");
    }
    bytes[n] = 0;
    write_file(path, bytes, n + 1);
    expect_die(open_tokenizer, &opening, "damaged_tokenizer.bin|1 bytes after the last token");
    bytes[1024 + 6] = 0;  // the length of token 1
    write_file(path, bytes, n);
    expect_die(open_tokenizer, &opening, "damaged_tokenizer.bin|token 1 is empty");

    const struct {
        uint32_t magic, version, vocabulary, end_of_text;
        const char *words;
    } faults[7] = {
        {20240520, 2, 5, 4, "no tokenizer file|20240520"},
        {20240328, 1, 5, 4, "version 1|only 2|llm.c"},
        {20240328, 3, 5, 4, "version 3"},
        {20240328, 2, 6, 4, "6 tokens|vocabulary is 5"},
        {20240328, 2, 50257, 50256, "50257 tokens|vocabulary is 5"},
        {20240328, 2, 5, 5, "token 5 ends|only 5"},
        {20240328, 2, 5, 0xffffffffu, "4294967295"},
    };
    for (int i = 0; i < 7; i++) {
        make_tokenizer(bytes);
        put_header(bytes, faults[i].magic, faults[i].version, faults[i].vocabulary, faults[i].end_of_text);
        write_file(path, bytes, n);
        expect_die(open_tokenizer, &opening, faults[i].words);
    }
    opening.path = directory;
    expect_die(open_tokenizer, &opening, "not a regular file");
    opening.path = in_directory(directory, "missing.bin");
    expect_die(open_tokenizer, &opening, "missing.bin|No such file");
}

static void encode_for(void *argument) {
    const TokenizerOpening *opening = argument;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, opening->path, opening->vocabulary);
    int32_t ids[3];
    tokenizer_encode(&tokenizer, "four", ids, 3);
}

static void test_unsuitable_prompts(void **state) {
    (void)state;
    TokenizerOpening opening = {NULL, 257};
    expect_die(encode_for, &opening, "prompt has 4 tokens|3");
    opening.vocabulary = 50257;
    expect_die(encode_for, &opening, "prompt needs byte tokens|257|50257");
    unsigned char bytes[2048];
    opening.path = in_directory(directory, "prompt_tokenizer.bin");
    write_file(opening.path, bytes, make_tokenizer(bytes));
    opening.vocabulary = 5;
    expect_die(encode_for, &opening, "prompt needs byte tokens|vocabulary is 5");
}

// ---------------------------------------------------------------------------------------------------------------
// Programs

// Runs make_tokens on a text; what it makes is in train.bin and val.bin.
static void run_make_tokens(const char *text, size_t n, int percent, int status, const char *words) {
    write_file(in_directory(directory, "text"), text, n);
    expect_command(status, words, "'%s' '%s/train.bin' '%s/val.bin' %d < '%s/text'", make_tokens, directory, directory,
                   percent, directory);
}

// The file must have this header and exactly these tokens.
static void expect_tokens(const char *name, const uint16_t *tokens, size_t n) {
    const char *path = in_directory(directory, "expected");
    write_shard("expected", tokens, n, 257);
    size_t n_expected, n_made;
    char *expected = read_file(path, &n_expected), *made = read_file(in_directory(directory, "%s", name), &n_made);
    assert_int_equal(n_made, n_expected);
    assert_memory_equal(made, expected, n_made);
    free(expected);
    free(made);
}

static void expect_no_outputs(void) {
    const char *names[4] = {"train.bin", "val.bin", "train.bin.tmp", "val.bin.tmp"};
    for (int i = 0; i < 4; i++) assert_int_equal(access(in_directory(directory, "%s", names[i]), F_OK), -1);
}

static void test_make_tokens(void **state) {
    (void)state;
    // half of the 19 bytes ends within the line "fgij", so the cut is behind it
    run_make_tokens("ab\ncd\xff\0\n\x1e" "fgij\nk\nlmn", 19, 50, 0, "");
    const uint16_t train[16] = {256, 'a', 'b', '\n', 'c', 'd', 255, 0, '\n', 256, 'f', 'g', 'i', 'j', '\n'};
    const uint16_t val[7] = {256, 'k', '\n', 'l', 'm', 'n'};
    expect_tokens("train.bin", train, 15);
    expect_tokens("val.bin", val, 6);
    Loader loader;
    loader_open(&loader, in_directory(directory, "train.bin"), 4);
    assert_int_equal(loader.vocabulary, 257);
    loader_close(&loader);

    // a separator at either beginning isn't doubled; one at an end, and empty documents, stay
    run_make_tokens("\x1e" "abc\n\x1e" "d\x1e\x1e", 9, 40, 0, "");
    const uint16_t separated[5] = {256, 'a', 'b', 'c', '\n'}, separated_val[4] = {256, 'd', 256, 256};
    expect_tokens("train.bin", separated, 5);
    expect_tokens("val.bin", separated_val, 4);
    assert_int_equal(access(in_directory(directory, "train.bin.tmp"), F_OK), -1);
    assert_int_equal(access(in_directory(directory, "val.bin.tmp"), F_OK), -1);

    const char *faults[4] = {"", "a\n", "one line\n", "\n"};
    unlink(in_directory(directory, "train.bin"));
    unlink(in_directory(directory, "val.bin"));
    for (int i = 0; i < 4; i++) {
        run_make_tokens(faults[i], strlen(faults[i]), 10, 1, "train_gpt: |no line end");
        expect_no_outputs();
    }
    run_make_tokens("a\n\x1e", 3, 10, 1, "val.bin|1 tokens");
    expect_no_outputs();
}

static void test_make_tokens_large(void **state) {
    (void)state;
    const size_t n = 5 * 1000 * 1000 + 7;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = i % 50 == 49 ? '\n' : (char)(i * 31 % 251);
    for (size_t i = 0; i < n; i++) text[i] = text[i] == 0x1e ? 'x' : text[i];
    run_make_tokens(text, n, 10, 0, "");
    Loader train, val;
    loader_open(&train, in_directory(directory, "train.bin"), 64);
    loader_open(&val, in_directory(directory, "val.bin"), 64);
    assert_int_equal(train.n_tokens + val.n_tokens, n + 2);
    size_t cut = train.n_tokens - 1;
    assert_true(cut >= n / 100 * 90 && cut <= n / 100 * 90 + 60 && text[cut - 1] == '\n');
    for (int part = 0; part < 2; part++) {
        const Loader *loader = part ? &val : &train;
        const char *expected = part ? text + cut : text;
        for (size_t w = 0; w < loader->n_windows; w++) {
            Window window;
            read_window(loader, w, 257, &window);
            size_t n_wrong = 0;
            for (size_t i = 0; i < loader_window_targets(loader, w); i++) {
                n_wrong += window.targets[i] != (unsigned char)expected[w * 64 + i];
            }
            assert_int_equal(n_wrong, 0);
        }
    }
    loader_close(&train);
    loader_close(&val);
    free(text);
}

static void test_make_tokens_errors(void **state) {
    (void)state;
    unlink(in_directory(directory, "train.bin"));
    unlink(in_directory(directory, "val.bin"));
    const char *usages[9] = {"", "a", "a b", "a b 0", "a b 100", "a b 10x", "a b ''", "a a 10", "a b 10 c"};
    for (int i = 0; i < 9; i++) {
        expect_command(2, "usage: make_tokens TRAIN.bin VAL.bin VALIDATION_PERCENT", "cd '%s'; '%s' %s </dev/null",
                       directory, make_tokens, usages[i]);
    }
    char text[4096];
    for (size_t i = 0; i < sizeof(text); i++) text[i] = i % 8 == 7 ? '\n' : 'a';
    write_file(in_directory(directory, "text"), text, sizeof(text));
    expect_command(1, "cannot read the text", "'%s' '%s/train.bin' '%s/val.bin' 10 < '%s'", make_tokens, directory,
                   directory, directory);
    expect_command(1, "cannot create|No such file", "'%s' '%s/train.bin' '%s/no/val.bin' 10 < '%s/text'", make_tokens,
                   directory, directory, directory);
    expect_no_outputs();
    // no room: 4 blocks of 512 bytes (or of 1024) are too few for 90 % of the tokens, first in one, then in the other
    for (int percent = 10; percent <= 90; percent += 80) {
        expect_command(1, percent == 10 ? "cannot write|train.bin|too large" : "cannot write|val.bin|too large",
                       "trap '' XFSZ; ulimit -f 4; '%s' '%s/train.bin' '%s/val.bin' %d < '%s/text'", make_tokens,
                       directory, directory, percent, directory);
        expect_no_outputs();
    }
    assert_int_equal(mkdir(in_directory(directory, "train.bin"), 0700), 0);
    expect_command(1, "cannot rename|train.bin|Is a directory", "'%s' '%s/train.bin' '%s/val.bin' 10 < '%s/text'",
                   make_tokens, directory, directory, directory);
    assert_int_equal(access(in_directory(directory, "train.bin.tmp"), F_OK), -1);
    assert_int_equal(rmdir(in_directory(directory, "train.bin")), 0);
}

// A program `bible` in the directory `name`: prints this shell script's output.
static void write_bible(const char *name, const char *script) {
    assert_int_equal(mkdir(in_directory(directory, "%s", name), 0700), 0);
    const char *path = in_directory(directory, "%s/bible", name);
    write_file(path, script, strlen(script));
    assert_int_equal(chmod(path, 0700), 0);
}

// Runs make_default.sh with this PATH; what it makes is in the directory `name`. Returns what it says (to be freed).
static char *run_make_default(const char *path, const char *name) {
    expect_command(0, "", "PATH='%s' data/make_default.sh '%s' '%s/%s' > '%s/said'", path, make_tokens, directory, name,
                   directory);
    expect_command(0, "train.bin\nval.bin\n", "ls -A '%s/%s' 1>&2", directory, name);  // and nothing else
    char *said = read_file(in_directory(directory, "said"), NULL);
    assert_non_null(strchr(said, '\n'));
    assert_string_equal(strchr(said, '\n'), "\n");  // one line
    return said;
}

// The tokens of the two files as bytes, a document's beginning as '\x1e', but for the one that begins val.bin.
static char *made_text(const char *name, size_t *n) {
    char *parts[2];
    size_t sizes[2];
    for (int part = 0; part < 2; part++) {
        const char *file = part ? "val.bin" : "train.bin";
        Loader loader;
        loader_open(&loader, in_directory(directory, "%s/%s", name, file), 64);
        assert_int_equal(loader.vocabulary, 257);
        loader_close(&loader);
        parts[part] = read_file(in_directory(directory, "%s/%s", name, file), &sizes[part]);
    }
    char *text = malloc(sizes[0] + sizes[1]);
    *n = 0;
    for (int part = 0; part < 2; part++) {
        const unsigned char *bytes = (const unsigned char *)parts[part];
        assert_int_equal(bytes[1024] | bytes[1025] << 8, 256);
        for (size_t i = part ? 1026 : 1024; i < sizes[part]; i += 2) {
            int token = bytes[i] | bytes[i + 1] << 8;
            text[(*n)++] = token == 256 ? '\x1e' : (char)token;
        }
        free(parts[part]);
    }
    text[*n] = '\0';
    return text;
}

static size_t count_documents(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += text[i] == '\x1e';
    return count;
}

static void path_before(char *path, size_t size, const char *name) {
    snprintf(path, size, "%s:%s", in_directory(directory, "%s", name), getenv("PATH"));
}

// A directory of everything that the usual directories have, but `bible`.
static void make_path_without_bible(void) {
    expect_command(0, "",
                   "cd '%s' && mkdir hidden && for d in /bin /usr/bin /usr/local/bin; do ln -sf $d/* hidden; done; "
                   "rm -f hidden/bible", directory);
}

static void test_make_default_bible(void **state) {
    (void)state;
    write_bible("good", "#!/bin/sh\n[ \"$*\" = '-f Gen1:1-Rev22:21' ] || exit 1\n"
                        "awk 'BEGIN { for (i = 0; i < 31102; i++) print (i < 20000 ? \"Ge\" : i < 31000 ? \"1Sm\" : "
                        "\"Rev\") int(i / 100) + 1 \":\" i % 100 + 1 \" And he said unto Ge1:1 number \" i \".\" }'\n");
    char path[4096];
    path_before(path, sizeof(path), "good");
    char *said = run_make_default(path, "from_bible");
    assert_non_null(strstr(said, "King James Bible"));
    free(said);
    size_t n;
    char *text = made_text("from_bible", &n);
    assert_int_equal(count_documents(text, n), 3);
    assert_memory_equal(text, "\x1e" "And he said unto Ge1:1 number 0.\nAnd he", 40);
    assert_non_null(strstr(text, "number 19999.\n\x1e" "And he said unto Ge1:1 number 20000.\n"));
    assert_non_null(strstr(text, "number 30999.\n\x1e" "And he said unto Ge1:1 number 31000.\n"));
    const char *last = "\nAnd he said unto Ge1:1 number 31101.\n";
    assert_string_equal(text + n - strlen(last), last);
    free(text);
}

// The project's own source, one document a file.
static void expect_source(const char *name, const char *said, const char *reason) {
    assert_non_null(strstr(said, "source files of this project"));
    assert_non_null(strstr(said, reason));
    size_t n, n_file;
    char *text = made_text(name, &n), *file = read_file("data/loader.h", &n_file);
    assert_int_equal(count_documents(text, n), strtol(strstr(said, " of ") + 4, NULL, 10));
    assert_true(count_documents(text, n) >= 6);
    const char *found = strstr(text, "\x1e// loader.h - ");
    assert_non_null(found);
    assert_memory_equal(found + 1, file, n_file);
    const char *order[6] = {"// loader.h - ", "#!/bin/sh\n# make_default.sh - ", "// make_tokens.c - ",
                            "// tokenizer.h - ", "// error.h - ", "// test_data.c - "};
    const char *before = text;
    for (int i = 0; i < 6; i++) {
        char beginning[64];
        snprintf(beginning, sizeof(beginning), "\x1e%s", order[i]);
        found = strstr(text, beginning);
        assert_true(found != NULL && found >= before);
        before = found;
    }
    free(text);
    free(file);
}

static void test_make_default_source(void **state) {
    (void)state;
    char *said = run_make_default(in_directory(directory, "hidden"), "from_source");
    expect_source("from_source", said, "not installed");
    free(said);
    const char *broken[4] = {
        "#!/bin/sh\necho Cannot open data file bible.data >&2\nexit 255\n",
        "#!/bin/sh\nexit 0\n",
        "#!/bin/sh\nawk 'BEGIN { for (i = 0; i < 31101; i++) print \"Ge1:1 word\" }'\n",
        "#!/bin/sh\nawk 'BEGIN { for (i = 0; i < 31102; i++) print \"1:1 word\" }'\n",
    };
    for (int i = 0; i < 4; i++) {
        char name[32], path[4096];
        snprintf(name, sizeof(name), "broken_%d", i);
        write_bible(name, broken[i]);
        path_before(path, sizeof(path), name);
        said = run_make_default(path, "from_broken");
        expect_source("from_broken", said, "does not print 31102 verses");
        free(said);
    }
}

static void test_make_default_here(void **state) {
    (void)state;
    char *said = run_make_default(getenv("PATH"), "from_here");
    if (system("bible -f Gen1:1 2>/dev/null </dev/null | grep -q '^Ge1:1 In the beginning'") != 0) {
        expect_source("from_here", said, "bible");
        free(said);
        return;
    }
    assert_non_null(strstr(said, "King James Bible"));
    size_t n;
    char *text = made_text("from_here", &n);
    assert_int_equal(n, 4137850 + 66);
    assert_int_equal(count_documents(text, n), 66);
    assert_memory_equal(text, "\x1eIn the beginning God created the heaven and the earth.\n", 56);
    const char *last = "\nThe grace of our Lord Jesus Christ be with you all. Amen.\n";
    assert_string_equal(text + n - strlen(last), last);
    free(text);
    free(said);
}

static void test_make_default_errors(void **state) {
    (void)state;
    expect_command(2, "usage:|MAKE_TOKENS_BINARY OUTPUT_DIR", "data/make_default.sh");
    expect_command(2, "usage:", "data/make_default.sh a");
    expect_command(127, "", "data/make_default.sh '%s/no_such_program' '%s/from_nothing'", directory, directory);
    expect_command(1, "", "data/make_default.sh false '%s/from_nothing'", directory);
    expect_command(0, "nothing", "[ -z \"$(ls -A '%s/from_nothing')\" ] && echo nothing 1>&2", directory);
}

// Interrupted while it waits for the text, it leaves nothing, and what was there before stays.
static void test_make_default_interrupted(void **state) {
    (void)state;
    write_bible("slow", "#!/bin/sh\necho Ge1:1 In the beginning\nsleep 30\n");
    char path[4096];
    path_before(path, sizeof(path), "slow");
    const char *output = in_directory(directory, "interrupted");
    assert_int_equal(mkdir(output, 0700), 0);
    write_file(in_directory(output, "train.bin"), "old", 3);
    const int signals[3] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 3; i++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            setpgid(0, 0);
            signal(signals[i], SIG_DFL);
            if (freopen("/dev/null", "w", stderr) == NULL) _exit(97);  // the shell says "Terminated"
            setenv("PATH", path, 1);
            execl("/bin/sh", "sh", "data/make_default.sh", make_tokens, output, (char *)NULL);
            _exit(98);
        }
        char begun[512];
        snprintf(begun, sizeof(begun), "%s/.make_default.%d/text", output, (int)child);
        for (int wait = 0; wait < 1000 && access(begun, F_OK) != 0; wait++) usleep(10000);
        assert_int_equal(access(begun, F_OK), 0);
        assert_int_equal(kill(-child, signals[i]), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 128 + signals[i]);
        expect_command(0, "train.bin\n", "ls -A '%s' 1>&2; [ $(ls -A '%s' | wc -l) = 1 ]", output, output);
    }
    char *old = read_file(in_directory(output, "train.bin"), NULL);
    assert_string_equal(old, "old");
    free(old);
}

static int set_up(void **state) {
    (void)state;
    make_directory(directory);
    make_path_without_bible();
    const char *program = getenv("MAKE_TOKENS") != NULL ? getenv("MAKE_TOKENS") : "build/make_tokens";
    if (realpath(program, make_tokens) != NULL) return 0;
    snprintf(make_tokens, sizeof(make_tokens), "%s/make_tokens", directory);
    char command[2 * PATH_MAX];
    snprintf(command, sizeof(command), "cc -std=gnu11 -O1 -o '%s' data/make_tokens.c -lm", make_tokens);
    return system(command);
}

static int tear_down(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_target_once),
        cmocka_unit_test(test_shard_ends),
        cmocka_unit_test(test_several_shards),
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_orders_differ),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_damaged_headers),
        cmocka_unit_test(test_unsuitable_files),
        cmocka_unit_test(test_many_shards),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_bad_reads),
        cmocka_unit_test(test_cut_while_open),
        cmocka_unit_test(test_large_shard),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_every_character),
        cmocka_unit_test(test_write_error),
        cmocka_unit_test(test_byte_tokens),
        cmocka_unit_test(test_no_tokenizer),
        cmocka_unit_test(test_tokenizer_file),
        cmocka_unit_test(test_damaged_tokenizers),
        cmocka_unit_test(test_unsuitable_prompts),
        cmocka_unit_test(test_make_tokens),
        cmocka_unit_test(test_make_tokens_large),
        cmocka_unit_test(test_make_tokens_errors),
        cmocka_unit_test(test_make_default_bible),
        cmocka_unit_test(test_make_default_source),
        cmocka_unit_test(test_make_default_here),
        cmocka_unit_test(test_make_default_errors),
        cmocka_unit_test(test_make_default_interrupted),
    };
    return cmocka_run_group_tests_name("data", tests, set_up, tear_down);
}
