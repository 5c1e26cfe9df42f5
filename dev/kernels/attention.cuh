// attention.cuh - attention on CUDA without tensor cores: a warp per query or key, simple and complete.
//
// For fp32, ATTENTION_PLAIN, and head sizes that tensor cores don't take; attention_mma.cuh has the others.
//
// A block takes ATTENTION_WARPS neighbouring rows of one head and walks over tiles of WARP rows of the other side,
// which it shares: a lane first stands for a row of the tile (dot products over channels), then for channels (sums over
// the tile's rows). The forward walks over the keys twice; the backward has a kernel for D, then one for dq, and one
// for dk and dv. Every sum has one order, without atomics: tiles, their rows and channels are added in ascending order,
// lanes in warp_sum()'s.
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include "attention_mma.cuh"
#include "warp.cuh"

enum { ATTENTION_WARPS = 8, ATTENTION_PARTS = ATTENTION_HS_MOST / WARP, ATTENTION_STRIDE = ATTENTION_HS_MOST + 1 };

// Element (row t of sequence b, channel c of head h) of the q, k, v (part 0, 1, 2; width 3C) or of out (part 0; C).
__device__ static inline size_t attention_offset(const AttentionShape &s, size_t width, size_t part, size_t head,
                                             size_t t) {
    return (head / s.NH * s.T + t) * width + part * s.C + head % s.NH * s.HS;
}

// tile[i][c] = row t0 + i, for the block's threads together; rows past the end are zero.
__device__ static inline void attention_load_tile(const AttentionShape &s, float (*tile)[ATTENTION_STRIDE],
                                                  const void *base, size_t width, size_t part, size_t head, size_t t0) {
    for (size_t i = threadIdx.x; i < WARP * s.HS; i += ATTENTION_WARPS * WARP) {
        size_t row = i / s.HS, c = i % s.HS;
        float x = 0.0f;
        if (t0 + row < s.T) x = number_get(s.dtype, base, attention_offset(s, width, part, head, t0 + row) + c);
        tile[row][c] = x;
    }
}

// A row's channels, spread over the lanes of a warp: lane, lane + WARP, ...; zero past the end.
__device__ static inline void attention_load_row(const AttentionShape &s, float *row, const void *base, size_t width,
                                                 size_t part, size_t head, size_t t) {
    for (int i = 0; i < ATTENTION_PARTS; i++) {
        size_t c = threadIdx.x % WARP + (size_t)i * WARP;
        row[i] = c < s.HS && t < s.T ? number_get(s.dtype, base, attention_offset(s, width, part, head, t) + c) : 0.0f;
    }
}

__device__ static inline void attention_store_row(const AttentionShape &s, void *base, size_t width, size_t part,
                                                  size_t head, size_t t, const float *row) {
    for (int i = 0; i < ATTENTION_PARTS; i++) {
        size_t c = threadIdx.x % WARP + (size_t)i * WARP;
        if (c < s.HS) number_put(s.dtype, base, attention_offset(s, width, part, head, t) + c, row[i]);
    }
}

// Dot product of the warp's row with this lane's row of the tile.
__device__ static inline float attention_dot(const AttentionShape &s, const float *row, const float *tile_row) {
    float sum = 0.0f;
    for (int i = 0; i < ATTENTION_PARTS; i++) {
        for (int lane = 0; lane < WARP; lane++) {
            if ((size_t)(i * WARP + lane) >= s.HS) break;
            sum = fmaf(__shfl_sync(0xffffffffu, row[i], lane), tile_row[i * WARP + lane], sum);
        }
    }
    return sum;
}

// row (+)= sum over the tile's rows of `weight` (this lane's row has its own) times the row.
__device__ static inline void attention_add_rows(const AttentionShape &s, float *row, float weight,
                                                 const float (*tile)[ATTENTION_STRIDE]) {
    for (int k = 0; k < WARP; k++) {
        const float w = __shfl_sync(0xffffffffu, weight, k);
        for (int i = 0; i < ATTENTION_PARTS; i++) {
            size_t c = threadIdx.x % WARP + (size_t)i * WARP;
            if (c < s.HS) row[i] = fmaf(w, tile[k][c], row[i]);
        }
    }
}

// P of query t and key k: from the score and the row's log-sum-exp (fused), or as it was stored (plain).
__device__ static inline float attention_probability(const AttentionShape &s, const void *saved, size_t head, size_t t,
                                                     size_t k, float score) {
    if (k > t || t >= s.T) return 0.0f;
    if (s.kind == ATTENTION_PLAIN) return number_get(s.dtype, saved, (head * s.T + t) * s.T + k);
    return number_exp(fmaf(score, s.scale, -((const float *)saved)[head * s.T + t]));
}

