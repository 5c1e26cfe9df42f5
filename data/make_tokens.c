// make_tokens.c - turns a text into two token files of bytes, one to train on and one to validate with.
//
//     make_tokens TRAIN.bin VAL.bin VALIDATION_PERCENT < text
//
// Token 0 ... 255 is a byte, token 256 begins a document. A byte 0x1e (ASCII's record separator) in the text becomes
// token 256, and both files begin with 256 even if the text doesn't say so. The last PERCENT of the text, from the next
// line end on, go to VAL.bin. The format is llm.c's with the vocabulary in header entry 3 (see loader.h).
//
// Invariant: a file has its name only when it is whole and on the disk. VAL.bin comes first, so whoever sees a new
// TRAIN.bin has both.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../dev/error.h"
#include "../dev/number.h"

enum { SEPARATOR = 0x1e, END_OF_TEXT = 256, VOCABULARY = 257, HEADER_ENTRIES = 256 };

typedef struct {
    const char *path;
    char *temporary;  // the name until the file is whole
} Output;

typedef struct {
    Output train, val;
} Outputs;

static void fail(const Outputs *outputs, const char *what, const char *path) {
    int error = errno;
    unlink(outputs->train.temporary);
    unlink(outputs->val.temporary);
    errno = error;
    die("cannot %s '%s': %s", what, path, error_text());
}

static unsigned char *read_input(size_t *n_bytes) {
    size_t n = 0, capacity = 1 << 20;
    unsigned char *text = malloc(capacity);
    while (text != NULL) {
        ssize_t got = read(STDIN_FILENO, text + n, capacity - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) die("cannot read the text from standard input: %s", error_text());
        if (got == 0) break;
        n += (size_t)got;
        if (n < capacity) continue;
        capacity *= 2;
        text = realloc(text, capacity);
    }
    if (text == NULL) die("no memory for a text of more than %zu bytes: split it", n);
    *n_bytes = n;
    return text;
}

// Where the validation text begins: behind the first line end that leaves at most `percent` of the text.
static size_t find_cut(const unsigned char *text, size_t n, size_t percent) {
    size_t cut = n / 100 * (100 - percent) + n % 100 * (100 - percent) / 100;
    while (cut < n && (cut == 0 || text[cut - 1] != '\n')) cut++;
    if (cut == n) die("the text (%zu bytes) has no line end to cut it at, %zu %% from its end: give more", n, percent);
    return cut;
}

static void write_bytes(const Outputs *outputs, const Output *output, int file, const unsigned char *bytes, size_t n) {
    while (n > 0) {
        ssize_t written = write(file, bytes, n);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail(outputs, "write", output->temporary);
        bytes += written;
        n -= (size_t)written;
    }
}

// The number of tokens that a text (not empty) makes; stops if a token file can't have so many.
static size_t count_tokens(const char *path, const unsigned char *text, size_t n) {
    size_t n_tokens = n + (text[0] != SEPARATOR);
    if (n_tokens < 2) die("the text for '%s' has %zu tokens: give more text", path, n_tokens);
    if (n_tokens > INT32_MAX) die("%zu tokens for '%s' are more than a header can say: split the text", n_tokens, path);
    return n_tokens;
}

// Writes the tokens of a text of n bytes to the output's temporary file.
static void write_tokens(const Outputs *outputs, const Output *output, const unsigned char *text, size_t n,
                         size_t n_tokens) {
    int file = open(output->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) fail(outputs, "create", output->temporary);

    const uint32_t entries[4] = {20240520, 1, (uint32_t)n_tokens, VOCABULARY};
    unsigned char block[1 << 16] = {0};
    size_t used = 0;
    for (int i = 0; i < HEADER_ENTRIES; i++) {
        for (int shift = 0; shift < 32; shift += 8) block[used++] = i < 4 ? (unsigned char)(entries[i] >> shift) : 0;
    }
    size_t first = n_tokens - n;  // 1: the text doesn't begin with a separator
    for (size_t i = 0; i < n_tokens; i++) {
        int token = i < first || text[i - first] == SEPARATOR ? END_OF_TEXT : text[i - first];
        block[used++] = (unsigned char)token;
        block[used++] = (unsigned char)(token >> 8);
        if (used < sizeof(block)) continue;
        write_bytes(outputs, output, file, block, used);
        used = 0;
    }
    write_bytes(outputs, output, file, block, used);
    if (fsync(file) != 0) fail(outputs, "write", output->temporary);
    if (close(file) != 0) fail(outputs, "write", output->temporary);
}

static Output make_output(const char *path) {
    Output output = {path, malloc(strlen(path) + sizeof(".tmp"))};
    if (output.temporary == NULL) die("no memory for a file name");
    sprintf(output.temporary, "%s.tmp", path);
    return output;
}

int main(int argc, char **argv) {
    char *end = NULL;
    long percent = argc == 4 ? strtol(argv[3], &end, 10) : 0;
    if (percent < 1 || percent > 99 || *end != '\0' || strcmp(argv[1], argv[2]) == 0) {
        fprintf(stderr, "usage: make_tokens TRAIN.bin VAL.bin VALIDATION_PERCENT < text   (1 to 99 percent)\n");
        return 2;
    }
    size_t n;
    unsigned char *text = read_input(&n);
    size_t cut = find_cut(text, n, (size_t)percent);
    Outputs outputs = {make_output(argv[1]), make_output(argv[2])};
    size_t n_train = count_tokens(argv[1], text, cut), n_val = count_tokens(argv[2], text + cut, n - cut);
    write_tokens(&outputs, &outputs.train, text, cut, n_train);
    write_tokens(&outputs, &outputs.val, text + cut, n - cut, n_val);
    if (rename(outputs.val.temporary, outputs.val.path) != 0) fail(&outputs, "rename to", outputs.val.path);
    if (rename(outputs.train.temporary, outputs.train.path) != 0) fail(&outputs, "rename to", outputs.train.path);
    printf("%zu training and %zu validation tokens\n", n_train, n_val);
    free(outputs.train.temporary);
    free(outputs.val.temporary);
    free(text);
    return 0;
}
