// adamw.cuh - the optimizer on CUDA: four elements a thread at a time, each tensor read and written once.
//
// Nothing is summed: the scalar arithmetic is the CPU's, and so are the bits.
#ifndef ADAMW_CUH
#define ADAMW_CUH

#include "vector.cuh"

// 4 elements a thread (N): 16 bytes of everything that is fp32, 8 of weights in 16 bits.
template <Dtype DTYPE, int N>
__global__ static void adamw_kernel(AdamW a, AdamWOperands of) {
    float *w = DTYPE == FP32 ? (float *)of.weights : of.master;
    vector_walk<N>(of.n_elements, [=](auto width, size_t first) {
        constexpr int W = decltype(width)::value;
        Vector<FP32, W> x, g, new_m, new_v;
        x.load(w, first);
        g.load(of.gradients, first);
        new_m.load(of.m, first);
        new_v.load(of.v, first);
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float decay = first + i < of.n_decay ? a.decay : 0.0f;
            x.x[i] = adamw_scalar(&a, x.x[i], g.x[i], &new_m.x[i], &new_v.x[i], decay);
        }
        x.store(w, first);
        new_m.store(of.m, first);
        new_v.store(of.v, first);
        if constexpr (DTYPE != FP32) {
            Vector<DTYPE, W> rounded;
#pragma unroll
            for (int i = 0; i < W; i++) rounded.x[i] = x.x[i];
            rounded.store(of.weights, first);
        }
    });
}

template <Dtype DTYPE> static inline auto adamw_form(bool wide) {
    return wide ? adamw_kernel<DTYPE, 4> : adamw_kernel<DTYPE, 1>;
}

static inline void adamw_cuda(Device *device, const AdamW *step, Dtype dtype, const AdamWOperands *of) {
    if (!step->apply) return;
    const bool wide = vector_is_wide(0, of->weights, of->master, of->m, of->v) && (uintptr_t)of->gradients % 16 == 0;
    auto run = VECTOR_FORM(dtype, adamw_form, wide);
    CUDA_RUN(device, run, cuda_blocks(size_ceil_div(of->n_elements, 4)), CUDA_THREADS, 0, *step, *of);
}

#endif