// A warp per query: first its maximum and sum over all keys, then out; two walks, so that P is normalised before it is
// used (and, in plain, rounded).
__global__ static void attention_forward_kernel(AttentionShape s, void *out, void *saved, const void *qkv) {
    __shared__ float k_tile[WARP][ATTENTION_STRIDE], v_tile[WARP][ATTENTION_STRIDE];
    const size_t head = blockIdx.y, t0 = (size_t)blockIdx.x * ATTENTION_WARPS, t = t0 + threadIdx.x / WARP;
    const size_t lane = threadIdx.x % WARP, end = size_min(t0 + ATTENTION_WARPS, s.T);
    float q[ATTENTION_PARTS], o[ATTENTION_PARTS] = {0}, maximum = -FLT_MAX, sum = 0.0f;
    attention_load_row(s, q, qkv, 3 * s.C, 0, head, t);
    for (size_t k0 = 0; k0 < end; k0 += WARP) {
        attention_load_tile(s, k_tile, qkv, 3 * s.C, 1, head, k0);
        __syncthreads();
        float score = s.scale * attention_dot(s, q, k_tile[lane]);
        if (k0 + lane > t) score = -FLT_MAX;
        const float top = warp_maximum(score > maximum ? score : maximum);
        sum = sum * number_exp(maximum - top) + warp_sum(k0 + lane > t ? 0.0f : number_exp(score - top));
        maximum = top;
        __syncthreads();
    }
    const float lse = maximum + logf(sum);
    for (size_t k0 = 0; k0 < end; k0 += WARP) {
        attention_load_tile(s, k_tile, qkv, 3 * s.C, 1, head, k0);
        attention_load_tile(s, v_tile, qkv, 3 * s.C, 2, head, k0);
        __syncthreads();
        const float score = attention_dot(s, q, k_tile[lane]);
        float p = k0 + lane > t ? 0.0f : number_exp(fmaf(score, s.scale, -lse));
        if (s.kind == ATTENTION_PLAIN && t < s.T && k0 + lane < s.T) {
            const size_t element = (head * s.T + t) * s.T + k0 + lane;
            number_put(s.dtype, saved, element, p);
            p = number_get(s.dtype, saved, element);
        }
        attention_add_rows(s, o, p, v_tile);
        __syncthreads();
    }
    if (t >= s.T) return;
    if (s.kind == ATTENTION_FUSED && lane == 0) ((float *)saved)[head * s.T + t] = lse;
    for (size_t k = size_round_up(end, WARP) + lane; s.kind == ATTENTION_PLAIN && k < s.T; k += WARP) {
        number_put(s.dtype, saved, (head * s.T + t) * s.T + k, 0.0f);
    }
    attention_store_row(s, out, s.C, 0, head, t, o);
}

// Everything that a training step hands over lies at multiples of 64 bytes.
static inline bool attention_on_tensor_cores(const AttentionShape *s, const void *a, const void *b, const void *c,
                                             const void *d) {
    const uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    return s->kind == ATTENTION_FUSED && attention_mma_takes(s->dtype, s->HS) && all % 16 == 0;
}

static inline void attention_forward_cuda(Device *device, const AttentionShape *s, void *out, void *saved,
                                          const void *qkv) {
    if (attention_on_tensor_cores(s, out, qkv, NULL, NULL)) {
        const AttentionMma shape = attention_mma_shape(s->B, s->T, s->C, s->NH, s->scale);
        if (s->dtype == BF16) attention_mma_forward<BF16>(device, shape, out, (float *)saved, qkv);
        else attention_mma_forward<FP16>(device, shape, out, (float *)saved, qkv);
        return;
    }
    CUDA_RUN_GRID(device, attention_forward_kernel, cuda_grid(size_ceil_div(s->T, ATTENTION_WARPS), s->B * s->NH),
                  ATTENTION_WARPS * WARP, 0, *s, out, saved, qkv);
}

