// gelu.cuh - the activation function on CUDA: 16 bytes a thread at a time.
//
// Forward reads one element and writes one; backward reads two and writes one. The bias of the product before it can
// be summed in the backward's visit: of dx as it is stored, over a group's rows, in the order of bias.cuh.
#ifndef GELU_CUH
#define GELU_CUH

#include "vector.cuh"

template <Dtype DTYPE, int N> __global__ static void gelu_forward_kernel(void *out, const void *in, size_t n) {
    vector_walk<N>(n, [=](auto width, size_t first) {
        constexpr int W = decltype(width)::value;
        Vector<DTYPE, W> x;
        x.load(in, first);
#pragma unroll
        for (int i = 0; i < W; i++) x.x[i] = gelu_scalar(x.x[i]);
        x.store(out, first);
    });
}

static inline void gelu_forward_cuda(const Context *context, void *out, const void *in, size_t n_elements) {
    const bool wide = vector_is_wide(0, out, in, NULL, NULL);
    const size_t blocks = vector_blocks(context->dtype, wide, n_elements);
    auto run = VECTOR_SELECT(context->dtype, wide, gelu_forward_kernel);
    CUDA_RUN(context->device, run, blocks, CUDA_THREADS, 0, out, in, n_elements);
}

template <Dtype DTYPE, int N>
__global__ static void gelu_backward_kernel(void *dx, const void *dy, const void *in, size_t n) {
    vector_walk<N>(n, [=](auto width, size_t first) {
        constexpr int W = decltype(width)::value;
        Vector<DTYPE, W> x, d;
        x.load(in, first);
        d.load(dy, first);
#pragma unroll
        for (int i = 0; i < W; i++) d.x[i] = gelu_gradient_scalar(x.x[i], d.x[i]);
        d.store(dx, first);
    });
}

static inline void gelu_backward_cuda(const Context *context, void *dx, const void *dy, const void *in,
                                      size_t n_elements) {
    const bool wide = vector_is_wide(0, dx, dy, in, NULL);
    const size_t blocks = vector_blocks(context->dtype, wide, n_elements);
    auto run = VECTOR_SELECT(context->dtype, wide, gelu_backward_kernel);
    CUDA_RUN(context->device, run, blocks, CUDA_THREADS, 0, dx, dy, in, n_elements);
}

// dx as gelu_backward's, and its sums over a group's rows as bias_backward_kernel's.
template <Dtype DTYPE, int N>
__global__ static void gelu_backward_bias_kernel(void *dx, float *sums, const void *dy, const void *in, size_t rows,
                                                 size_t C) {
    __shared__ float shared[COLUMNS_WARPS * WARP * N];
    const size_t c0 = (size_t)blockIdx.x * WARP * N, c = c0 + threadIdx.x % WARP * N;
    const size_t per_group = size_ceil_div(rows, gridDim.y), first = blockIdx.y * per_group;
    const size_t last = size_min(rows, first + per_group);
    float own[N] = {};
#pragma unroll 2
    for (size_t r = first + threadIdx.x / WARP; r < last && c < C; r += COLUMNS_WARPS) {
        Vector<DTYPE, N> x, d;
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

// dx, and the groups' sums (bias_groups(), C), which columns_total() adds up.
static inline void gelu_backward_bias_cuda(const Context *context, void *dx, float *sums, const void *dy,
                                           const void *in, size_t rows, size_t C) {
    const Dtype dtype = context->dtype;
    const size_t groups = bias_groups(context->device, rows);
    const bool wide = vector_is_wide(C * number_size(dtype), dx, dy, in, NULL);
    auto run = VECTOR_SELECT(dtype, wide, gelu_backward_bias_kernel);
    const size_t across = size_ceil_div(C, WARP * (wide ? vector_wide(dtype) : 1));
    CUDA_RUN_GRID(context->device, run, cuda_grid(across, groups), CUDA_THREADS, 0, dx, sums, dy, in, rows, C);
}

#endif
