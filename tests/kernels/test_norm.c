// test_norm.c - kernels/norm.h: the sum of the squares of gradients, by chunks and of all.
#include "cases.h"

#include "naive_halves.h"

#include "../../dev/kernels/norm.h"

// chunks
static const Shape NORM_SHAPES[] = {{{1}}, {{2}}, {{3}}, {{17}}, {{0}}};
static const Shape NORM_TOTAL_SHAPES[] = {{{1}}, {{2}}, {{17}}, {{255}}, {{256}}, {{257}}, {{1000}}, {{0}}};

typedef struct {
    Buffer *sums, *gradients;
} NormChunksBuffers;

static void call_norm_chunks(const Run *run, const Context *context, const void *operands) {
    const NormChunksBuffers *x = (const NormChunksBuffers *)operands;
    norm_chunks(context->device, QUEUE_COMPUTE, data(x->sums), data(x->gradients), run->n[0] * NORM_CHUNK);
}

// Exactly: there is one order.
static void test_norm_chunks(Run *run) {
    NormChunksBuffers x;
    x.sums = made(run, "sums", MADE, IN_FP64, run->n[0], NORM_CHUNK);
    x.gradients = given(run, "gradients", IN_FP32, run->n[0] * NORM_CHUNK, 1);
    const double *g = x.gradients->given;
    for (size_t i = 0; i < run->n[0]; i++, g += NORM_CHUNK) {
        double partials[HALVES] = {0};
        for (size_t e = 0; e < NORM_CHUNK; e++) partials[e % HALVES] = fma(g[e], g[e], partials[e % HALVES]);
        want(x.sums, i, naive_halves(partials), EXACT);
    }
    execute(run, call_norm_chunks, &x);
}

typedef struct {
    Buffer *total, *sums;
} NormTotalBuffers;

static void call_norm_total(const Run *run, const Context *context, const void *operands) {
    const NormTotalBuffers *x = (const NormTotalBuffers *)operands;
    norm_total(context->device, data(x->total), data(x->sums), run->n[0]);
}

// Exactly: in the order of the chunks.
static void test_norm_total(Run *run) {
    NormTotalBuffers x;
    x.total = made(run, "total", MADE, IN_FP64, 1, run->n[0]);
    x.sums = given(run, "sums", IN_FP64, run->n[0], 1);
    double total = 0;
    for (size_t i = 0; i < run->n[0]; i++) {
        x.sums->given[i] = fabs(x.sums->given[i]) * exp2((double)(i % 61));  // their sum is rounded: the order shows
        total += x.sums->given[i];
    }
    want(x.total, 0, total, EXACT);
    execute(run, call_norm_total, &x);
}

#ifndef __CUDACC__
static void test_norm_special(void **state) {
    (void)state;
    static float g[3 * NORM_CHUNK];
    double sums[3];
    Device device = cpu_device(1);
    const struct { float fill, one; double norm; } rows[] = {
        {0, 0, 0}, {1, 1, 110.85125168440814}, {1e20f, 1e20f, (double)1e20f * 110.85125168440814},
        {FLT_MAX, FLT_MAX, (double)FLT_MAX * 110.85125168440814}, {0, FLT_TRUE_MIN, (double)FLT_TRUE_MIN},
        {1, NAN, NAN}, {1, INFINITY, INFINITY}, {1, -INFINITY, INFINITY}};
    for (size_t i = 0; i < 8; i++) {
        for (size_t e = 0; e < 3 * NORM_CHUNK; e++) g[e] = rows[i].fill;
        for (size_t at = 0; at < 3 * NORM_CHUNK; at += 4099) {  // in each chunk
            g[at] = rows[i].one;
            norm_chunks(&device, QUEUE_COMPUTE, sums, g, 3 * NORM_CHUNK);
            double norm = 0;
            norm_total(&device, &norm, sums, 3);
            norm = sqrt(norm);
            g[at] = rows[i].fill;
            if (isnan(rows[i].norm)) assert_true(isnan(norm));
            else assert_true(norm == rows[i].norm || fabs(norm / rows[i].norm - 1) <= 1e-14);
        }
    }
    device.kind = DEVICE_PLAN;
    norm_total(&device, NULL, NULL, 3);
    assert_true(device.bytes == 24);
}
#endif

static const Operation NORM_OPERATIONS[] = {
    {"norm_chunks", test_norm_chunks, NORM_SHAPES, {""}, FP32_ONLY | ONE_ORDER, NULL},
    {"norm_total", test_norm_total, NORM_TOTAL_SHAPES, {""}, FP32_ONLY | ONE_ORDER, NULL},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest NORM_TESTS[] = {
#ifndef __CUDACC__
    cmocka_unit_test(test_norm_special),
#endif
    NO_MORE_TESTS};
static const Group NORM_GROUP = {NORM_OPERATIONS, NORM_TESTS};
KERNEL_MAIN(NORM_GROUP)
