// loader.h - tokens from disk: which tokens a window holds, in which order the windows come, and how one is read.
//
// A token file (a shard) is llm.c's: a header of 256 little-endian int32 (magic, version, number of tokens, and in our
// own files the size of the vocabulary, where llm.c leaves 0), then the tokens as little-endian uint16. A window is
// T + 1 consecutive tokens of one shard, which give T inputs (i) and T targets (t); windows overlap by one token:
//
//     token      0   1   2   3   4   5   6   7   8   9       a shard of 10 tokens and T = 4: 9 targets in 3 windows
//     window 0   i   it  it  it  t
//     window 1                   i   it  it  it  t
//     window 2                                   i   it      partial: missing inputs are 0, targets -1 (ignored)
//
// Invariants: an epoch has every target once, so every token but the first of each shard. No window crosses shards.
// Every id is checked before a caller sees it. After loader_open() nothing is allocated and nothing here changes, so
// any thread may read any window.
#ifndef LOADER_H
#define LOADER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "../dev/error.h"
#include "../dev/random.h"

static_assert(sizeof(size_t) >= 8 && sizeof(off_t) >= 8, "shards may be larger than 4 GiB");

enum {
    TOKENS_MAGIC = 20240520,
    TOKENS_MAGIC_LLAMA3 = 20240801,
    TOKENS_HEADER_BYTES = 1024,
    TOKENS_VOCABULARY_GPT2 = 50257,
    TOKENS_FINGERPRINTED = 1024  // tokens at either end of a shard that go into the fingerprint
};

typedef struct TokenFile {
    int file;
    size_t n_tokens;
    size_t first_window;  // windows in the shards before this one
} TokenFile;

typedef struct Loader {
    size_t T;
    size_t n_shards, n_tokens, n_windows;  // of all shards together
    size_t vocabulary;                     // what the files say: every id should be below it
    uint64_t fingerprint;                  // of the shards' sizes and of their first and last tokens
    TokenFile *shards;
    glob_t found;  // owns the paths
} Loader;

// A shard's path.
static inline const char *loader_path(const Loader *loader, size_t shard) { return loader->found.gl_pathv[shard]; }

// ---------------------------------------------------------------------------------------------------------------
// Reading

// n_bytes of a shard from `offset` on, or the program ends.
static inline void loader_read_bytes(const Loader *loader, size_t shard, void *buffer, size_t n_bytes, size_t offset) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pread(loader->shards[shard].file, (char *)buffer + done, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die("cannot read '%s' at offset %zu: %s", loader_path(loader, shard), offset + done, error_text());
        if (n == 0) {
            die("'%s': short read at offset %zu: the file became shorter since it was opened; start again",
                loader_path(loader, shard), offset + done);
        }
        done += (size_t)n;
    }
}

// n tokens of a shard from `first` on, in the machine's byte order.
static inline void loader_read_tokens(const Loader *loader, size_t shard, size_t first, size_t n, uint16_t *tokens) {
    loader_read_bytes(loader, shard, tokens, n * 2, TOKENS_HEADER_BYTES + first * 2);
    const unsigned char *bytes = (const unsigned char *)tokens;
    for (size_t i = 0; i < n; i++) tokens[i] = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
}

// The shard that holds a window.
static inline size_t loader_shard(const Loader *loader, size_t window) {
    if (window >= loader->n_windows) die("window %zu does not exist: the data has %zu", window, loader->n_windows);
    size_t low = 0, high = loader->n_shards;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (loader->shards[middle].first_window <= window) low = middle;
        else high = middle;
    }
    return low;
}

// Number of targets in a window that are there (T, or fewer in the last window of a shard; never 0). Reads nothing.
static inline size_t loader_window_targets(const Loader *loader, size_t window) {
    const TokenFile *shard = &loader->shards[loader_shard(loader, window)];
    return size_min(loader->T, shard->n_tokens - 1 - (window - shard->first_window) * loader->T);
}

// The window at place `global_index` of an endless sequence of epochs, each with every window once in an order of its
// own. With n windows in a step, the one at place i of step s has the global index s * n + i, on any number of ranks.
static inline size_t loader_shuffled_window(const Loader *loader, uint64_t seed, uint64_t global_index) {
    uint64_t n = loader->n_windows;
    return (size_t)random_permute(seed, global_index / n, n, global_index % n);
}

