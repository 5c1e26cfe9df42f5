// bench_helpers.h - what the benchmarks share: the trainer's text, medians, the machine's copy bandwidth.
#ifndef BENCH_HELPERS_H
#define BENCH_HELPERS_H

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "run_helpers.h"

#include "median.h"

enum { SAMPLES_MOST = 64 };

// ---------------------------------------------------------------------------------------------------------------
// Copy bandwidth

// y = x, past the caches where the processor can: what a plain store reads before it writes is not part of a copy.
static void copy_stream(float *y, const float *x, size_t n, bool past_caches) {
#if defined(__AVX__)
    if (past_caches) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < (int64_t)n; i += 8) _mm256_stream_ps(y + i, _mm256_load_ps(x + i));
        return;
    }
#else
    (void)past_caches;
#endif
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (int64_t)n; i++) y[i] = x[i];
}

typedef struct {
    float *from, *to;
    double seconds[2][SAMPLES_MOST];  // plain, past the caches
    int n;
} Copy;

enum { COPY_FLOATS = 64 << 20 };  // 256 MiB, far beyond the caches

static void copy_open(Copy *copy) {
    memset(copy, 0, sizeof(*copy));
    copy->from = (float *)aligned_alloc(64, COPY_FLOATS * sizeof(float));
    copy->to = (float *)aligned_alloc(64, COPY_FLOATS * sizeof(float));
    if (!copy->from || !copy->to) die("out of memory");
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < COPY_FLOATS; i++) copy->from[i] = copy->to[i] = 1.0f;
}

static void copy_sample(Copy *copy) {
    for (int i = 0; i < 4 && copy->n < SAMPLES_MOST; i++) {
        for (int past_caches = 0; past_caches < 2; past_caches++) {
            double start = device_seconds();
            copy_stream(copy->to, copy->from, COPY_FLOATS, past_caches);
            copy->seconds[past_caches][copy->n] = device_seconds() - start;
        }
        copy->n++;
    }
}

static double copy_bandwidth(Copy *copy, int past_caches) {
    return 2.0 * COPY_FLOATS * sizeof(float) / median(copy->seconds[past_caches], copy->n);
}

// ---------------------------------------------------------------------------------------------------------------
// Trainers

// A trainer with the flags of a line, planned but not started.
static Trainer *bench_open(const char *line) {
    char words[512], *argv[64];
    int argc = 0;
    snprintf(words, sizeof(words), "train_gpt %s -i random -g 0 -v 0 -u 0 -l 0.0001", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = strdup(word);
    return plan_trainer(run_open(argc, argv));
}

#endif
