// residual.cuh - out = a + b on CUDA: a vector of 16 bytes a thread at a time, three elements moved for each sum.
#ifndef RESIDUAL_CUH
#define RESIDUAL_CUH

#include "vector.cuh"

template <Dtype DTYPE, int N>
__global__ static void residual_forward_kernel(void *out, const void *a, const void *b, size_t n) {
    vector_walk<N>(n, [=](auto width, size_t first) {
        constexpr int W = decltype(width)::value;
        Vector<DTYPE, W> x, y;
        x.load(a, first);
        y.load(b, first);
#pragma unroll
        for (int i = 0; i < W; i++) x.x[i] += y.x[i];
        x.store(out, first);
    });
}

static inline void residual_forward_cuda(const Context *context, void *out, const void *a, const void *b,
                                         size_t n_elements) {
    const bool wide = vector_is_wide(0, out, a, b, NULL);
    const size_t blocks = vector_blocks(context->dtype, wide, n_elements);
    auto run = VECTOR_SELECT(context->dtype, wide, residual_forward_kernel);
    CUDA_RUN(context->device, run, blocks, CUDA_THREADS, 0, out, a, b, n_elements);
}

#endif