// Reads a window into inputs (T) and targets (T), by way of buffer (T + 1). Stops if an id isn't below `vocabulary`,
// the number of rows the model has.
static inline void loader_read(const Loader *loader, size_t window, size_t vocabulary, uint16_t *buffer,
                               int32_t *inputs, int32_t *targets) {
    size_t shard = loader_shard(loader, window), n = loader_window_targets(loader, window);
    size_t first = (window - loader->shards[shard].first_window) * loader->T;
    loader_read_tokens(loader, shard, first, n + 1, buffer);
    for (size_t i = 0; i <= n; i++) {
        if (buffer[i] >= vocabulary) {
            die("'%s': token %zu has the id %d, but the model's vocabulary is %zu: the data was made for another model",
                loader_path(loader, shard), first + i, buffer[i], vocabulary);
        }
    }
    for (size_t i = 0; i < loader->T; i++) {
        inputs[i] = i <= n ? buffer[i] : 0;
        targets[i] = i < n ? buffer[i + 1] : -1;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Opening

// Entry of a header: little-endian 32 bits, unsigned.
static inline uint32_t loader_header_entry(const unsigned char *header, size_t entry) {
    const unsigned char *b = header + 4 * entry;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

// Stops unless the header (zeros where the file has ended) is that of a token file of `n_bytes`. Returns the
// vocabulary. The number of tokens is read as unsigned, so a shard may hold up to 2^32 - 1.
static inline size_t loader_check_header(const char *path, const unsigned char *header, size_t n_bytes) {
    uint32_t magic = loader_header_entry(header, 0), version = loader_header_entry(header, 1);
    size_t n_tokens = loader_header_entry(header, 2), vocabulary = loader_header_entry(header, 3);
    if (n_bytes < 4) die("'%s' is no token file: it has %zu bytes", path, n_bytes);
    if (magic == TOKENS_MAGIC_LLAMA3) {
        die("'%s' holds Llama-3 tokens (magic %d, 32 bits), but this is GPT-2: make it with GPT-2's tokenizer", path,
            TOKENS_MAGIC_LLAMA3);
    }
    if (magic != TOKENS_MAGIC) {
        int n_printable = 0;
        for (int i = 0; i < 4; i++) n_printable += header[i] >= ' ' || (header[i] >= '\t' && header[i] <= '\r');
        if (n_printable == 4) die("'%s' looks like text, not tokens: make token files of it with make_tokens", path);
        die("'%s' is no token file: it begins with %u instead of %d", path, magic, TOKENS_MAGIC);
    }
    if (n_bytes < TOKENS_HEADER_BYTES) {
        die("'%s' is cut short: it has %zu bytes, the header alone has %d", path, n_bytes, TOKENS_HEADER_BYTES);
    }
    if (version != 1) die("'%s' is a token file of version %u: only version 1 (16-bit tokens) is known", path, version);
    if (n_bytes != TOKENS_HEADER_BYTES + 2 * n_tokens) {
        die("'%s' has %zu bytes, but its header says %zu tokens of 16 bits, which is %zu bytes: copy or make it again",
            path, n_bytes, n_tokens, TOKENS_HEADER_BYTES + 2 * n_tokens);
    }
    if (n_tokens < 2) die("'%s' has %zu tokens: at least 2 are needed, an input and a target", path, n_tokens);
    if (vocabulary > 65536) die("'%s' says a vocabulary of %zu: 16-bit tokens have at most 65536", path, vocabulary);
    return vocabulary == 0 ? (size_t)TOKENS_VOCABULARY_GPT2 : vocabulary;
}

// Opens for reading; where the process has too many open files, raises its limit as far as it may. Never waits, as
// opening a pipe would.
static inline int loader_open_file(const char *path) {
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    int file = open(path, flags);
    if (file >= 0 || errno != EMFILE) return file;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return open(path, flags);
}

// Opens a shard and counts its tokens and windows; ends the program, with the way out, if it is no token file.
static inline void loader_open_shard(Loader *loader, size_t shard, const char *pattern) {
    const char *path = loader_path(loader, shard);
    int file = loader_open_file(path);
    if (file < 0 && errno == EMFILE) {
        die("cannot open '%s', shard %zu of %zu: %s: raise the limit (ulimit -n) or make fewer, larger shards", path,
            shard + 1, loader->n_shards, error_text());
    }
    if (file < 0 && errno == ENOENT && strcmp(path, pattern) == 0) {
        die("no file matches '%s': `make data` makes the default token files", pattern);
    }
    if (file < 0) die("cannot open '%s': %s", path, error_text());
    struct stat status;
    if (fstat(file, &status) != 0) die("cannot look at '%s': %s", path, error_text());
    if (S_ISDIR(status.st_mode)) die("'%s' is a directory: name the token files in it, as in '%s/*.bin'", path, path);
    if (!S_ISREG(status.st_mode)) die("'%s' is not a regular file", path);

    size_t n_bytes = (size_t)status.st_size;
    unsigned char header[TOKENS_HEADER_BYTES] = {0};
    loader->shards[shard].file = file;
    loader_read_bytes(loader, shard, header, size_min(n_bytes, TOKENS_HEADER_BYTES), 0);
    size_t vocabulary = loader_check_header(path, header, n_bytes);
    if (shard > 0 && vocabulary != loader->vocabulary) {
        die("'%s' has a vocabulary of %zu, but '%s' has %zu: all shards must have the same", path, vocabulary,
            loader_path(loader, 0), loader->vocabulary);
    }
    size_t n_tokens = loader_header_entry(header, 2);
    loader->vocabulary = vocabulary;
    loader->shards[shard].n_tokens = n_tokens;
    loader->shards[shard].first_window = loader->n_windows;
    loader->n_tokens += n_tokens;
    loader->n_windows += size_ceil_div(n_tokens - 1, loader->T);
}

// Of all shards: what tells this data from other data, as far as their sizes, first and last tokens do.
static inline uint64_t loader_fingerprint(const Loader *loader) {
    uint16_t tokens[TOKENS_FINGERPRINTED];
    uint64_t hash = random_mix(loader->n_shards);
    for (size_t shard = 0; shard < loader->n_shards; shard++) {
        size_t n_tokens = loader->shards[shard].n_tokens, n = size_min(n_tokens, TOKENS_FINGERPRINTED);
        hash = random_mix(hash ^ n_tokens);
        for (int last = 0; last < 2; last++) {
            loader_read_tokens(loader, shard, last ? n_tokens - n : 0, n, tokens);
            for (size_t i = 0; i < n; i++) hash = random_mix(hash ^ tokens[i]);
        }
    }
    return hash;
}

// Opens all token files that match a pattern (as the shell's, sorted by name) for windows of T inputs. A name that
// exists is taken as it is, whatever characters it has.
static inline void loader_open(Loader *loader, const char *pattern, size_t T) {
    memset(loader, 0, sizeof(*loader));
    if (T == 0) die("a window needs at least one token");
    loader->T = T;
    int error = glob(pattern, GLOB_NOCHECK, NULL, &loader->found);  // the pattern itself where nothing matches
    if (error != 0) die("cannot list the files that match '%s': %s", pattern, error_text());
    loader->n_shards = loader->found.gl_pathc;
    loader->shards = (TokenFile *)calloc(loader->n_shards, sizeof(TokenFile));
    if (loader->shards == NULL) die("no memory for a list of %zu token files", loader->n_shards);
    for (size_t shard = 0; shard < loader->n_shards; shard++) loader_open_shard(loader, shard, pattern);
    loader->fingerprint = loader_fingerprint(loader);
}

// Closes all files.
static inline void loader_close(Loader *loader) {
    for (size_t shard = 0; shard < loader->n_shards; shard++) close(loader->shards[shard].file);
    free(loader->shards);
    globfree(&loader->found);
    memset(loader, 0, sizeof(*loader));
}

// A sequence of uniform random tokens, the same whenever it is asked for: sequence `index` of a stream, tokens (T) and
// targets (T) below V.
static inline void loader_random(uint64_t seed, uint64_t stream, uint64_t index, size_t T, size_t V, int32_t *tokens,
                                 int32_t *targets) {
    for (size_t t = 0; t <= T; t++) {
        int32_t id = (int32_t)(random_bits(seed, stream, index * (T + 1) + t) % V);
        if (t < T) tokens[t] = id;
        if (t > 0) targets[t - 1] = id;
    }
}

#endif
