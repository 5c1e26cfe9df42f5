// gelu.h - the activation function, in its tanh form.
//
//     forward    y = x/2 (1 + tanh(u)) = x s(2u),  u = sqrt(2/pi) (x + 0.044715 x^3),  s(x) = 1 / (1 + exp(-x))
//     backward   dx = dy (s + x s (1 - s) 2u'),  u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//
// x, y, dy, dx (n) in the storage type; dx may be dy. The backward needs x; y can be recomputed from it.
// Cost per element: about 25 operations; forward moves 2 elements, backward 3, with or without the sums for the bias.
#ifndef GELU_H
#define GELU_H

#include "matmul.h"

#define GELU_SCALE 0.7978845608f  // sqrt(2/pi)
#define GELU_CUBIC 0.044715f

// Beyond +-1e4 the sigmoid is 1 or as good as 0: the clamps only keep x and x^2 from overflowing there.
SHARED float gelu_scalar(float x) {
    x = x < -1e4f ? -1e4f : x;
    return x * number_sigmoid(2.0f * GELU_SCALE * fmaf(GELU_CUBIC * x * x, x, x));
}

SHARED float gelu_gradient_scalar(float x, float dy) {
    x = x < -1e4f ? -1e4f : x;
    x = x > 1e4f ? 1e4f : x;
    float s = number_sigmoid(2.0f * GELU_SCALE * fmaf(GELU_CUBIC * x * x, x, x));
    float du = 2.0f * GELU_SCALE * fmaf(3.0f * GELU_CUBIC * x, x, 1.0f);
    return dy * fmaf(x * s * (1.0f - s), du, s);
}

static inline void gelu_forward_cpu(Number type, void *out, const void *in, size_t n_elements) {
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < (int64_t)n_elements; at += NUMBER_BLOCK) {
        float in_block[NUMBER_BLOCK], out_block[NUMBER_BLOCK];
        size_t n = size_min(n_elements - (size_t)at, NUMBER_BLOCK);
        const float *x = number_load(type, in, (size_t)at, n, in_block);
        float *y = number_target(type, out, (size_t)at, out_block);
        for (size_t i = 0; i < n; i++) y[i] = gelu_scalar(x[i]);
        number_store(type, out, (size_t)at, n, y);
    }
}

#ifdef __CUDACC__
template <Number TYPE, int N> __global__ static void gelu_forward_kernel(void *out, const void *in, size_t n) {
    vector_walk<N>(n, [=](auto width, size_t at) {
        constexpr int W = decltype(width)::value;
        Vector<TYPE, W> x;
        x.load(in, at);
#pragma unroll
        for (int i = 0; i < W; i++) x.x[i] = gelu_scalar(x.x[i]);
        x.store(out, at);
    });
}

static inline void gelu_forward_cuda(Device *device, Number type, void *out, const void *in, size_t n_elements) {
    const bool wide = vector_is_wide(0, out, in, NULL, NULL);
    auto run = VECTOR_SELECT(type, wide, gelu_forward_kernel);
    CUDA_RUN(device, run, vector_blocks(type, wide, n_elements), CUDA_THREADS, 0, out, in, n_elements);
}

template <Number TYPE, int N>
__global__ static void gelu_backward_kernel(void *dx, const void *dy, const void *in, size_t n) {
    vector_walk<N>(n, [=](auto width, size_t at) {
        constexpr int W = decltype(width)::value;
        Vector<TYPE, W> x, d;
        x.load(in, at);
        d.load(dy, at);
#pragma unroll
        for (int i = 0; i < W; i++) d.x[i] = gelu_gradient_scalar(x.x[i], d.x[i]);
        d.store(dx, at);
    });
}

static inline void gelu_backward_cuda(Device *device, Number type, void *dx, const void *dy, const void *in,
                                      size_t n_elements) {
    const bool wide = vector_is_wide(0, dx, dy, in, NULL);
    auto run = VECTOR_SELECT(type, wide, gelu_backward_kernel);
    CUDA_RUN(device, run, vector_blocks(type, wide, n_elements), CUDA_THREADS, 0, dx, dy, in, n_elements);
}
#endif

static inline void gelu_forward(Device *device, Number type, void *out, const void *in, size_t n_elements) {
    double n = (double)n_elements;
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 25 * n, 2 * n * (double)number_size(type)); return;
    case DEVICE_CPU: gelu_forward_cpu(type, out, in, n_elements); return;
    case DEVICE_CUDA:
        CUDA_ONLY(gelu_forward_cuda(device, type, out, in, n_elements));
        return;
    }
}

