// partials.h - sums in one order, whatever the compiler, the vector width and the number of threads.
//
// A row is added up in PARTIALS partial sums, element i going to sum i % PARTIALS, then by a fixed tree. Callers keep
// `float partials[PARTIALS]` over the blocks of a row, each of which starts at a multiple of PARTIALS.
#ifndef PARTIALS_H
#define PARTIALS_H

#include <assert.h>

#include "number.h"

enum { PARTIALS = 16 };

static_assert((int)NUMBER_BLOCK % (int)PARTIALS == 0, "blocks move no element to another sum");

// The sum of the partial sums, by the tree.
static inline float partials_total(const float *partials) {
    float sum[PARTIALS];
    memcpy(sum, partials, sizeof(sum));
    for (int width = PARTIALS / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; l++) sum[l] += sum[l + width];
    }
    return sum[0];
}

// Adds x[0 ... n) to the partial sums.
static inline void partials_add(float *partials, const float *x, size_t n) {
    float sum[PARTIALS];
    memcpy(sum, partials, sizeof(sum));
    size_t i = 0;
    for (; i + PARTIALS <= n; i += PARTIALS) {
        for (int l = 0; l < PARTIALS; l++) sum[l] += x[i + (size_t)l];
    }
    for (int l = 0; i < n; i++, l++) sum[l] += x[i];
    memcpy(partials, sum, sizeof(sum));
}

// Adds x[i] y[i], i < n, by fused multiply-adds.
static inline void partials_add_products(float *partials, const float *x, const float *y, size_t n) {
    float sum[PARTIALS];
    memcpy(sum, partials, sizeof(sum));
    size_t i = 0;
    for (; i + PARTIALS <= n; i += PARTIALS) {
        for (int l = 0; l < PARTIALS; l++) sum[l] = fmaf(x[i + (size_t)l], y[i + (size_t)l], sum[l]);
    }
    for (int l = 0; i < n; i++, l++) sum[l] = fmaf(x[i], y[i], sum[l]);
    memcpy(partials, sum, sizeof(sum));
}

// Adds (x[i] - mean)^2, i < n.
static inline void partials_add_squared_differences(float *partials, const float *x, float mean, size_t n) {
    float sum[PARTIALS];
    memcpy(sum, partials, sizeof(sum));
    size_t i = 0;
    for (; i + PARTIALS <= n; i += PARTIALS) {
        for (int l = 0; l < PARTIALS; l++) {
            float d = x[i + (size_t)l] - mean;
            sum[l] = fmaf(d, d, sum[l]);
        }
    }
    for (int l = 0; i < n; i++, l++) sum[l] = fmaf(x[i] - mean, x[i] - mean, sum[l]);
    memcpy(partials, sum, sizeof(sum));
}

// The largest of `top` and x[0 ... n); NaN is passed over.
static inline float partials_maximum(float top, const float *x, size_t n) {
    float largest[PARTIALS];
    for (int l = 0; l < PARTIALS; l++) largest[l] = top;
    size_t i = 0;
    for (; i + PARTIALS <= n; i += PARTIALS) {
        for (int l = 0; l < PARTIALS; l++) largest[l] = x[i + (size_t)l] > largest[l] ? x[i + (size_t)l] : largest[l];
    }
    for (int l = 0; i < n; i++, l++) largest[l] = x[i] > largest[l] ? x[i] : largest[l];
    for (int width = PARTIALS / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; l++) {
            largest[l] = largest[l + width] > largest[l] ? largest[l + width] : largest[l];
        }
    }
    return largest[0];
}

#endif
