// attention.h - causal self-attention of NH heads of size HS = C / NH.
//
//     forward    S = scale Q K^T (keys after the query left out),  P = softmax(S) by rows,  O = P V,  scale = HS^-1/2
//     backward   dV = P^T dO,  dP = dO V^T,  D = row sums of dO o O,  dS = scale P o (dP - D),  dQ = dS K,  dK = dS^T Q
//
// qkv (B,T,3C) holds q, k, v side by side; out (B,T,C) = O; both in the storage type, as are their gradients.
//
// ATTENTION_FUSED keeps nothing of size T x T, in forward or backward: it walks over blocks of keys, carrying each
// row's maximum and sum, and leaves only the row's log-sum-exp, lse (B,NH,T) fp32, from which the backward makes P
// again. ATTENTION_PLAIN stores P (B,NH,T,T) in the storage type, rounded before it is used. `saved` is lse or P.
//
//                 keys ->   block 0   block 1   block 2
//     queries   block 0   [ diagonal                   ]     blocks of ATTENTION_BLOCK x ATTENTION_BLOCK;
//               block 1   [  full     diagonal         ]     on the diagonal, tiles above it are left out
//               block 2   [  full      full   diagonal ]
//
// On the CPU a thread takes a whole head of a sequence: k and v are packed to fp32 panels for tile.h once, and the
// sums of dk and dv have one order. Cost: 2 products of B NH T^2/2 HS forward, 5 backward.
// On CUDA tensor cores do ATTENTION_FUSED in bf16 where HS is a multiple of 8 (attention_mma.cuh): there P is rounded
// to bf16 before it is used, as is dS. The kernels in attention.cuh do the rest.
#ifndef ATTENTION_H
#define ATTENTION_H

#include "../context.h"
#include "../partials.h"
#include "tile.h"

typedef enum { ATTENTION_FUSED, ATTENTION_PLAIN } AttentionKind;

enum { ATTENTION_BLOCK = 96 };     // a multiple of every TILE_M and TILE_N
enum { ATTENTION_HS_MOST = 128 };  // of a head on CUDA; the CPU takes any

// What the model asks for: B sequences of T tokens, C channels, in NH heads.
typedef struct {
    AttentionKind kind;
    size_t B, T, C, NH;
} Attention;

// Bytes that the forward leaves for the backward besides out.
static inline size_t attention_saved_bytes(const Attention *of, Dtype dtype) {
    const size_t rows = of->B * of->NH * of->T;
    return of->kind == ATTENTION_FUSED ? rows * sizeof(float) : rows * of->T * number_size(dtype);
}

// Whether tensor cores can do it, on CUDA.
static inline bool attention_mma_takes(Dtype dtype, size_t HS) { return dtype != FP32 && HS % 8 == 0 && HS <= 128; }

// The same, and what follows from it.
typedef struct {
    Dtype dtype;
    AttentionKind kind;
    size_t B, T, C, NH;
    size_t HS, width, blocked;  // head size; the same rounded up to tiles; T rounded up to blocks
    float scale;
} AttentionShape;

static inline AttentionShape attention_shape(const Attention *of, Dtype dtype) {
    AttentionShape s;
    s.dtype = dtype;
    s.kind = of->kind;
    s.B = of->B;
    s.T = of->T;
    s.C = of->C;
    s.NH = of->NH;
    s.HS = of->C / of->NH;
    s.width = size_round_up(s.HS, TILE_N);
    s.blocked = size_round_up(of->T, ATTENTION_BLOCK);
    s.scale = 1.0f / sqrtf((float)s.HS);
    return s;
}

// Which tiles of a diagonal block are left out: none; those above the diagonal of C; those parts of K that are zero
// in A because A is lower or upper triangular.
typedef enum { PRODUCT_FULL, PRODUCT_SCORES, PRODUCT_LOWER, PRODUCT_UPPER } AttentionProduct;

// The left side of a product: n panels of TILE_M rows, `stride` floats from row to row.
typedef struct {
    const float *rows;
    size_t stride, n;
} AttentionRows;

