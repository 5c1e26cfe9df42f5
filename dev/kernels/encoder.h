// encoder.h - tokens become vectors.
//
//     forward    out[b,t,:] = wte[token[b,t],:] + wpe[t,:]
//     backward   dwte[token[b,t],:] += dout[b,t,:],   dwpe[t,:] (+)= sum over b of dout[b,t,:]
//
// out, dout (B,T,C), wte (Vp,C), wpe (maxT,C) in the storage type; gradients fp32. dwte already holds the head's part
// (the embedding is tied), so it is always added to. The sums run over positions in ascending order: on the CPU
// threads share the channels, not the positions; on CUDA a block takes a token. Cost: B T C additions each way.
#ifndef ENCODER_H
#define ENCODER_H

#include "vector.h"

static inline void encoder_forward_cpu(Number type, void *out, const int32_t *tokens, const void *wte,
                                       const void *wpe, size_t B, size_t T, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t bt = 0; bt < (int64_t)(B * T); bt++) {
        float token_block[NUMBER_BLOCK], position_block[NUMBER_BLOCK], out_block[NUMBER_BLOCK];
        size_t row = (size_t)bt * C, token = (size_t)tokens[bt] * C, position = (size_t)bt % T * C;
        for (size_t c = 0, n; c < C; c += n) {
            n = size_min(C - c, NUMBER_BLOCK);
            const float *x = number_load(type, wte, token + c, n, token_block);
            const float *p = number_load(type, wpe, position + c, n, position_block);
            float *y = number_target(type, out, row + c, out_block);
            for (size_t i = 0; i < n; i++) y[i] = x[i] + p[i];
            number_store(type, out, row + c, n, y);
        }
    }
}

#ifdef __CUDACC__
template <Number TYPE, int N>
__global__ static void encoder_forward_kernel(void *out, const int32_t *tokens, const void *wte, const void *wpe,
                                              size_t T, size_t C, size_t n_elements) {
    vector_walk<N>(n_elements, [=](auto width, size_t at) {
        constexpr int W = decltype(width)::value;
        const size_t bt = at / C, c = at % C;
        Vector<TYPE, W> x, position;
        x.load(wte, (size_t)tokens[bt] * C + c);
        position.load(wpe, bt % T * C + c);
#pragma unroll
        for (int i = 0; i < W; i++) x.x[i] += position.x[i];
        x.store(out, at);
    });
}

static inline void encoder_forward_cuda(Device *device, Number type, void *out, const int32_t *tokens, const void *wte,
                                        const void *wpe, size_t B, size_t T, size_t C) {
    const bool wide = vector_is_wide(C * number_size(type), out, wte, wpe, NULL);
    auto run = VECTOR_SELECT(type, wide, encoder_forward_kernel);
    CUDA_RUN(device, run, vector_blocks(type, wide, B * T * C), CUDA_THREADS, 0, out, tokens, wte, wpe, T, C,
             B * T * C);
}
#endif

static inline void encoder_forward(Device *device, Number type, void *out, const int32_t *tokens, const void *wte,
                                   const void *wpe, size_t B, size_t T, size_t C) {
    double n = (double)(B * T * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, n, 3 * n * (double)number_size(type)); return;
    case DEVICE_CPU: encoder_forward_cpu(type, out, tokens, wte, wpe, B, T, C); return;
    case DEVICE_CUDA: CUDA_ONLY(encoder_forward_cuda(device, type, out, tokens, wte, wpe, B, T, C)); return;
    }
}

enum { ENCODER_CHANNELS = 128 };  // channels of one thread's share

static inline void encoder_backward_cpu(Number type, float *dwte, float *dwpe, const void *dout,
                                        const int32_t *tokens, size_t B, size_t T, size_t maxT, size_t C, bool add) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t share = 0; share < (int64_t)ceil_div(C, ENCODER_CHANNELS); share++) {
        float block[ENCODER_CHANNELS];
        size_t c0 = (size_t)share * ENCODER_CHANNELS, n = size_min(C - c0, ENCODER_CHANNELS);
        for (size_t t = 0; t < maxT && !add; t++) memset(dwpe + t * C + c0, 0, n * sizeof(float));
        for (size_t t = 0; t < T; t++) {
            float sum[ENCODER_CHANNELS] = {0};
            for (size_t b = 0; b < B; b++) {
                const float *d = number_load(type, dout, (b * T + t) * C + c0, n, block);
                for (size_t i = 0; i < n; i++) sum[i] += d[i];
            }
            for (size_t i = 0; i < n; i++) dwpe[t * C + c0 + i] += sum[i];
        }
        for (size_t bt = 0; bt < B * T; bt++) {
            const float *d = number_load(type, dout, bt * C + c0, n, block);
            float *to = dwte + (size_t)tokens[bt] * C + c0;
            for (size_t i = 0; i < n; i++) to[i] += d[i];
        }
    }
}

