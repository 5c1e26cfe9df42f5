// test_make_tokens.c - the programs that make token files: make_tokens, of any text, and make_default.sh, of the King
// James Bible or of the project's own source.
//
// Run it in the root of the repository. MAKE_TOKENS names the make_tokens program (default: build/make_tokens, and if
// that isn't there, one that is compiled for the test).
#include "token_helpers.h"

#include <limits.h>
#include <signal.h>
#include <sys/stat.h>

#include "../data/loader.h"

static char make_tokens[PATH_MAX];

// A window of a token file.
typedef struct {
    uint16_t buffer[65];
    int32_t inputs[64], targets[64];
} Window;

// ---------------------------------------------------------------------------------------------------------------
// make_tokens

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
    assert_true(cut >= n / 100 * 90);
    assert_true(cut <= n / 100 * 90 + 60);
    assert_true(text[cut - 1] == '\n');
    for (int part = 0; part < 2; part++) {
        const Loader *loader = part ? &val : &train;
        const char *expected = part ? text + cut : text;
        for (size_t w = 0; w < loader->n_windows; w++) {
            Window window;
            loader_read(loader, w, 257, window.buffer, window.inputs, window.targets);
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

// ---------------------------------------------------------------------------------------------------------------
// make_default.sh

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
                            "// tokenizer.h - ", "// error.h - ", "// test_batch.c - "};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_make_tokens),
        cmocka_unit_test(test_make_tokens_large),
        cmocka_unit_test(test_make_tokens_errors),
        cmocka_unit_test(test_make_default_bible),
        cmocka_unit_test(test_make_default_source),
        cmocka_unit_test(test_make_default_here),
        cmocka_unit_test(test_make_default_errors),
        cmocka_unit_test(test_make_default_interrupted),
    };
    return cmocka_run_group_tests(tests, set_up, close_directory);
}