// The right side: n packed panels of TILE_N columns, `stride` floats from panel to panel.
typedef struct {
    const float *panels;
    size_t stride, n;
} AttentionPanels;

// c (rows of ldc floats) (+)= a . b, summed over K.
static inline void attention_product(AttentionProduct part, float *c, size_t ldc, AttentionRows a, AttentionPanels b,
                                     size_t K, bool add) {
    for (size_t j = 0; j < b.n; j++) {
        for (size_t i = 0; i < a.n; i++) {
            if (part == PRODUCT_SCORES && j * TILE_N >= (i + 1) * TILE_M) continue;
            size_t k0 = part == PRODUCT_UPPER ? size_min(i * TILE_M, K) : 0;
            size_t k1 = part == PRODUCT_LOWER ? size_min((i + 1) * TILE_M, K) : K;
            tile_product(k1 - k0, a.rows + i * TILE_M * a.stride + k0, a.stride, b.panels + j * b.stride + k0 * TILE_N,
                         c + i * TILE_M * ldc + j * TILE_N, ldc, add);
        }
    }
}

// nq rows of HS channels, as attention_pack_rows() left them.
static inline AttentionRows attention_left_rows(const AttentionShape *s, const float *rows, size_t nq) {
    const AttentionRows left = {rows, s->HS, size_ceil_div(nq, TILE_M)};
    return left;
}

// n rows of a block of scores.
static inline AttentionRows attention_left_scores(const float *scores, size_t n) {
    const AttentionRows left = {scores, ATTENTION_BLOCK, size_ceil_div(n, TILE_M)};
    return left;
}

// Of the panels over keys that attention_pack_keys() left, those of keys k0 ... k0 + nk.
static inline AttentionPanels attention_right_keys(const AttentionShape *s, const float *panels, size_t k0,
                                                   size_t nk) {
    const AttentionPanels right = {panels + k0 * s->HS, s->HS * TILE_N, size_ceil_div(nk, TILE_N)};
    return right;
}

// The panels over channels that attention_pack_channels() left `stride` floats apart, from row k0 on.
static inline AttentionPanels attention_right_channels(const AttentionShape *s, const float *panels, size_t stride,
                                                       size_t k0) {
    const AttentionPanels right = {panels + k0 * TILE_N, stride, s->width / TILE_N};
    return right;
}

// A head's (T, HS) part of qkv (`part` 0, 1, 2 for q, k, v; stride 3C), of out or of their gradients (0; stride C).
static inline TileSource attention_rows(const AttentionShape *s, const void *base, size_t stride, size_t part,
                                        size_t b, size_t h) {
    TileSource source = {s->dtype, base, b * s->T * stride + part * s->C + h * s->HS, stride};
    return source;
}

// Rows t0 ... t0 + n as they are, for the left side of a product that sums over channels.
static inline void attention_pack_rows(const AttentionShape *s, float *to, const TileSource *rows, size_t t0,
                                       size_t n) {
    tile_pack_a(to, s->HS, rows, false, t0, t0 + n, 0, s->HS);
}

// Panels over all rows, HS TILE_N floats each, for the right side of a product that sums over channels.
static inline void attention_pack_keys(const AttentionShape *s, float *to, const TileSource *rows) {
    tile_pack_b(to, s->HS * TILE_N, rows, true, 0, s->T, 0, s->HS);
}

// Panels over channels, `stride` floats each, for the right side of a product that sums over rows t0 ... t0 + n.
static inline void attention_pack_channels(const AttentionShape *s, float *to, size_t stride, const TileSource *rows,
                                           size_t t0, size_t n) {
    tile_pack_b(to, stride, rows, false, 0, s->HS, t0, n);
}

// to (keys, queries) = scores (queries, keys)^T, both in rows of ATTENTION_BLOCK.
static inline void attention_transpose(float *to, const float *scores, size_t nq, size_t nk) {
    TileSource rows = {FP32, scores, 0, ATTENTION_BLOCK};
    tile_copy_transposed(to, ATTENTION_BLOCK, &rows, 0, nq, 0, nk);
}