static inline void gelu_backward_cpu(Number type, void *dx, const void *dy, const void *in, size_t n_elements) {
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < (int64_t)n_elements; at += NUMBER_BLOCK) {
        float in_block[NUMBER_BLOCK], dy_block[NUMBER_BLOCK], dx_block[NUMBER_BLOCK];
        size_t n = size_min(n_elements - (size_t)at, NUMBER_BLOCK);
        const float *x = number_load(type, in, (size_t)at, n, in_block);
        const float *d = number_load(type, dy, (size_t)at, n, dy_block);
        float *to = number_target(type, dx, (size_t)at, dx_block);
        for (size_t i = 0; i < n; i++) to[i] = gelu_gradient_scalar(x[i], d[i]);
        number_store(type, dx, (size_t)at, n, to);
    }
}

static inline void gelu_backward(Device *device, Number type, void *dx, const void *dy, const void *in,
                                 size_t n_elements) {
    double n = (double)n_elements;
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 30 * n, 3 * n * (double)number_size(type)); return;
    case DEVICE_CPU: gelu_backward_cpu(type, dx, dy, in, n_elements); return;
    case DEVICE_CUDA:
        CUDA_ONLY(gelu_backward_cuda(device, type, dx, dy, in, n_elements));
        return;
    }
}

#ifdef __CUDACC__
// dx as gelu_backward's, and its sums over a slot's rows as matmul_bias_kernel's.
template <Number TYPE, int N>
__global__ static void gelu_backward_bias_kernel(void *dx, float *sums, const void *dy, const void *in, size_t rows,
                                                 size_t C) {
    __shared__ float shared[VECTOR_WARPS * WARP * N];
    const size_t c0 = (size_t)blockIdx.x * WARP * N, c = c0 + threadIdx.x % WARP * N;
    const size_t per_slot = ceil_div(rows, gridDim.y), first = blockIdx.y * per_slot;
    const size_t last = size_min(rows, first + per_slot);
    float own[N] = {};
#pragma unroll 2
    for (size_t r = first + threadIdx.x / WARP; r < last && c < C; r += VECTOR_WARPS) {
        Vector<TYPE, N> x, d;
        x.load(in, r * C + c);
        d.load(dy, r * C + c);
#pragma unroll
        for (int i = 0; i < N; i++) d.x[i] = gelu_gradient_scalar(x.x[i], d.x[i]);
        d.round();
#pragma unroll
        for (int i = 0; i < N; i++) own[i] += d.x[i];
        d.store(dx, r * C + c);
    }
    columns_store<N>(sums + blockIdx.y * C + c0, C - c0, own, shared);
}

static inline void gelu_backward_bias_cuda(Device *device, Number type, void *dx, float *dbias, const void *dy,
                                           const void *in, size_t rows, size_t C, bool add, float *sums) {
    const size_t slots = matmul_bias_slots(device, rows);
    const bool wide = vector_is_wide(C * number_size(type), dx, dy, in, NULL);
    auto run = VECTOR_SELECT(type, wide, gelu_backward_bias_kernel);
    const size_t across = ceil_div(C, WARP * (wide ? vector_wide(type) : 1));
    CUDA_RUN_GRID(device, run, cuda_grid(across, slots), CUDA_THREADS, 0, dx, sums, dy, in, rows, C);
    columns_total(device, dbias, NULL, C, sums, slots, C, add);
}
#endif

// gelu_backward of (rows, C), and dbias (C) fp32 (+)= column sums of dx: on CUDA in one visit.
static inline void gelu_backward_bias(Device *device, Memory *memory, Number type, void *dx, float *dbias,
                                      const void *dy, const void *in, size_t rows, size_t C, bool add) {
    if (device->real != DEVICE_CUDA) {
        gelu_backward(device, type, dx, dy, in, rows * C);
        matmul_backward_bias(device, memory, type, dbias, dx, rows, C, add);
        return;
    }
    double n = (double)(rows * C);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       matmul_bias_slots(device, rows) * C * sizeof(float), "bias gradient sums");
    (void)sums;
    if (device->kind == DEVICE_PLAN) device_plan(device, 31 * n, 3 * n * (double)number_size(type));
    else CUDA_ONLY(gelu_backward_bias_cuda(device, type, dx, dbias, dy, in, rows, C, add, sums));
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
