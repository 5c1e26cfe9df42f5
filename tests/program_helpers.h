// program_helpers.h - programs as a user starts them: what they print, how they end, what they leave in memory.
#ifndef PROGRAM_HELPERS_H
#define PROGRAM_HELPERS_H

#include "test_helpers.h"

// Starts ranks of one thread each, so that the threads are as many for any number of ranks: LAUNCH " 2 ./train_gpt ..."
#define LAUNCH "OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 scripts/launch.sh"
// For a program among several ranks: mpirun itself must not be interposed.
#define INTERPOSED "env LD_PRELOAD=build/interpose.so"

// Runs a command of the shell, for ten minutes at most, and returns what it printed, stdout and stderr together; to be
// freed. status: what it must end with; below 0: with anything but 0.
__attribute__((format(printf, 2, 3))) static inline char *run_command(int status, const char *format, ...) {
    char command[4096], *output = (char *)malloc(1 << 20);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof(command), format, arguments);
    va_end(arguments);
    setenv("TEST_COMMAND", command, 1);
    FILE *pipe = popen("timeout -k 5 600 sh -c \"$TEST_COMMAND\" 2>&1", "r");
    assert_non_null(output);
    assert_non_null(pipe);
    size_t length = fread(output, 1, (1 << 20) - 1, pipe);
    output[length] = 0;
    int code = pclose(pipe);
    bool right = WIFEXITED(code) && (status < 0 ? WEXITSTATUS(code) != 0 : WEXITSTATUS(code) == status);
    if (!right || WEXITSTATUS(code) == 124) {
        fail_msg("%s\nended with status %d, not %d: %s", command, code, status, output);
    }
    return output;
}

static inline void assert_says(const char *output, const char *words) {
    if (!strstr(output, words)) fail_msg("'%s' is not in: %s", words, output);
}

static inline int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static inline int count_words(const char *text, const char *words) {
    int n = 0;
    for (; (text = strstr(text, words)) != NULL; text += strlen(words)) n++;
    return n;
}

// Said by one rank only.
static inline void assert_says_once(const char *output, const char *words) {
    if (count_words(output, words) != 1) fail_msg("'%s' is not once in: %s", words, output);
}

// Skips the test where ./train_gpt can't be started as several ranks.
static inline void need_program_ranks(void) {
    if (system("command -v mpirun >/dev/null") != 0) SKIP_AS("there is no mpirun");
    if (system("sh scripts/libraries.sh gcc quiet | grep -q USE_MPI") != 0) SKIP_AS("train_gpt was built without MPI");
}

// The k-th comma-separated field of a line, as text.
static inline const char *csv_field(const char *line, int k, char *field) {
    while (k-- > 0) line = strchr(line, ',') + 1;
    size_t n = strcspn(line, ",\n");
    memcpy(field, line, n);
    field[n] = 0;
    return field;
}

// Of a run of four steps under interpose.c: nothing was allocated after the first step, and RssAnon stayed flat.
// `output` is taken apart.
static inline void assert_memory_stayed(char *output, const char *report_path) {
    char *report = read_file(report_path, NULL);
    double rss[4];
    int n = 0;
    assert_string_equal(report, "own 0 large 0\n");
    for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n")) {
        char *at = strstr(line, "RssAnon ");
        if (strncmp(line, "step ", 5) == 0 && at && n < 4) rss[n++] = atof(at + strlen("RssAnon "));
    }
    assert_int_equal(n, 4);
    assert_true(rss[0] > 1);
    assert_true(rss[3] - rss[0] < 0.25);
    assert_true(rss[0] - rss[3] < 0.25);
    free(report);
}

#endif