// ---------------------------------------------------------------------------------------------------------------
// Forward on the CPU

// The buffers of one thread: a whole head's k and v, packed, and one block of everything else.
typedef struct {
    float *k, *v;           // panels over keys (HS, T), over channels (T, HS)
    float *q;               // the block's queries (block, HS)
    float *scores;          // (block, block), in ATTENTION_PLAIN (block, blocked)
    float *maximum, *sum;   // (block) of the scores so far
    float *o;               // sums (block, width)
} AttentionForward;

// Lays the buffers out from `base` on; returns the number of floats.
static inline size_t attention_forward_buffers(const AttentionShape *s, AttentionForward *x, float *base) {
    const size_t block = ATTENTION_BLOCK, scores = block * (s->kind == ATTENTION_PLAIN ? s->blocked : block);
    const size_t sizes[] = {s->blocked * s->HS, s->blocked * s->width, block * s->HS, scores, block, block,
                            block * s->width};
    float **const pointers[] = {&x->k, &x->v, &x->q, &x->scores, &x->maximum, &x->sum, &x->o};
    size_t total = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        *pointers[i] = base ? base + total : NULL;
        total += sizes[i];
    }
    return size_round_up(total, PARTIALS);
}

// Softmax over one block of keys: rescales what was summed before. scores (not yet scaled) become P times
// exp(-maximum), unnormalised.
static inline void attention_online_row(float *scores, size_t valid, size_t nk, float scale, float *maximum,
                                        float *sum, float *out, size_t width) {
    float top = scale * partials_maximum(-FLT_MAX, scores, valid);
    top = top > *maximum ? top : *maximum;
    float partials[PARTIALS] = {0}, rescale = number_exp(*maximum - top);
    for (size_t k = 0; k < valid; k++) scores[k] = number_exp(fmaf(scores[k], scale, -top));
    for (size_t k = valid; k < nk; k++) scores[k] = 0.0f;
    partials_add(partials, scores, valid);
    *sum = fmaf(*sum, rescale, partials_total(partials));
    *maximum = top;
    for (size_t c = 0; c < width; c++) out[c] *= rescale;
}

static inline void attention_store_rows(const AttentionShape *s, void *to, TileSource rows, size_t t, const float *x) {
    for (size_t c = 0, n; c < s->HS; c += n) {
        n = size_min(s->HS - c, NUMBER_BLOCK);
        number_store(s->dtype, to, rows.first + t * rows.stride + c, n, x + c);
    }
}

// One block of queries, from q0 on, against all its keys, fused.
static inline void attention_forward_fused_block(const AttentionShape *s, const AttentionForward *x, void *out,
                                                 float *lse, size_t q0, TileSource out_rows) {
    const size_t block = ATTENTION_BLOCK, nq = size_min(block, s->T - q0);
    float *scores = x->scores, *o = x->o;
    memset(o, 0, block * s->width * sizeof(float));
    for (size_t i = 0; i < nq; i++) {
        x->maximum[i] = -FLT_MAX;
        x->sum[i] = 0.0f;
    }
    for (size_t k0 = 0; k0 <= q0; k0 += block) {
        const size_t nk = size_min(block, s->T - k0);
        const bool diagonal = k0 == q0;
        attention_product(diagonal ? PRODUCT_SCORES : PRODUCT_FULL, scores, block, attention_left_rows(s, x->q, nq),
                          attention_right_keys(s, x->k, k0, nk), s->HS, false);
        for (size_t i = 0; i < nq; i++) {
            attention_online_row(scores + i * block, diagonal ? i + 1 : nk, nk, s->scale, &x->maximum[i], &x->sum[i],
                                 o + i * s->width, s->width);
        }
        attention_product(diagonal ? PRODUCT_LOWER : PRODUCT_FULL, o, s->width, attention_left_scores(scores, nq),
                          attention_right_channels(s, x->v, s->blocked * TILE_N, k0), nk, true);
    }
    for (size_t i = 0; i < nq; i++) {
        float inverse = 1.0f / x->sum[i];
        for (size_t c = 0; c < s->HS; c++) o[i * s->width + c] *= inverse;
        attention_store_rows(s, out, out_rows, q0 + i, o + i * s->width);
        lse[q0 + i] = x->maximum[i] + logf(x->sum[i]);
    }
}