// d (B NH, T): row sums of dO o O, a warp per row.
__global__ static void attention_row_products_kernel(AttentionShape s, float *d, const void *out, const void *dout) {
    const size_t head = blockIdx.y, t = (size_t)blockIdx.x * ATTENTION_WARPS + threadIdx.x / WARP;
    float a[ATTENTION_PARTS], b[ATTENTION_PARTS], sum = 0.0f;
    if (t >= s.T) return;
    attention_load_row(s, a, out, s.C, 0, head, t);
    attention_load_row(s, b, dout, s.C, 0, head, t);
    for (int i = 0; i < ATTENTION_PARTS; i++) sum = fmaf(a[i], b[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) d[head * s.T + t] = sum;
}

// dq: a warp per query, over the tiles of keys up to it.
__global__ static void attention_backward_q_kernel(AttentionShape s, void *dqkv, const void *dout, const void *qkv,
                                                   const void *saved, const float *d) {
    __shared__ float k_tile[WARP][ATTENTION_STRIDE], v_tile[WARP][ATTENTION_STRIDE];
    const size_t head = blockIdx.y, t0 = (size_t)blockIdx.x * ATTENTION_WARPS, t = t0 + threadIdx.x / WARP;
    const size_t lane = threadIdx.x % WARP, end = size_min(t0 + ATTENTION_WARPS, s.T);
    float q[ATTENTION_PARTS], go[ATTENTION_PARTS], dq[ATTENTION_PARTS] = {0};
    attention_load_row(s, q, qkv, 3 * s.C, 0, head, t);
    attention_load_row(s, go, dout, s.C, 0, head, t);
    const float row_product = t < s.T ? d[head * s.T + t] : 0.0f;
    for (size_t k0 = 0; k0 < end; k0 += WARP) {
        attention_load_tile(s, k_tile, qkv, 3 * s.C, 1, head, k0);
        attention_load_tile(s, v_tile, qkv, 3 * s.C, 2, head, k0);
        __syncthreads();
        const float score = attention_dot(s, q, k_tile[lane]), dp = attention_dot(s, go, v_tile[lane]);
        const float p = attention_probability(s, saved, head, t, k0 + lane, score);
        attention_add_rows(s, dq, s.scale * p * (dp - row_product), k_tile);
        __syncthreads();
    }
    if (t < s.T) attention_store_row(s, dqkv, 3 * s.C, 0, head, t, dq);
}

// dk, dv: a warp per key, over the tiles of queries from it on.
__global__ static void attention_backward_kv_kernel(AttentionShape s, void *dqkv, const void *dout, const void *qkv,
                                                    const void *saved, const float *d) {
    __shared__ float q_tile[WARP][ATTENTION_STRIDE], do_tile[WARP][ATTENTION_STRIDE];
    const size_t head = blockIdx.y, k0 = (size_t)blockIdx.x * ATTENTION_WARPS, k = k0 + threadIdx.x / WARP;
    const size_t lane = threadIdx.x % WARP;
    float key[ATTENTION_PARTS], value[ATTENTION_PARTS], dk[ATTENTION_PARTS] = {0}, dv[ATTENTION_PARTS] = {0};
    attention_load_row(s, key, qkv, 3 * s.C, 1, head, k);
    attention_load_row(s, value, qkv, 3 * s.C, 2, head, k);
    for (size_t t0 = k0 / WARP * WARP; t0 < s.T; t0 += WARP) {
        attention_load_tile(s, q_tile, qkv, 3 * s.C, 0, head, t0);
        attention_load_tile(s, do_tile, dout, s.C, 0, head, t0);
        __syncthreads();
        const size_t t = t0 + lane;
        const float score = attention_dot(s, key, q_tile[lane]), dp = attention_dot(s, value, do_tile[lane]);
        const float p = attention_probability(s, saved, head, t, k, score);
        attention_add_rows(s, dv, p, do_tile);
        attention_add_rows(s, dk, p == 0.0f ? 0.0f : s.scale * p * (dp - d[head * s.T + t]), q_tile);
        __syncthreads();
    }
    if (k >= s.T) return;
    attention_store_row(s, dqkv, 3 * s.C, 1, head, k, dk);
    attention_store_row(s, dqkv, 3 * s.C, 2, head, k, dv);
}

static inline void attention_backward_cuda(Device *device, const AttentionShape *s, void *dqkv, const void *dout,
                                           const void *qkv, const void *out, const void *saved, float *d) {
    if (attention_on_tensor_cores(s, dqkv, dout, qkv, out)) {
        const AttentionMma shape = attention_mma_shape(s->B, s->T, s->C, s->NH, s->scale);
        const float *lse = (const float *)saved;
        if (s->dtype == BF16) attention_mma_backward<BF16>(device, shape, dqkv, dout, qkv, out, lse, d);
        else attention_mma_backward<FP16>(device, shape, dqkv, dout, qkv, out, lse, d);
        return;
    }
    const dim3 grid = cuda_grid(size_ceil_div(s->T, ATTENTION_WARPS), s->B * s->NH);
    const int threads = ATTENTION_WARPS * WARP;
    CUDA_RUN_GRID(device, attention_row_products_kernel, grid, threads, 0, *s, d, out, dout);
    CUDA_RUN_GRID(device, attention_backward_q_kernel, grid, threads, 0, *s, dqkv, dout, qkv, saved, d);
    CUDA_RUN_GRID(device, attention_backward_kv_kernel, grid, threads, 0, *s, dqkv, dout, qkv, saved, d);
}

#endif
