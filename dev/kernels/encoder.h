// encoder.h - tokens become vectors.
//
//     forward    out[b,t,:] = wte[token[b,t],:] + wpe[t,:]
//     backward   dwte[token[b,t],:] += dout[b,t,:],   dwpe[t,:] (+)= sum over b of dout[b,t,:]
//
// out, dout (B,T,C), wte (Vp,C), wpe (maxT,C) in the storage type; gradients fp32. dwte already holds the head's part
// (the embedding is tied), so it is always added to. Cost: B T C additions each way.
//
// Some tokens are rare and some are everywhere, so the backward goes by tokens: the host sorts a batch's positions, and
// the rows of a token are read one after the other, in ascending order, and added to dwte once. The sum of a token of
// many rows is in up to 8 portions, which are added in order, so that on CUDA eight warps share it; the bits are the
// same on all devices.
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

enum { ENCODER_ROWS = 32, ENCODER_CHANNELS = 128 };  // rows of a portion, at least; channels of one thread's share

// Sorts the positions of n tokens by their token: positions[0 ... n) are those of the smallest token, ascending, then
// those of the next; positions[n + k] is where those of the k-th begin, up to k = the number of distinct tokens, which
// is returned, where there is n. counts: scratch of V numbers. All tokens are below V.
static inline size_t encoder_sort(int32_t *positions, int32_t *counts, const int32_t *tokens, size_t n, size_t V) {
    size_t n_distinct = 0;
    int32_t *first = positions + n, at = 0;
    memset(counts, 0, V * sizeof(int32_t));
    for (size_t i = 0; i < n; i++) counts[tokens[i]]++;
    for (size_t v = 0; v < V; v++) {  // from here on, where the next one goes
        const int32_t count = counts[v];
        if (count > 0) first[n_distinct++] = at;
        counts[v] = at;
        at += count;
    }
    first[n_distinct] = at;
    for (size_t i = 0; i < n; i++) positions[counts[tokens[i]]++] = (int32_t)i;
    return n_distinct;
}

// Rows of a portion of a token's sum.
SHARED size_t encoder_portion(size_t rows) { return size_max(ENCODER_ROWS, ceil_div(rows, VECTOR_WARPS)); }

// to[0 ... n) += a row's channels.
static inline void encoder_add(Number type, float *to, const void *dout, size_t at, size_t n) {
    float block[ENCODER_CHANNELS];
    const float *x = number_load(type, dout, at, n, block);
    for (size_t i = 0; i < n; i++) to[i] += x[i];
}

static inline void encoder_backward_cpu(Number type, float *dwte, float *dwpe, const void *dout, const int32_t *tokens,
                                        const int32_t *positions, size_t n_distinct, size_t B, size_t T, size_t maxT,
                                        size_t C, bool add) {
    const int32_t *first = positions + B * T;
    const size_t shares = ceil_div(C, ENCODER_CHANNELS);
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t task = 0; task < (int64_t)(n_distinct * shares); task++) {
        const size_t k = (size_t)task / shares, c = (size_t)task % shares * ENCODER_CHANNELS;
        const size_t n = size_min(C - c, ENCODER_CHANNELS), end = (size_t)first[k + 1];
        const size_t portion = encoder_portion(end - (size_t)first[k]);
        float sum[ENCODER_CHANNELS] = {0}, *to = dwte + (size_t)tokens[positions[first[k]]] * C + c;
        for (size_t begin = (size_t)first[k]; begin < end; begin += portion) {
            float part[ENCODER_CHANNELS] = {0};
            for (size_t at = begin; at < size_min(begin + portion, end); at++) {
                encoder_add(type, part, dout, (size_t)positions[at] * C + c, n);
            }
            for (size_t i = 0; i < n; i++) sum[i] += part[i];
        }
        for (size_t i = 0; i < n; i++) to[i] += sum[i];
    }
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < (int64_t)(add ? T : maxT); t++) {
        for (size_t c = 0; c < C; c += ENCODER_CHANNELS) {
            const size_t at = (size_t)t * C + c, n = size_min(C - c, ENCODER_CHANNELS);
            float sum[ENCODER_CHANNELS] = {0};
            for (size_t b = 0; b < B && (size_t)t < T; b++) encoder_add(type, sum, dout, b * T * C + at, n);
            for (size_t i = 0; i < n; i++) dwpe[at + i] = add ? dwpe[at + i] + sum[i] : sum[i];
        }
    }
}

