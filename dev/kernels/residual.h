// residual.h - the residual stream: out = a + b, all (n) in the storage type. out may be a or b.
//
// Its gradient is a copy, which needs no kernel: the layers add to the stream's gradient in place (layernorm.h).
// Cost per element: 1 operation, 3 elements moved.
#ifndef RESIDUAL_H
#define RESIDUAL_H

#include "../context.h"

// Elements first ... first + n, n <= NUMBER_BLOCK.
static inline void residual_block(Dtype dtype, void *out, const void *a, const void *b, size_t first, size_t n) {
    float a_block[NUMBER_BLOCK], b_block[NUMBER_BLOCK], out_block[NUMBER_BLOCK];
    const float *x = number_load(dtype, a, first, n, a_block), *y = number_load(dtype, b, first, n, b_block);
    float *z = number_target(dtype, out, first, out_block);
    for (size_t i = 0; i < n; i++) z[i] = x[i] + y[i];
    number_store(dtype, out, first, n, z);
}

static inline void residual_forward_cpu(Dtype dtype, void *out, const void *a, const void *b, size_t n_elements) {
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < (int64_t)n_elements; first += NUMBER_BLOCK) {
        residual_block(dtype, out, a, b, (size_t)first, size_min(n_elements - (size_t)first, NUMBER_BLOCK));
    }
}

#ifdef __CUDACC__
#include "residual.cuh"
#endif

// out = a + b, n_elements each.
static inline void residual_forward(const Context *context, void *out, const void *a, const void *b,
                                    size_t n_elements) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    double n = (double)n_elements;
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, n, 3 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: residual_forward_cpu(dtype, out, a, b, n_elements); return;
    case DEVICE_CUDA: CUDA_ONLY(residual_forward_cuda(context, out, a, b, n_elements)); return;
    }
}

#endif
