// test_helpers.h - what several test programs need: files, a directory that goes away, and code that is to stop.
//
// Include it first. A program that is to be tested with an end in die() is run in a child process, so the test lives.
#ifndef TEST_HELPERS_H
#define TEST_HELPERS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

// Ends a test that can't be made here, and says why (tests/run.sh repeats it).
#define SKIP_AS(...)                                      \
    do {                                                  \
        print_message("skipped, as " __VA_ARGS__);        \
        print_message("\n");                              \
        skip();                                           \
    } while (0)

// Makes a new empty directory; its name goes to `path` (at least 256 bytes).
static inline void make_directory(char *path) {
    const char *parent = getenv("TMPDIR");
    snprintf(path, 256, "%s/train_gpt.XXXXXX", parent != NULL ? parent : "/tmp");
    assert_non_null(mkdtemp(path));
}

static inline void remove_directory(const char *path) {
    char command[512];
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

// "directory/name", with printf's formats in the name. The last 16 results live.
__attribute__((format(printf, 2, 3))) static inline const char *in_directory(const char *directory, const char *format,
                                                                             ...) {
    static char paths[16][512];
    static int next;
    char *path = paths[next++ % 16];
    int n = snprintf(path, sizeof(paths[0]), "%s/", directory);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + n, sizeof(paths[0]) - (size_t)n, format, arguments);
    va_end(arguments);
    return path;
}

static inline void write_file(const char *path, const void *bytes, size_t n_bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

// The bytes of a file and a zero behind them, to be freed; their number in *n_bytes unless that is NULL.
static inline char *read_file(const char *path, size_t *n_bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(file);
    rewind(file);
    char *bytes = (char *)malloc(n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, n, file), n);
    bytes[n] = '\0';
    fclose(file);
    if (n_bytes != NULL) *n_bytes = n;
    return bytes;
}

// What function(argument) prints on stdout, to be freed.
static inline char *printed(void (*function)(void *), void *argument) {
    const char *parent = getenv("TMPDIR");
    char path[256];
    snprintf(path, sizeof(path), "%s/train_gpt.XXXXXX", parent != NULL ? parent : "/tmp");
    int file = mkstemp(path), before = dup(1);
    assert_true(file >= 0);
    fflush(stdout);
    assert_int_equal(dup2(file, 1), 1);
    function(argument);
    fflush(stdout);
    assert_int_equal(dup2(before, 1), 1);
    close(before);
    close(file);
    char *text = read_file(path, NULL);
    unlink(path);
    return text;
}

// A child ends in the middle of things, so the leak checker (which asks here) has nothing to say there.
static int is_child = 0;
__attribute__((weak)) int __lsan_is_turned_off(void);
__attribute__((weak)) int __lsan_is_turned_off(void) { return is_child; }

// Runs function(argument) in a child process of at most fifteen minutes. Returns its exit status, 0 where the function
// returned (128 + the signal if one ended it), and in `message` what it said on stderr; its stdout is lost. A failed
// assertion of cmocka's ends the child by SIGABRT, with its text on stderr.
static inline int run_child(void (*function)(void *), void *argument, char *message, size_t n_message) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        is_child = 1;
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        alarm(15 * 60);
        close(ends[0]);
        if (dup2(ends[1], STDERR_FILENO) < 0 || freopen("/dev/null", "w", stdout) == NULL) _exit(99);
        close(ends[1]);
        function(argument);
        fflush(NULL);
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    char rest[256];
    for (;;) {
        bool is_full = n + 1 >= n_message;
        ssize_t got = is_full ? read(ends[0], rest, sizeof(rest)) : read(ends[0], message + n, n_message - 1 - n);
        if (got <= 0) break;
        if (!is_full) n += (size_t)got;
    }
    message[n] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// function(argument) must end the process with this exit status (0: or return) and say all of the words, which are
// separated by '|', on stderr. A sanitizer's complaint is a failure.
static inline void expect_exit(void (*function)(void *), void *argument, int status, const char *words) {
    char message[16384];
    int actual = run_child(function, argument, message, sizeof(message));
    if (strstr(message, "Sanitizer") != NULL || strstr(message, "runtime error") != NULL) {
        fail_msg("the sanitizer found a fault:\n%s", message);
    }
    if (actual != status) fail_msg("exit status %d instead of %d, saying: %s", actual, status, message);
    while (*words != '\0') {
        size_t n = strcspn(words, "|");
        char part[256];
        assert_true(n > 0 && n < sizeof(part));
        memcpy(part, words, n);
        part[n] = '\0';
        if (strstr(message, part) == NULL) fail_msg("'%s' is not in the message: %s", part, message);
        words += n + (words[n] == '|');
    }
}

// function(argument) must stop with die(): exit status 1 and a message that has all of the words (separated by '|').
static inline void expect_die(void (*function)(void *), void *argument, const char *words) {
    char first[256];
    assert_true(strlen(words) < 200 && *words != '\0');
    snprintf(first, sizeof(first), "train_gpt: |%s", words);
    expect_exit(function, argument, 1, first);
}

static inline void run_shell_command(void *command) {
    execl("/bin/sh", "sh", "-c", (const char *)command, (char *)NULL);
    _exit(98);
}

// The same for a command of the shell.
__attribute__((format(printf, 3, 4))) static inline void expect_command(int status, const char *words,
                                                                        const char *format, ...) {
    char command[2048];
    va_list arguments;
    va_start(arguments, format);
    assert_true(vsnprintf(command, sizeof(command), format, arguments) < (int)sizeof(command));
    va_end(arguments);
    expect_exit(run_shell_command, command, status, words);
}

#endif