#ifdef __CUDACC__
// Channels of this thread: a vector of its lane's, blockIdx.y in slices of 32 vectors.
template <int N> __device__ __forceinline__ size_t encoder_channel() {
    return (blockIdx.y * (size_t)WARP + threadIdx.x % WARP) * N;
}

// A warp's position t: dwpe[t,:] (+)= the sum over the sequences, which is 0 from T on.
template <Number TYPE, int N>
__device__ __forceinline__ void encoder_sum_position(float *dwpe, const void *dout, size_t t, size_t B, size_t T,
                                                     size_t C, bool add) {
    const size_t c = encoder_channel<N>();
    Vector<FP32, N> sum = {};
    if (c >= C) return;
#pragma unroll 8
    for (size_t b = 0; b < (t < T ? B : 0); b++) {
        Vector<TYPE, N> x;
        x.load(dout, (b * T + t) * C + c);
#pragma unroll
        for (int i = 0; i < N; i++) sum.x[i] += x.x[i];
    }
    vector_add<N>(dwpe + t * C + c, sum.x, add);
}

// A warp's sum of rows positions[at ... stop) of dout; lanes beyond the channels read the last ones.
template <Number TYPE, int N>
__device__ __forceinline__ Vector<FP32, N> encoder_sum_rows(const void *dout, const int32_t *positions, int32_t at,
                                                            int32_t stop, size_t C) {
    constexpr int LOADS = 4;  // on their way at the same time
    const size_t channel = encoder_channel<N>(), c = channel < C ? channel : C - N;
    const int32_t lane = (int32_t)(threadIdx.x % WARP);
    Vector<FP32, N> sum = {};
    for (; at < stop; at += WARP) {
        const int32_t mine = at + lane < stop ? positions[at + lane] : 0, rows = min(stop - at, WARP);
        for (int32_t i = 0; i < rows; i += LOADS) {
            Vector<TYPE, N> x[LOADS] = {};  // what is not there adds zeros
#pragma unroll
            for (int k = 0; k < LOADS; k++) {
                const size_t row = (size_t)__shfl_sync(0xffffffffu, mine, i + k);
                if (i + k < rows) x[k].load(dout, row * C + c);
            }
#pragma unroll
            for (int k = 0; k < LOADS; k++) {
#pragma unroll
                for (int j = 0; j < N; j++) sum.x[j] += x[k].x[j];
            }
        }
    }
    return sum;
}