// One row of P: scores (valid fp32 values) become the rounded, normalised row, zero after the query.
static inline void attention_plain_row(const AttentionShape *s, float *scores, size_t valid, void *saved,
                                       size_t saved_first) {
    float maximum = -FLT_MAX, sum = 0.0f;
    attention_online_row(scores, valid, s->T, s->scale, &maximum, &sum, NULL, 0);
    float inverse = 1.0f / sum;
    for (size_t k = 0; k < valid; k++) scores[k] *= inverse;
    for (size_t k = 0, n; k < s->T; k += n) {
        float view[NUMBER_BLOCK];
        n = size_min(s->T - k, NUMBER_BLOCK);
        number_store(s->dtype, saved, saved_first + k, n, scores + k);
        const float *rounded = number_load(s->dtype, saved, saved_first + k, n, view);
        memcpy(scores + k, rounded, n * sizeof(float));
    }
}

static inline void attention_forward_plain_block(const AttentionShape *s, const AttentionForward *x, void *out,
                                                 void *saved, size_t head, size_t q0, TileSource out_rows) {
    const size_t block = ATTENTION_BLOCK, nq = size_min(block, s->T - q0);
    float *scores = x->scores, *o = x->o;
    memset(o, 0, block * s->width * sizeof(float));
    for (size_t k0 = 0; k0 <= q0; k0 += block) {
        attention_product(PRODUCT_FULL, scores + k0, s->blocked, attention_left_rows(s, x->q, nq),
                          attention_right_keys(s, x->k, k0, size_min(block, s->T - k0)), s->HS, false);
    }
    for (size_t i = 0; i < nq; i++) {
        attention_plain_row(s, scores + i * s->blocked, q0 + i + 1, saved, (head * s->T + q0 + i) * s->T);
    }
    for (size_t k0 = 0; k0 <= q0; k0 += block) {
        const AttentionRows probabilities = {scores + k0, s->blocked, size_ceil_div(nq, TILE_M)};
        attention_product(PRODUCT_FULL, o, s->width, probabilities,
                          attention_right_channels(s, x->v, s->blocked * TILE_N, k0), size_min(block, s->T - k0), true);
    }
    for (size_t i = 0; i < nq; i++) attention_store_rows(s, out, out_rows, q0 + i, o + i * s->width);
}

static inline void attention_forward_head(const AttentionShape *s, void *out, void *saved, const void *qkv,
                                          size_t head, float *scratch) {
    const size_t block = ATTENTION_BLOCK, stride = 3 * s->C, b = head / s->NH, h = head % s->NH;
    AttentionForward x;
    attention_forward_buffers(s, &x, scratch);
    TileSource q_rows = attention_rows(s, qkv, stride, 0, b, h), out_rows = attention_rows(s, out, s->C, 0, b, h);
    TileSource k_rows = attention_rows(s, qkv, stride, 1, b, h), v_rows = attention_rows(s, qkv, stride, 2, b, h);
    attention_pack_keys(s, x.k, &k_rows);
    attention_pack_channels(s, x.v, s->blocked * TILE_N, &v_rows, 0, s->T);
    for (size_t q0 = 0; q0 < s->T; q0 += block) {
        attention_pack_rows(s, x.q, &q_rows, q0, size_min(block, s->T - q0));
        if (s->kind == ATTENTION_PLAIN) {
            attention_forward_plain_block(s, &x, out, saved, head, q0, out_rows);
        } else {
            attention_forward_fused_block(s, &x, out, (float *)saved + head * s->T, q0, out_rows);
        }
    }
}

