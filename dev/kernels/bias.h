// bias.h - the gradient of a bias: sums over rows.
//
//     backward   dbias (OC) (+)= column sums of dout (rows, OC)
//
// dout in the storage type, dbias fp32: summed completely, then added once to what is there, or (the first time in a
// step) replacing it. The forward is part of the product's (matmul.h). Cost per element: 1 operation, 1 element read.
#ifndef BIAS_H
#define BIAS_H

#include "../memory.h"
#include "columns.h"

// Rows are summed in BIAS_SLOTS fixed groups, so the order does not depend on the number of threads.
enum { BIAS_SLOTS = 32 };

static inline size_t bias_slots(const Device *device, size_t rows) {
    return device->real == DEVICE_CUDA ? columns_slots(rows, 8 * COLUMNS_WARPS) : (size_t)BIAS_SLOTS;
}

static inline void bias_backward_cpu(Number type, float *dbias, const void *dout, size_t rows, size_t OC, bool add,
                                     float *sums) {
    size_t per_slot = ceil_div(rows, BIAS_SLOTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int slot = 0; slot < BIAS_SLOTS; slot++) {
            float *sum = sums + (size_t)slot * OC, block[NUMBER_BLOCK];
            memset(sum, 0, OC * sizeof(float));
            for (size_t r = (size_t)slot * per_slot; r < size_min(rows, ((size_t)slot + 1) * per_slot); r++) {
                for (size_t c = 0, n; c < OC; c += n) {
                    n = size_min(OC - c, NUMBER_BLOCK);
                    const float *x = number_load(type, dout, r * OC + c, n, block);
                    for (size_t i = 0; i < n; i++) sum[c + i] += x[i];
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < (int64_t)OC; c++) {
            float sum = 0.0f;
            for (size_t slot = 0; slot < BIAS_SLOTS; slot++) sum += sums[slot * OC + (size_t)c];
            dbias[c] = add ? dbias[c] + sum : sum;
        }
    }
}

#ifdef __CUDACC__
#include "bias.cuh"
#endif

// dbias (OC) fp32 (+)= column sums of dout (rows, OC)
static inline void bias_backward(Device *device, Memory *memory, Number type, float *dbias, const void *dout,
                                 size_t rows, size_t OC, bool add) {
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       bias_slots(device, rows) * OC * sizeof(float), "bias gradient sums");
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, (double)(rows * OC), (double)(rows * OC * number_size(type))); break;
    case DEVICE_CPU: bias_backward_cpu(type, dbias, dout, rows, OC, add, sums); break;
    case DEVICE_CUDA: CUDA_ONLY(bias_backward_cuda(device, type, dbias, dout, rows, OC, add, sums)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
