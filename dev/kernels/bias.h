// bias.h - the gradient of a bias: sums over rows.
//
//     backward   dbias (OC) (+)= column sums of dout (rows, OC)
//
// dout in the storage type, dbias fp32: summed completely, then added once to what is there, or (the first time in a
// step) replacing it. The forward is part of the product's (matmul.h). Cost per element: 1 operation, 1 element read.
#ifndef BIAS_H
#define BIAS_H

#include "../context.h"
#include "columns.h"

// Rows are summed in BIAS_GROUPS fixed groups, so the order does not depend on the number of threads.
enum { BIAS_GROUPS = 32 };

static inline size_t bias_groups(const Device *device, size_t rows) {
    return device->real == DEVICE_CUDA ? columns_groups(rows, 8 * COLUMNS_WARPS) : (size_t)BIAS_GROUPS;
}

static inline void bias_backward_cpu(Dtype dtype, float *dbias, const void *dout, size_t rows, size_t OC, bool add,
                                     float *sums) {
    size_t per_group = size_ceil_div(rows, BIAS_GROUPS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int group = 0; group < BIAS_GROUPS; group++) {
            float *sum = sums + (size_t)group * OC, block[NUMBER_BLOCK];
            memset(sum, 0, OC * sizeof(float));
            for (size_t r = (size_t)group * per_group; r < size_min(rows, ((size_t)group + 1) * per_group); r++) {
                for (size_t c = 0, n; c < OC; c += n) {
                    n = size_min(OC - c, NUMBER_BLOCK);
                    const float *x = number_load(dtype, dout, r * OC + c, n, block);
                    for (size_t i = 0; i < n; i++) sum[c + i] += x[i];
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < (int64_t)OC; c++) {
            float sum = 0.0f;
            for (size_t group = 0; group < BIAS_GROUPS; group++) sum += sums[group * OC + (size_t)c];
            dbias[c] = add ? dbias[c] + sum : sum;
        }
    }
}

#ifdef __CUDACC__
#include "bias.cuh"
#endif

// dbias (OC) fp32 (+)= column sums of dout (rows, OC)
static inline void bias_backward(const Context *context, float *dbias, const void *dout, size_t rows, size_t OC,
                                 bool add) {
    Device *device = context->device;
    Memory *memory = context->memory;
    const Dtype dtype = context->dtype;
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       bias_groups(device, rows) * OC * sizeof(float), "bias gradient sums");
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, (double)(rows * OC), (double)(rows * OC * number_size(dtype))); break;
    case DEVICE_CPU: bias_backward_cpu(dtype, dbias, dout, rows, OC, add, sums); break;
    case DEVICE_CUDA: CUDA_ONLY(bias_backward_cuda(context, dbias, dout, rows, OC, add, sums)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
