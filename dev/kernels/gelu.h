// gelu.h - the activation function, in its tanh form.
//
//     forward    y = x/2 (1 + tanh(u)) = x s(2u),  u = sqrt(2/pi) (x + 0.044715 x^3),  s(x) = 1 / (1 + exp(-x))
//     backward   dx = dy (s + x s (1 - s) 2u'),  u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// x, y, dy, dx (n) in the storage type; dx may be dy. The backward needs x; y can be recomputed from it.
// Cost per element: about 25 operations; forward moves 2 elements, backward 3, with or without the sums for the bias.
#ifndef GELU_H
#define GELU_H

#include "bias.h"

#define GELU_SCALE 0.7978845608f  // sqrt(2/pi)
#define GELU_CUBIC 0.044715f

// Beyond +-1e4 the sigmoid is 1 or as good as 0: the clamps only keep x and x^2 from overflowing there.
HOST_DEVICE float gelu_scalar(float x) {
    x = x < -1e4f ? -1e4f : x;
    return x * number_sigmoid(2.0f * GELU_SCALE * fmaf(GELU_CUBIC * x * x, x, x));
}

HOST_DEVICE float gelu_gradient_scalar(float x, float dy) {
    x = x < -1e4f ? -1e4f : x;
    x = x > 1e4f ? 1e4f : x;
    float s = number_sigmoid(2.0f * GELU_SCALE * fmaf(GELU_CUBIC * x * x, x, x));
    float du = 2.0f * GELU_SCALE * fmaf(3.0f * GELU_CUBIC * x, x, 1.0f);
    return dy * fmaf(x * s * (1.0f - s), du, s);
}

static inline void gelu_forward_cpu(Dtype dtype, void *out, const void *in, size_t n_elements) {
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < (int64_t)n_elements; first += NUMBER_BLOCK) {
        float in_block[NUMBER_BLOCK], out_block[NUMBER_BLOCK];
        size_t n = size_min(n_elements - (size_t)first, NUMBER_BLOCK);
        const float *x = number_load(dtype, in, (size_t)first, n, in_block);
        float *y = number_target(dtype, out, (size_t)first, out_block);
        for (size_t i = 0; i < n; i++) y[i] = gelu_scalar(x[i]);
        number_store(dtype, out, (size_t)first, n, y);
    }
}

static inline void gelu_backward_cpu(Dtype dtype, void *dx, const void *dy, const void *in, size_t n_elements) {
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < (int64_t)n_elements; first += NUMBER_BLOCK) {
        float in_block[NUMBER_BLOCK], dy_block[NUMBER_BLOCK], dx_block[NUMBER_BLOCK];
        size_t n = size_min(n_elements - (size_t)first, NUMBER_BLOCK);
        const float *x = number_load(dtype, in, (size_t)first, n, in_block);
        const float *d = number_load(dtype, dy, (size_t)first, n, dy_block);
        float *to = number_target(dtype, dx, (size_t)first, dx_block);
        for (size_t i = 0; i < n; i++) to[i] = gelu_gradient_scalar(x[i], d[i]);
        number_store(dtype, dx, (size_t)first, n, to);
    }
}

#ifdef __CUDACC__
#include "gelu.cuh"
#endif

// out = GELU of in, n_elements each.
static inline void gelu_forward(const Context *context, void *out, const void *in, size_t n_elements) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    double n = (double)n_elements;
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 25 * n, 2 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: gelu_forward_cpu(dtype, out, in, n_elements); return;
    case DEVICE_CUDA: CUDA_ONLY(gelu_forward_cuda(context, out, in, n_elements)); return;
    }
}

// dx from dy and the forward's in, n_elements each; dx may be dy.
static inline void gelu_backward(const Context *context, void *dx, const void *dy, const void *in, size_t n_elements) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    double n = (double)n_elements;
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 30 * n, 3 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: gelu_backward_cpu(dtype, dx, dy, in, n_elements); return;
    case DEVICE_CUDA: CUDA_ONLY(gelu_backward_cuda(context, dx, dy, in, n_elements)); return;
    }
}

// gelu_backward of (rows, C), and dbias (C) fp32 (+)= column sums of dx: on CUDA in one visit.
static inline void gelu_backward_bias(const Context *context, void *dx, float *dbias, const void *dy, const void *in,
                                      size_t rows, size_t C, bool add) {
    Device *device = context->device;
    Memory *memory = context->memory;
    if (device->real != DEVICE_CUDA) {
        gelu_backward(context, dx, dy, in, rows * C);
        bias_backward(context, dbias, dx, rows, C, add);
        return;
    }
    double n = (double)(rows * C);
    size_t mark = memory_mark(memory, TIER_DEVICE), groups = bias_groups(device, rows);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, groups * C * sizeof(float),
                                       "bias gradient sums");
    (void)sums;
    if (device->kind == DEVICE_PLAN) {
        device_count(device, 31 * n, 3 * n * (double)number_size(context->dtype));
    } else {
        CUDA_ONLY(gelu_backward_bias_cuda(context, dx, sums, dy, in, rows, C));
        CUDA_ONLY(columns_total(device, dbias, NULL, C, sums, groups, C, add));
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
