// tokenizer.h - from ids to text that a terminal can show, and from a prompt to ids.
//
// Three kinds: byte tokens (our own files: ids 0 ... 255 are bytes, 256 is the end of a text), llm.c's tokenizer file
// (the bytes of every id), and none, where ids are shown as <123>. A token need not be a whole character, so text goes
// through text.h.
#ifndef TOKENIZER_H
#define TOKENIZER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../dev/error.h"
#include "text.h"

enum {
    TOKENIZER_MAGIC = 20240328,
    TOKENIZER_HEADER_BYTES = 1024,
    TOKENIZER_VOCABULARY_BYTES = 257,
    TOKENIZER_END_OF_BYTES = 256,
    TOKENIZER_VOCABULARY_GPT2 = 50257
};

typedef struct Tokenizer {
    size_t vocabulary;
    int end_of_text;       // -1: none
    bool is_bytes;         // byte tokens
    unsigned char *bytes;  // a tokenizer file without its header: for each id a length byte, then the bytes
    size_t *starts;        // where in `bytes` an id's length byte is (vocabulary)
} Tokenizer;

// Stops unless it is the header of a tokenizer file for this vocabulary. Returns the id of the end of text.
static inline int tokenizer_check_header(const char *path, const unsigned char *header, size_t vocabulary) {
    uint32_t entries[4];
    for (int i = 0; i < 4; i++) {
        const unsigned char *b = header + 4 * i;
        entries[i] = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    if (entries[0] != TOKENIZER_MAGIC) {
        die("'%s' is no tokenizer file: it begins with %u instead of %d", path, entries[0], TOKENIZER_MAGIC);
    }
    if (entries[1] != 2) {
        die("'%s' is a tokenizer file of version %u, but only 2 is known: write it with llm.c's present script", path,
            entries[1]);
    }
    if (entries[2] != vocabulary) {
        die("the tokenizer '%s' has %u tokens, but the model's vocabulary is %zu", path, entries[2], vocabulary);
    }
    if (entries[3] >= vocabulary) {
        die("the tokenizer '%s' says that token %u ends a text, but it has only %zu", path, entries[3], vocabulary);
    }
    return (int)entries[3];
}

// Finds where each token starts, and that the last one ends where the file does.
static inline void tokenizer_index(Tokenizer *tokenizer, const char *path, size_t n_bytes) {
    size_t offset = 0;
    for (size_t id = 0; id < tokenizer->vocabulary; id++) {
        size_t length = offset < n_bytes ? tokenizer->bytes[offset] : 0;
        if (offset >= n_bytes || length > n_bytes - offset - 1) {
            die("the tokenizer '%s' is cut short: it ends within token %zu of %zu", path, id, tokenizer->vocabulary);
        }
        if (length == 0) die("the tokenizer '%s' is damaged: token %zu is empty", path, id);
        tokenizer->starts[id] = offset;
        offset += 1 + length;
    }
    if (offset != n_bytes) die("the tokenizer '%s' is damaged: %zu bytes after the last token", path, n_bytes - offset);
}

// Reads a tokenizer file for tokenizer->vocabulary, or ends the program.
static inline void tokenizer_load(Tokenizer *tokenizer, const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) die("cannot open the tokenizer '%s': %s", path, error_text());
    if (!S_ISREG(status.st_mode)) die("the tokenizer '%s' is not a regular file", path);
    FILE *file = fopen(path, "rb");
    if (file == NULL) die("cannot open the tokenizer '%s': %s", path, error_text());
    if (status.st_size < TOKENIZER_HEADER_BYTES) {
        die("the tokenizer '%s' is cut short: the header alone has %d bytes", path, TOKENIZER_HEADER_BYTES);
    }
    unsigned char header[TOKENIZER_HEADER_BYTES];
    if (fread(header, 1, sizeof(header), file) != sizeof(header)) die("cannot read '%s': %s", path, error_text());
    tokenizer->end_of_text = tokenizer_check_header(path, header, tokenizer->vocabulary);

    size_t n_bytes = (size_t)status.st_size - TOKENIZER_HEADER_BYTES;
    tokenizer->bytes = (unsigned char *)malloc(n_bytes + 1);
    tokenizer->starts = (size_t *)malloc((tokenizer->vocabulary + 1) * sizeof(size_t));
    if (tokenizer->bytes == NULL || tokenizer->starts == NULL) die("no memory for the tokenizer '%s'", path);
    if (fread(tokenizer->bytes, 1, n_bytes, file) != n_bytes) die("cannot read '%s': %s", path, error_text());
    fclose(file);
    tokenizer_index(tokenizer, path, n_bytes);
}

// `path` is a tokenizer file or NULL: byte tokens for a vocabulary of 257, otherwise none.
static inline void tokenizer_open(Tokenizer *tokenizer, const char *path, size_t vocabulary) {
    memset(tokenizer, 0, sizeof(*tokenizer));
    tokenizer->vocabulary = vocabulary;
    tokenizer->end_of_text = -1;
    if (path != NULL) {
        tokenizer_load(tokenizer, path);
    } else if (vocabulary == TOKENIZER_VOCABULARY_BYTES) {
        tokenizer->is_bytes = true;
        tokenizer->end_of_text = TOKENIZER_END_OF_BYTES;
    } else if (vocabulary == TOKENIZER_VOCABULARY_GPT2) {
        tokenizer->end_of_text = TOKENIZER_VOCABULARY_GPT2 - 1;
    }
}

// Frees what tokenizer_open() took.
static inline void tokenizer_close(Tokenizer *tokenizer) {
    free(tokenizer->bytes);
    free(tokenizer->starts);
    memset(tokenizer, 0, sizeof(*tokenizer));
}

// The id that ends one text and begins the next; -1 where none is known.
static inline int tokenizer_end_of_text(const Tokenizer *tokenizer) { return tokenizer->end_of_text; }

// A token's text; <123> where it has none.
static inline void tokenizer_put(const Tokenizer *tokenizer, TextOut *out, int id) {
    bool is_known = id >= 0 && (size_t)id < tokenizer->vocabulary;
    if (is_known && tokenizer->bytes != NULL) {
        const unsigned char *token = tokenizer->bytes + tokenizer->starts[id];
        text_put(out, (const char *)token + 1, token[0]);
    } else if (is_known && tokenizer->is_bytes && id == TOKENIZER_END_OF_BYTES) {
        text_put(out, "<|endoftext|>", 13);
    } else if (is_known && tokenizer->is_bytes) {
        text_put_byte(out, (unsigned char)id);
    } else {
        char text[16];
        text_put(out, text, (size_t)snprintf(text, sizeof(text), "<%d>", id));
    }
}

// Turns a text into ids, at most `capacity`, and returns their number. Byte tokens only.
static inline size_t tokenizer_encode(const Tokenizer *tokenizer, const char *text, int32_t *ids, size_t capacity) {
    if (!tokenizer->is_bytes) {
        die("a prompt needs byte tokens (a vocabulary of %d), but the model's vocabulary is %zu",
            TOKENIZER_VOCABULARY_BYTES, tokenizer->vocabulary);
    }
    size_t n = strlen(text);
    if (n > capacity) die("the prompt has %zu tokens, but there is room for %zu only", n, capacity);
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    return n;
}

#endif
