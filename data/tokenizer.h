// tokenizer.h - from ids to text that a terminal can show, and from a prompt to ids.
//
// Three kinds: byte tokens (our own files: ids 0 ... 255 are bytes, 256 is the end of a text), llm.c's tokenizer file
// (the bytes of every id), and none, where ids are shown as <123>. A token need not be a whole character, so text goes
// through a TextOut, which keeps bytes until their character is whole.
//
// Invariant: whatever ids come, what is written is valid UTF-8 without control characters other than newline and tab:
// anything else becomes U+FFFD, so an untrained model can't send escape sequences to a terminal.
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

enum {
    TOKENIZER_MAGIC = 20240328,
    TOKENIZER_HEADER_BYTES = 1024,
    TOKENIZER_VOCABULARY_BYTES = 257,
    TOKENIZER_END_OF_BYTES = 256,
    TOKENIZER_VOCABULARY_GPT2 = 50257
};

// ---------------------------------------------------------------------------------------------------------------
// Text

typedef struct TextOut {
    FILE *file;
    unsigned char pending[4];  // the first bytes of a character that isn't whole yet
    int n_pending;
} TextOut;

static inline void text_open(TextOut *out, FILE *file) {
    memset(out, 0, sizeof(*out));
    out->file = file;
}

// Bytes of the character that starts with this one; 0 if none does (0xc0 and 0xc1 would be overlong).
static inline int text_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xc2 && lead <= 0xdf) return 2;
    if (lead >= 0xe0 && lead <= 0xef) return 3;
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

// Whether `byte` may be at `position` (1, 2, 3) of a character that starts with `lead`.
static inline bool text_continues(unsigned char lead, int position, unsigned char byte) {
    unsigned char low = 0x80, high = 0xbf;
    if (position == 1 && lead == 0xe0) low = 0xa0;   // below: overlong
    if (position == 1 && lead == 0xed) high = 0x9f;  // above: surrogates
    if (position == 1 && lead == 0xf0) low = 0x90;   // below: overlong
    if (position == 1 && lead == 0xf4) high = 0x8f;  // above: beyond U+10FFFF
    return byte >= low && byte <= high;
}

static inline void text_put_replacement(TextOut *out) {
    fwrite("\xef\xbf\xbd", 1, 3, out->file);
    out->n_pending = 0;
}

static inline void text_put_byte(TextOut *out, unsigned char byte) {
    if (out->n_pending > 0 && !text_continues(out->pending[0], out->n_pending, byte)) text_put_replacement(out);
    if (out->n_pending == 0 && text_length(byte) == 0) {
        text_put_replacement(out);
        return;
    }
    out->pending[out->n_pending & 3] = byte;  // the mask only tells compilers what text_length() ensures
    out->n_pending++;
    const unsigned char *c = out->pending;
    if (out->n_pending < text_length(c[0])) return;
    bool is_control = (c[0] < 0x20 && c[0] != '\n' && c[0] != '\t') || c[0] == 0x7f;
    if (is_control || (c[0] == 0xc2 && c[1] < 0xa0)) {  // U+0080 ... U+009F are controls as well
        text_put_replacement(out);
        return;
    }
    fwrite(c, 1, (size_t)out->n_pending, out->file);
    out->n_pending = 0;
}

static inline void text_put(TextOut *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) text_put_byte(out, (unsigned char)bytes[i]);
}

// Ends the text: half a character becomes U+FFFD, and everything is handed to the system. False if any write failed.
// (To show text while it grows, fflush(out->file) instead.)
static inline bool text_flush(TextOut *out) {
    if (out->n_pending > 0) text_put_replacement(out);
    return fflush(out->file) == 0 && !ferror(out->file);
}

// ---------------------------------------------------------------------------------------------------------------
// Tokenizer

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
    size_t at = 0;
    for (size_t id = 0; id < tokenizer->vocabulary; id++) {
        size_t length = at < n_bytes ? tokenizer->bytes[at] : 0;
        if (at >= n_bytes || length > n_bytes - at - 1) {
            die("the tokenizer '%s' is cut short: it ends within token %zu of %zu", path, id, tokenizer->vocabulary);
        }
        if (length == 0) die("the tokenizer '%s' is damaged: token %zu is empty", path, id);
        tokenizer->starts[id] = at;
        at += 1 + length;
    }
    if (at != n_bytes) die("the tokenizer '%s' is damaged: %zu bytes after the last token", path, n_bytes - at);
}

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

static inline void tokenizer_close(Tokenizer *tokenizer) {
    free(tokenizer->bytes);
    free(tokenizer->starts);
    memset(tokenizer, 0, sizeof(*tokenizer));
}

// The id that ends one text and begins the next; -1 where none is known.
static inline int tokenizer_end_of_text(const Tokenizer *tokenizer) { return tokenizer->end_of_text; }

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
