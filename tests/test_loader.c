// test_loader.c - loader.h: every target of an epoch once, whatever the sizes of shards and windows; orders that depend
// on seed and epoch alone; files that are damaged, cut short, unreadable or too many; reads that are short or fail.
#include "token_helpers.h"

#include <errno.h>
#include <fcntl.h>
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

// ---------------------------------------------------------------------------------------------------------------
// Token files

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
    assert_true(same_in_epoch < 10);
    assert_true(same_in_seed < 10);
    assert_true(same_unshuffled < 10);  // 1 of 1000 is to be expected
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

// Random sequences: targets are the tokens that follow, all below the vocabulary, each of which occurs; the same
// whenever they are asked for, and none goes on where the one before ended.
static void test_random_sequences(void **state) {
    (void)state;
    enum { LENGTH = 7, V = 11, N = 2000 };
    int32_t tokens[LENGTH], targets[LENGTH], again[2][LENGTH], last = -1;
    int n_of[V] = {0}, joined = 0, same = 0;
    for (uint64_t i = 0; i < N; i++) {
        loader_random(3, 1, i, LENGTH, V, tokens, targets);
        loader_random(3, 1, i, LENGTH, V, again[0], again[1]);
        assert_memory_equal(tokens, again[0], sizeof(tokens));
        assert_memory_equal(targets, again[1], sizeof(targets));
        for (int t = 0; t < LENGTH; t++) {
            assert_in_range(tokens[t], 0, V - 1);
            assert_in_range(targets[t], 0, V - 1);
            if (t > 0) assert_int_equal(tokens[t], targets[t - 1]);
            n_of[tokens[t]]++;
        }
        joined += tokens[0] == last;
        last = targets[LENGTH - 1];
        loader_random(3, 2, i, LENGTH, V, again[0], again[1]);
        same += again[0][0] == tokens[0];
        loader_random(4, 1, i, LENGTH, V, again[0], again[1]);
        same += again[0][0] == tokens[0];
    }
    // 2,000 and twice 2,000 draws of one in 11: 5 deviations.
    assert_in_range(joined, 182 - 65, 182 + 65);
    assert_in_range(same, 364 - 91, 364 + 91);
    for (int v = 0; v < V; v++) assert_in_range(n_of[v], 1273 - 170, 1273 + 170);
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
        cmocka_unit_test(test_random_sequences),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
