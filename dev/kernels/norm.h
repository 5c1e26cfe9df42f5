// norm.h - the global norm of the gradients, in one order whatever the device, the threads and the ranks.
//
//     norm = sqrt(sum of g^2)
//
// Gradients are fp32 and come in whole chunks of NORM_CHUNK elements (blocks are padded with zeros to that, store.h).
// Within a chunk NORM_PARTIALS partial sums in fp64, element i going to sum i % NORM_PARTIALS, then a binary tree;
// chunk sums are added in index order in fp64. fp64 because the square of a legal fp32 gradient can overflow fp32.
// Cost per element: 2 operations, 4 bytes.
#ifndef NORM_H
#define NORM_H

#include "../device.h"
#include "../partials.h"

enum { NORM_CHUNK = 4096, NORM_PARTIALS = 256 };

static inline double norm_chunk_cpu(const float *g) {
    double partials[NORM_PARTIALS];
    for (size_t l0 = 0; l0 < NORM_PARTIALS; l0 += PARTIALS) {  // a few at a time stay in registers
        double sums[PARTIALS] = {0};
        for (size_t i = l0; i < NORM_CHUNK; i += NORM_PARTIALS) {
            NUMBER_PREFETCH(g + NORM_CHUNK + i);
            for (size_t l = 0; l < PARTIALS; l++) sums[l] = fma((double)g[i + l], (double)g[i + l], sums[l]);
        }
        memcpy(partials + l0, sums, sizeof(sums));
    }
    for (size_t width = NORM_PARTIALS / 2; width > 0; width /= 2) {
        for (size_t l = 0; l < width; l++) partials[l] += partials[l + width];
    }
    return partials[0];
}

typedef struct {
    double *sums;
    const float *g;
    size_t n_chunks;
} NormCall;

static inline void norm_chunks_cpu(double *sums, const float *g, size_t n_chunks) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (int64_t)n_chunks; i++) sums[i] = norm_chunk_cpu(g + i * NORM_CHUNK);
}

// On a queue's own thread, beside the team of the compute queue.
static inline void norm_chunks_call(void *argument) {
    const NormCall *c = (const NormCall *)argument;
    for (size_t i = 0; i < c->n_chunks; i++) c->sums[i] = norm_chunk_cpu(c->g + i * NORM_CHUNK);
}

static inline void norm_total_cpu(double *total, const double *sums, size_t n_chunks) {
    *total = 0;
    for (size_t i = 0; i < n_chunks; i++) *total += sums[i];
}

#ifdef __CUDACC__
#include "norm.cuh"
#endif

// sums[i] = sum of squares of chunk i of g, for n_elements / NORM_CHUNK chunks; on a queue.
static inline void norm_chunks(Device *device, Queue queue, double *sums, const float *g, size_t n_elements) {
    NormCall call = {sums, g, n_elements / NORM_CHUNK};
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 2 * (double)n_elements, 4 * (double)n_elements); return;
    case DEVICE_CPU:
        if (queue == QUEUE_COMPUTE) norm_chunks_cpu(sums, g, call.n_chunks);
        else device_call(device, queue, norm_chunks_call, &call, sizeof(call));
        return;
    case DEVICE_CUDA: CUDA_ONLY(norm_chunks_cuda(device, queue, sums, g, call.n_chunks)); return;
    }
}

// *total (fp64, on the device) = sum of all chunk sums: the square of the norm.
static inline void norm_total(Device *device, double *total, const double *sums, size_t n_chunks) {
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, (double)n_chunks, 8 * (double)n_chunks); return;
    case DEVICE_CPU: norm_total_cpu(total, sums, n_chunks); return;
    case DEVICE_CUDA: CUDA_ONLY(norm_total_cuda(device, total, sums, n_chunks)); return;
    }
}

#endif
