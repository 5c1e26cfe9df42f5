// token_helpers.h - token files, written byte by byte, in a directory of the test program's own.
#ifndef TOKEN_HELPERS_H
#define TOKEN_HELPERS_H

#include "test_helpers.h"

static char directory[256];

// For cmocka_run_group_tests().
static inline int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    return 0;
}

static inline int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

// The first four entries of a header: for tokens magic, version, number of tokens, vocabulary.
static inline void put_header(unsigned char *header, uint32_t magic, uint32_t version, uint32_t third,
                              uint32_t fourth) {
    const uint32_t entries[4] = {magic, version, third, fourth};
    memset(header, 0, 1024);
    for (int i = 0; i < 16; i++) header[i] = (unsigned char)(entries[i / 4] >> (i % 4 * 8));
}

static inline const char *write_shard(const char *name, const uint16_t *tokens, size_t n, uint32_t vocabulary) {
    const char *path = in_directory(directory, "%s", name);
    unsigned char *bytes = (unsigned char *)malloc(1024 + 2 * n);
    put_header(bytes, 20240520, 1, (uint32_t)n, vocabulary);
    for (size_t i = 0; i < n; i++) {
        bytes[1024 + 2 * i] = (unsigned char)tokens[i];
        bytes[1025 + 2 * i] = (unsigned char)(tokens[i] >> 8);
    }
    write_file(path, bytes, 1024 + 2 * n);
    free(bytes);
    return path;
}

#endif