#ifdef __CUDACC__
// One block per position. Only the first position of each token stays: it sums the rows of all that follow, in
// ascending order, and adds the sum once. Looking back from near to far, most others find soon that they aren't the
// first; those that are cost a walk over all tokens. Channels beyond a vector per thread take further rounds.
template <Number TYPE, int N>
__global__ static void encoder_backward_tokens_kernel(float *dwte, const void *dout, const int32_t *tokens,
                                                      size_t n_positions, size_t C) {
    __shared__ uint32_t mine[CUDA_THREADS / WARP];  // a bit per position
    const size_t first = blockIdx.x;
    const int32_t token = tokens[first];
    for (size_t end = first, n; end > 0; end -= n) {
        n = size_min(end, CUDA_THREADS);
        if (__syncthreads_or(threadIdx.x < n && tokens[end - n + threadIdx.x] == token)) return;
    }
    for (size_t c0 = 0; c0 < C; c0 += CUDA_THREADS * N) {
        const size_t c = c0 + threadIdx.x * N;
        Vector<TYPE, N> sum = {};
        for (size_t i0 = first; i0 < n_positions; i0 += CUDA_THREADS) {
            const size_t i = i0 + threadIdx.x;
            const uint32_t bits = __ballot_sync(0xffffffffu, i < n_positions && tokens[i] == token);
            if (threadIdx.x % WARP == 0) mine[threadIdx.x / WARP] = bits;
            __syncthreads();
            for (int w = 0; w < CUDA_THREADS / WARP && c < C; w++) {
                for (uint32_t left = mine[w]; left != 0; left &= left - 1) {
                    Vector<TYPE, N> x;
                    x.load(dout, (i0 + w * WARP + __ffs((int)left) - 1) * C + c);
#pragma unroll
                    for (int k = 0; k < N; k++) sum.x[k] += x.x[k];
                }
            }
            __syncthreads();
        }
        for (int k = 0; k < N && c < C; k++) dwte[(size_t)token * C + c + k] += sum.x[k];
    }
}

// 4 channels a thread (N), or 1.
template <Number TYPE, int N>
__global__ static void encoder_backward_positions_kernel(float *dwpe, const void *dout, size_t B, size_t T, size_t maxT,
                                                         size_t C, bool add) {
    vector_walk<N>(maxT * C, [=](auto width, size_t at) {
        constexpr int W = decltype(width)::value;
        Vector<TYPE, W> x;
        Vector<FP32, W> sum = {}, before;
        for (size_t b = 0; b < B && at < T * C; b++) {
            x.load(dout, b * T * C + at);
#pragma unroll
            for (int i = 0; i < W; i++) sum.x[i] += x.x[i];
        }
        if (add) before.load(dwpe, at);
#pragma unroll
        for (int i = 0; i < W; i++) sum.x[i] = add ? before.x[i] + sum.x[i] : sum.x[i];
        sum.store(dwpe, at);
    });
}

template <Number TYPE> static inline auto encoder_positions_form(bool wide) {
    return wide ? encoder_backward_positions_kernel<TYPE, 4> : encoder_backward_positions_kernel<TYPE, 1>;
}

static inline void encoder_backward_cuda(Device *device, Number type, float *dwte, float *dwpe, const void *dout,
                                         const int32_t *tokens, size_t B, size_t T, size_t maxT, size_t C, bool add) {
    auto of_tokens = VECTOR_SELECT(type, vector_is_wide(C * number_size(type), dout, NULL, NULL, NULL),
                                   encoder_backward_tokens_kernel);
    const bool wide = vector_is_wide(C * sizeof(float), dout, dwpe, NULL, NULL);
    auto of_positions = VECTOR_FORM(type, encoder_positions_form, wide);
    CUDA_RUN(device, of_tokens, B * T, CUDA_THREADS, 0, dwte, dout, tokens, B * T, C);
    CUDA_RUN(device, of_positions, cuda_blocks(ceil_div(maxT * C, 4)), CUDA_THREADS, 0, dwpe, dout, B, T, maxT, C, add);
}
#endif

// `add` false: the first micro-batch of a step; dwpe (all maxT rows) is replaced.
static inline void encoder_backward(Device *device, Number type, float *dwte, float *dwpe, const void *dout,
                                    const int32_t *tokens, size_t B, size_t T, size_t maxT, size_t C, bool add) {
    double n = (double)(B * T * C);
    switch (device->kind) {
    case DEVICE_PLAN:
        device_plan(device, 2 * n, n * (double)number_size(type) + 8 * n + 8 * (double)(maxT * C));
        return;
    case DEVICE_CPU: encoder_backward_cpu(type, dwte, dwpe, dout, tokens, B, T, maxT, C, add); return;
    case DEVICE_CUDA:
        CUDA_ONLY(encoder_backward_cuda(device, type, dwte, dwpe, dout, tokens, B, T, maxT, C, add));
        return;
    }
}

#endif
