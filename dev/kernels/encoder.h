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

#include "../context.h"

// The tokens of a batch (B,T), and their positions sorted by token: encoder_sort()'s, for n_distinct different ones.
typedef struct {
    const int32_t *tokens, *positions;
    size_t n_distinct, B, T;
} EncoderTokens;

static inline void encoder_forward_cpu(Dtype dtype, void *out, const int32_t *tokens, const void *wte,
                                       const void *wpe, size_t B, size_t T, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t bt = 0; bt < (int64_t)(B * T); bt++) {
        float token_block[NUMBER_BLOCK], position_block[NUMBER_BLOCK], out_block[NUMBER_BLOCK];
        size_t row = (size_t)bt * C, token = (size_t)tokens[bt] * C, position = (size_t)bt % T * C;
        for (size_t c = 0, n; c < C; c += n) {
            n = size_min(C - c, NUMBER_BLOCK);
            const float *x = number_load(dtype, wte, token + c, n, token_block);
            const float *p = number_load(dtype, wpe, position + c, n, position_block);
            float *y = number_target(dtype, out, row + c, out_block);
            for (size_t i = 0; i < n; i++) y[i] = x[i] + p[i];
            number_store(dtype, out, row + c, n, y);
        }
    }
}

// Portions of a token's sum, at most; rows of a portion, at least; channels of one thread's share.
enum { ENCODER_PORTIONS = 8, ENCODER_ROWS = 32, ENCODER_CHANNELS = 128 };

// Sorts the positions of n tokens by their token: positions[0 ... n) are those of the smallest token, ascending, then
// those of the next; positions[n + k] is where those of the k-th begin, up to k = the number of distinct tokens, which
// is returned, where there is n. counts: scratch of V numbers. All tokens are below V.
static inline size_t encoder_sort(int32_t *positions, int32_t *counts, const int32_t *tokens, size_t n, size_t V) {
    size_t n_distinct = 0;
    int32_t *first = positions + n, next = 0;
    memset(counts, 0, V * sizeof(int32_t));
    for (size_t i = 0; i < n; i++) counts[tokens[i]]++;
    for (size_t v = 0; v < V; v++) {  // from here on, where the next one goes
        const int32_t count = counts[v];
        if (count > 0) first[n_distinct++] = next;
        counts[v] = next;
        next += count;
    }
    first[n_distinct] = next;
    for (size_t i = 0; i < n; i++) positions[counts[tokens[i]]++] = (int32_t)i;
    return n_distinct;
}

// Rows of a portion of a token's sum.
HOST_DEVICE size_t encoder_portion(size_t rows) {
    return size_max(ENCODER_ROWS, size_ceil_div(rows, ENCODER_PORTIONS));
}

// to[0 ... n) += a row's channels.
static inline void encoder_add(Dtype dtype, float *to, const void *dout, size_t first, size_t n) {
    float block[ENCODER_CHANNELS];
    const float *x = number_load(dtype, dout, first, n, block);
    for (size_t i = 0; i < n; i++) to[i] += x[i];
}

static inline void encoder_backward_cpu(Dtype dtype, float *dwte, float *dwpe, const void *dout,
                                        const EncoderTokens *batch, size_t maxT, size_t C, bool add) {
    const size_t B = batch->B, T = batch->T;
    const int32_t *tokens = batch->tokens, *positions = batch->positions, *first = positions + B * T;
    const size_t shares = size_ceil_div(C, ENCODER_CHANNELS);
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t task = 0; task < (int64_t)(batch->n_distinct * shares); task++) {
        const size_t k = (size_t)task / shares, c = (size_t)task % shares * ENCODER_CHANNELS;
        const size_t n = size_min(C - c, ENCODER_CHANNELS), end = (size_t)first[k + 1];
        const size_t portion = encoder_portion(end - (size_t)first[k]);
        float sum[ENCODER_CHANNELS] = {0}, *to = dwte + (size_t)tokens[positions[first[k]]] * C + c;
        for (size_t begin = (size_t)first[k]; begin < end; begin += portion) {
            float part[ENCODER_CHANNELS] = {0};
            for (size_t row = begin; row < size_min(begin + portion, end); row++) {
                encoder_add(dtype, part, dout, (size_t)positions[row] * C + c, n);
            }
            for (size_t i = 0; i < n; i++) sum[i] += part[i];
        }
        for (size_t i = 0; i < n; i++) to[i] += sum[i];
    }
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < (int64_t)(add ? T : maxT); t++) {
        for (size_t c = 0; c < C; c += ENCODER_CHANNELS) {
            const size_t channel = (size_t)t * C + c, n = size_min(C - c, ENCODER_CHANNELS);
            float sum[ENCODER_CHANNELS] = {0};
            for (size_t b = 0; b < B && (size_t)t < T; b++) encoder_add(dtype, sum, dout, b * T * C + channel, n);
            for (size_t i = 0; i < n; i++) dwpe[channel + i] = add ? dwpe[channel + i] + sum[i] : sum[i];
        }
    }
}

#ifdef __CUDACC__
#include "encoder.cuh"
#endif

// out (B,T,C) from tokens (B,T) on the device, wte (Vp,C) and wpe (maxT,C).
static inline void encoder_forward(const Context *context, void *out, const int32_t *tokens, const void *wte,
                                   const void *wpe, size_t B, size_t T, size_t C) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    double n = (double)(B * T * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, n, 3 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: encoder_forward_cpu(dtype, out, tokens, wte, wpe, B, T, C); return;
    case DEVICE_CUDA: CUDA_ONLY(encoder_forward_cuda(context, out, tokens, wte, wpe, B, T, C)); return;
    }
}

// dwte (Vp,C) += and dwpe (maxT,C) (+)= their parts of dout (B,T,C). add: not the first micro-batch of a step;
// otherwise all maxT rows of dwpe are replaced.
static inline void encoder_backward(const Context *context, float *dwte, float *dwpe, const void *dout,
                                    const EncoderTokens *batch, size_t maxT, size_t C, bool add) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    double n = (double)(batch->B * batch->T * C), n_wte = (double)(batch->n_distinct * C), n_wpe = (double)(maxT * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 2 * n, n * (double)number_size(dtype) + 8 * n_wte + 8 * n_wpe); return;
    case DEVICE_CPU: encoder_backward_cpu(dtype, dwte, dwpe, dout, batch, maxT, C, add); return;
    case DEVICE_CUDA: CUDA_ONLY(encoder_backward_cuda(context, dwte, dwpe, dout, batch, maxT, C, add)); return;
    }
}

#endif