// Of a slice of channels, the first `position_blocks` blocks take 8 positions each; the others 8 tokens each, which are
// far from each other, as neighbours are often frequent together. A slice is read twice, so that the second time most of
// it can come from the L2 cache. A warp adds up the rows of one token, if they are one portion; then all warps share those of more.
template <Number TYPE, int N>
__global__ static void encoder_backward_kernel(float *dwte, float *dwpe, const void *dout, const int32_t *tokens,
                                               const int32_t *positions, size_t n_distinct, size_t position_blocks,
                                               size_t B, size_t T, size_t n_rows, size_t C, bool add) {
    __shared__ float shared[VECTOR_WARPS * WARP * N];
    const uint32_t all = 0xffffffffu, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (blockIdx.x < position_blocks) {
        const size_t t = (size_t)blockIdx.x * VECTOR_WARPS + warp;
        if (t < n_rows) encoder_sum_position<TYPE, N>(dwpe, dout, t, B, T, C, add);
        return;
    }
    // Lane w of every warp knows where the rows of the block's token w are.
    const size_t k = blockIdx.x - position_blocks + lane * (gridDim.x - position_blocks);
    const size_t c = encoder_channel<N>(), c0 = (size_t)blockIdx.y * WARP * N;
    const bool is_there = lane < VECTOR_WARPS && k < n_distinct;
    const int32_t *first = positions + B * T;
    const int32_t begin = is_there ? first[k] : 0, end = is_there ? first[k + 1] : 0;
    const int32_t own_begin = __shfl_sync(all, begin, warp), own_end = __shfl_sync(all, end, warp);
    if (own_begin < own_end && own_end - own_begin <= ENCODER_ROWS) {
        const Vector<FP32, N> sum = encoder_sum_rows<TYPE, N>(dout, positions, own_begin, own_end, C);
        if (c < C) vector_add<N>(dwte + (size_t)tokens[positions[own_begin]] * C + c, sum.x, true);
    }
    for (uint32_t many = __ballot_sync(all, end - begin > ENCODER_ROWS); many != 0; many &= many - 1) {
        const int w = __ffs((int)many) - 1;
        const int32_t from = __shfl_sync(all, begin, w), to = __shfl_sync(all, end, w);
        const int32_t portion = (int32_t)encoder_portion((size_t)(to - from)), at = from + (int32_t)warp * portion;
        const Vector<FP32, N> sum = encoder_sum_rows<TYPE, N>(dout, positions, at, min(at + portion, to), C);
        columns_store<N, true>(dwte + (size_t)tokens[positions[from]] * C + c0, C - c0, sum.x, shared);
    }
}

static inline void encoder_backward_cuda(Device *device, Number type, float *dwte, float *dwpe, const void *dout,
                                         const int32_t *tokens, const int32_t *positions, size_t n_distinct, size_t B,
                                         size_t T, size_t maxT, size_t C, bool add) {
    const bool wide = vector_is_wide(C * number_size(type), dout, dwte, dwpe, NULL);
    auto run = VECTOR_SELECT(type, wide, encoder_backward_kernel);
    const size_t slices = ceil_div(C, WARP * (wide ? (size_t)vector_wide(type) : 1));
    const size_t n_rows = add ? T : maxT;  // of dwpe
    const size_t position_blocks = ceil_div(n_rows, VECTOR_WARPS), token_blocks = ceil_div(n_distinct, VECTOR_WARPS);
    CUDA_RUN_GRID(device, run, cuda_grid(position_blocks + token_blocks, slices), CUDA_THREADS, 0, dwte, dwpe, dout,
                  tokens, positions, n_distinct, position_blocks, B, T, n_rows, C, add);
}
#endif

// positions, n_distinct: encoder_sort()'s, of the tokens. `add` false: the first micro-batch of a step; dwpe (all maxT
// rows) is replaced.
static inline void encoder_backward(Device *device, Number type, float *dwte, float *dwpe, const void *dout,
                                    const int32_t *tokens, const int32_t *positions, size_t n_distinct, size_t B,
                                    size_t T, size_t maxT, size_t C, bool add) {
    double n = (double)(B * T * C), rows_of_tokens = (double)(n_distinct * C);
    switch (device->kind) {
    case DEVICE_PLAN:
        device_plan(device, 2 * n, n * (double)number_size(type) + 8 * rows_of_tokens + 8 * (double)(maxT * C));
        return;
    case DEVICE_CPU:
        encoder_backward_cpu(type, dwte, dwpe, dout, tokens, positions, n_distinct, B, T, maxT, C, add);
        return;
    case DEVICE_CUDA:
        CUDA_ONLY(encoder_backward_cuda(device, type, dwte, dwpe, dout, tokens, positions, n_distinct, B, T, maxT, C,
                                        add));
        return;
    }
}

#endif