static inline void attention_forward_cpu(const AttentionShape *s, void *out, void *saved, const void *qkv,
                                         float *scratch) {
    AttentionForward unused;
    const size_t floats = attention_forward_buffers(s, &unused, NULL);
#pragma omp parallel for schedule(static)
    for (int64_t head = 0; head < (int64_t)(s->B * s->NH); head++) {
        attention_forward_head(s, out, saved, qkv, (size_t)head, scratch + (size_t)device_thread() * floats);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Backward on the CPU

// The buffers of one thread: a whole head's k and v, packed, its sums of dk and dv, and one block of everything else.
typedef struct {
    float *k_keys, *v_keys;                              // panels over keys, (HS, T)
    float *k_channels;                                   // panels over channels, (T, HS)
    float *dk, *dv;                                      // sums (blocked, width)
    float *q_rows, *do_rows, *q_channels, *do_channels;  // of the block of queries
    float *dq;                                           // sums (block, width)
    float *p, *dp, *transposed;                          // (block, block)
    float *d;                                            // row sums of dO o O (block)
} AttentionBackward;

// Lays the buffers out from `base` on; returns the number of floats.
static inline size_t attention_backward_buffers(const AttentionShape *s, AttentionBackward *x, float *base) {
    const size_t block = ATTENTION_BLOCK;
    const size_t sizes[14] = {s->blocked * s->HS,    s->blocked * s->HS,    s->blocked * s->width,
                              s->blocked * s->width, s->blocked * s->width, block * s->HS,
                              block * s->HS,         block * s->width,      block * s->width,
                              block * s->width,      block * block,         block * block,
                              block * block,         block};
    float **const pointers[14] = {&x->k_keys,  &x->v_keys,     &x->k_channels,  &x->dk, &x->dv, &x->q_rows,
                                  &x->do_rows, &x->q_channels, &x->do_channels, &x->dq, &x->p,  &x->dp,
                                  &x->transposed,  &x->d};
    size_t total = 0;
    for (int i = 0; i < 14; i++) {
        *pointers[i] = base ? base + total : NULL;
        total += size_round_up(sizes[i], PARTIALS);
    }
    return total;
}

// P of a block, from the scores and the log-sum-exp (fused) or as it was stored (plain).
static inline void attention_probabilities(const AttentionShape *s, const AttentionBackward *x, const void *saved,
                                           size_t head, size_t q0, size_t nq, size_t k0, size_t nk) {
    const size_t block = ATTENTION_BLOCK;
    bool diagonal = k0 == q0;
    if (s->kind == ATTENTION_FUSED) {
        attention_product(diagonal ? PRODUCT_SCORES : PRODUCT_FULL, x->p, block, attention_left_rows(s, x->q_rows, nq),
                          attention_right_keys(s, x->k_keys, k0, nk), s->HS, false);
    }
    for (size_t i = 0; i < nq; i++) {
        float *p = x->p + i * block, view[NUMBER_BLOCK];
        size_t valid = diagonal ? i + 1 : nk;
        if (s->kind == ATTENTION_FUSED) {
            float lse = ((const float *)saved)[head * s->T + q0 + i];
            for (size_t k = 0; k < valid; k++) p[k] = number_exp(fmaf(p[k], s->scale, -lse));
        } else {
            const float *stored = number_load(s->dtype, saved, (head * s->T + q0 + i) * s->T + k0, valid, view);
            memcpy(p, stored, valid * sizeof(float));
        }
        for (size_t k = valid; k < nk; k++) p[k] = 0.0f;
    }
}

// One block of queries against one block of keys.
static inline void attention_backward_block(const AttentionShape *s, const AttentionBackward *x, const void *saved,
                                            size_t head, size_t q0, size_t nq, size_t k0, size_t nk) {
    const size_t block = ATTENTION_BLOCK;
    bool diagonal = k0 == q0;
    const AttentionProduct scores = diagonal ? PRODUCT_SCORES : PRODUCT_FULL;
    const AttentionProduct upper = diagonal ? PRODUCT_UPPER : PRODUCT_FULL;
    const AttentionProduct lower = diagonal ? PRODUCT_LOWER : PRODUCT_FULL;
    attention_probabilities(s, x, saved, head, q0, nq, k0, nk);
    attention_product(scores, x->dp, block, attention_left_rows(s, x->do_rows, nq),
                      attention_right_keys(s, x->v_keys, k0, nk), s->HS, false);
    attention_transpose(x->transposed, x->p, nq, nk);
    attention_product(upper, x->dv + k0 * s->width, s->width, attention_left_scores(x->transposed, nk),
                      attention_right_channels(s, x->do_channels, nq * TILE_N, 0), nq, true);
    for (size_t i = 0; i < nq; i++) {  // dP becomes dS
        float *dp = x->dp + i * block, *p = x->p + i * block;
        size_t valid = diagonal ? i + 1 : nk;
        for (size_t k = 0; k < valid; k++) dp[k] = s->scale * p[k] * (dp[k] - x->d[i]);
        for (size_t k = valid; k < nk; k++) dp[k] = 0.0f;
    }
    attention_transpose(x->transposed, x->dp, nq, nk);
    attention_product(upper, x->dk + k0 * s->width, s->width, attention_left_scores(x->transposed, nk),
                      attention_right_channels(s, x->q_channels, nq * TILE_N, 0), nq, true);
    attention_product(lower, x->dq, s->width, attention_left_scores(x->dp, nq),
                      attention_right_channels(s, x->k_channels, s->blocked * TILE_N, k0), nk, true);
}

static inline void attention_row_products(const AttentionShape *s, float *d, const void *out, const void *dout,
                                          TileSource rows, size_t q0, size_t nq) {
    for (size_t i = 0; i < nq; i++) {
        float partials[PARTIALS] = {0}, a_block[NUMBER_BLOCK], b_block[NUMBER_BLOCK];
        size_t row = rows.first + (q0 + i) * rows.stride;
        for (size_t c = 0, n; c < s->HS; c += n) {
            n = size_min(s->HS - c, NUMBER_BLOCK);
            partials_add_products(partials, number_load(s->dtype, out, row + c, n, a_block),
                               number_load(s->dtype, dout, row + c, n, b_block), n);
        }
        d[i] = partials_total(partials);
    }
}

static inline void attention_backward_head(const AttentionShape *s, void *dqkv, const void *dout, const void *qkv,
                                           const void *out, const void *saved, size_t head, float *scratch) {
    const size_t block = ATTENTION_BLOCK, b = head / s->NH, h = head % s->NH;
    AttentionBackward x;
    attention_backward_buffers(s, &x, scratch);
    TileSource q = attention_rows(s, qkv, 3 * s->C, 0, b, h), k = attention_rows(s, qkv, 3 * s->C, 1, b, h);
    TileSource v = attention_rows(s, qkv, 3 * s->C, 2, b, h), o = attention_rows(s, dout, s->C, 0, b, h);
    attention_pack_keys(s, x.k_keys, &k);
    attention_pack_keys(s, x.v_keys, &v);
    attention_pack_channels(s, x.k_channels, s->blocked * TILE_N, &k, 0, s->T);
    memset(x.dk, 0, s->blocked * s->width * sizeof(float));
    memset(x.dv, 0, s->blocked * s->width * sizeof(float));
    for (size_t q0 = 0; q0 < s->T; q0 += block) {
        size_t nq = size_min(block, s->T - q0);
        attention_pack_rows(s, x.q_rows, &q, q0, nq);
        attention_pack_rows(s, x.do_rows, &o, q0, nq);
        attention_pack_channels(s, x.q_channels, nq * TILE_N, &q, q0, nq);
        attention_pack_channels(s, x.do_channels, nq * TILE_N, &o, q0, nq);
        attention_row_products(s, x.d, out, dout, o, q0, nq);
        memset(x.dq, 0, block * s->width * sizeof(float));
        for (size_t k0 = 0; k0 <= q0; k0 += block) {
            attention_backward_block(s, &x, saved, head, q0, nq, k0, size_min(block, s->T - k0));
        }
        for (size_t i = 0; i < nq; i++) attention_store_rows(s, dqkv, q, q0 + i, x.dq + i * s->width);
    }
    for (size_t t = 0; t < s->T; t++) {
        attention_store_rows(s, dqkv, k, t, x.dk + t * s->width);
        attention_store_rows(s, dqkv, v, t, x.dv + t * s->width);
    }
}

static inline void attention_backward_cpu(const AttentionShape *s, void *dqkv, const void *dout, const void *qkv,
                                          const void *out, const void *saved, float *scratch) {
    AttentionBackward unused;
    const size_t floats = attention_backward_buffers(s, &unused, NULL);
#pragma omp parallel for schedule(static)
    for (int64_t head = 0; head < (int64_t)(s->B * s->NH); head++) {
        attention_backward_head(s, dqkv, dout, qkv, out, saved, (size_t)head,
                                scratch + (size_t)device_thread() * floats);
    }
}

#ifdef __CUDACC__
#include "attention.cuh"
#endif

// ---------------------------------------------------------------------------------------------------------------
// What the model calls

// out (B,T,C) and what is saved for the backward, from qkv (B,T,3C).
static inline void attention_forward(const Context *context, const Attention *of, void *out, void *saved,
                                     const void *qkv) {
    Device *device = context->device;
    Memory *memory = context->memory;
    const AttentionShape s = attention_shape(of, context->dtype);
    AttentionForward unused;
    size_t mark = memory_mark(memory, TIER_DEVICE), n_floats = 0;
    if (device->real != DEVICE_CUDA) n_floats = (size_t)device->threads * attention_forward_buffers(&s, &unused, NULL);
    float *scratch = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, n_floats * sizeof(float),
                                          "attention blocks");
    const double stream_bytes = (double)(s.B * s.T * s.C * number_size(s.dtype));
    const double saved_bytes = (double)attention_saved_bytes(of, s.dtype);
    switch (device->kind) {
    case DEVICE_PLAN:
        device_count(device, 2.0 * (double)(s.B * s.T) * (double)(s.T + 1) * (double)s.C,
                     4.0 * stream_bytes + saved_bytes * (s.kind == ATTENTION_PLAIN ? 2 : 1));
        break;
    case DEVICE_CPU: attention_forward_cpu(&s, out, saved, qkv, scratch); break;
    case DEVICE_CUDA: CUDA_ONLY(attention_forward_cuda(device, &s, out, saved, qkv)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

// dqkv (B,T,3C) from dout (B,T,C), and the forward's qkv, out and saved.
static inline void attention_backward(const Context *context, const Attention *of, void *dqkv, const void *dout,
                                      const void *qkv, const void *out, const void *saved) {
    Device *device = context->device;
    Memory *memory = context->memory;
    const AttentionShape s = attention_shape(of, context->dtype);
    AttentionBackward unused;
    size_t mark = memory_mark(memory, TIER_DEVICE), n_floats = s.B * s.NH * s.T;  // on CUDA: row products
    if (device->real != DEVICE_CUDA) n_floats = (size_t)device->threads * attention_backward_buffers(&s, &unused, NULL);
    float *scratch = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, n_floats * sizeof(float),
                                          "attention blocks");
    const double stream_bytes = (double)(s.B * s.T * s.C * number_size(s.dtype));
    switch (device->kind) {
    case DEVICE_PLAN:
        device_count(device, 5.0 * (double)(s.B * s.T) * (double)(s.T + 1) * (double)s.C,
                     8.0 * stream_bytes + (double)attention_saved_bytes(of, s.dtype));
        break;
    case DEVICE_CPU: attention_backward_cpu(&s, dqkv, dout, qkv, out, saved, scratch); break;
    case DEVICE_CUDA: CUDA_ONLY(attention_backward_cuda(device, &s, dqkv, dout, qkv, out, saved, scratch)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
