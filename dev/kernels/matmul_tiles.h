// matmul_tiles.h - the CPU's own products of matrices of any shape and type: cut into blocks, packed, made of tiles.
//
// Operands are converted to fp32 while they are packed, once for all threads. Sums are fp32 chains in the order of k
// (TILE_M x TILE_N of them in registers), rounded once, after the bias or the addition: bits depend on the shape alone.
// All workspace is the caller's, and its size a function of the shape and the number of threads.
#ifndef MATMUL_TILES_H
#define MATMUL_TILES_H

#include "../device.h"
#include "matmul_shape.h"
#include "tile.h"

// C is made in super-blocks of at most MATMUL_M x MATMUL_N. For each, parts of at most MATMUL_K columns of A and rows
// of B are packed once, by all threads; then threads take units of it, one after the other: a few columns of B stay in
// the second-level cache, TILE_M rows of A in the first, and B streams past them.
enum { MATMUL_M = 1024, MATMUL_N = 768, MATMUL_K = 1024, MATMUL_UNIT = 96 * 1024, MATMUL_UNITS = 6 };
// Added to the distances of packed rows and panels, floats: one line, so that a column of A, or the same row of all
// panels, does not fall into few sets of the cache.
enum { MATMUL_LINE = 16 };

// How a product is cut; a function of its shape and the number of threads. Workspace in floats.
typedef struct {
    size_t M, N, K;         // of a super-block: whole tiles; all equal but the last
    size_t lda, panel;      // distances of packed rows of A and of panels of B
    size_t unit_m, unit_n;  // of a unit, whole tiles
    bool direct;            // A is read where it lies, but for its last, incomplete tile
    bool parted;            // K is cut: sums of a whole super-block are kept between its parts
    size_t a, b, sums;      // floats of workspace for A, for B, and for the sums
} MatmulCut;

// The size of equal parts of n, at most `most` each, in multiples of `unit`.
static inline size_t matmul_part(size_t n, size_t most, size_t unit) {
    return size_round_up(size_ceil_div(n, size_ceil_div(n, most)), unit);
}

static inline MatmulCut matmul_cut(const MatmulShape *s, int threads) {
    MatmulCut cut;
    memset(&cut, 0, sizeof(cut));
    cut.M = matmul_part(s->M, MATMUL_M, TILE_M);
    cut.N = matmul_part(s->N, MATMUL_N, TILE_N);
    cut.K = matmul_part(s->K, MATMUL_K, 8);
    cut.lda = cut.K + MATMUL_LINE;
    cut.panel = cut.K * TILE_N + MATMUL_LINE;
    cut.unit_n = matmul_part(cut.N, size_max(MATMUL_UNIT / cut.K, TILE_N), TILE_N);
    size_t across = size_ceil_div(cut.N, cut.unit_n), down = size_ceil_div(MATMUL_UNITS * (size_t)threads, across);
    cut.unit_m = matmul_part(cut.M, size_ceil_div(cut.M, down), TILE_M);
    cut.direct = s->a_dtype == FP32 && !s->a_transposed;
    cut.parted = cut.K < s->K;
    cut.a = (cut.direct ? (size_t)TILE_M : cut.M) * cut.lda;
    cut.b = cut.N / TILE_N * cut.panel;
    cut.sums = cut.parted ? cut.M * cut.N : (size_t)threads * TILE_M * cut.unit_n;
    return cut;
}

// Floats of workspace of a product.
static inline size_t matmul_tiled_floats(const MatmulShape *s, int threads) {
    MatmulCut cut = matmul_cut(s, threads);
    return cut.a + cut.b + cut.sums;
}

// Rounds one finished row of sums into C, after bias or addition.
static inline void matmul_store_row(const MatmulShape *s, void *c, const void *bias, const float *sums, size_t m,
                                    size_t n0, size_t n) {
    float c_block[NUMBER_BLOCK], bias_block[NUMBER_BLOCK];
    float *to = number_target(s->c_dtype, c, m * s->N + n0, c_block);
    if (s->bias) {
        const float *b = number_load(s->a_dtype, bias, n0, n, bias_block);
        for (size_t i = 0; i < n; i++) to[i] = sums[i] + b[i];
    } else if (s->add) {
        const float *before = number_load(s->c_dtype, c, m * s->N + n0, n, c_block);  // a block, or C itself
        for (size_t i = 0; i < n; i++) to[i] = before[i] + sums[i];
    } else {
        for (size_t i = 0; i < n; i++) to[i] = sums[i];
    }
    number_store(s->c_dtype, c, m * s->N + n0, n, to);
}

// A super-block of C: rows [m0, m1), columns [n0, n1); of the sums over k: [k0, k1).
typedef struct {
    size_t m0, m1, n0, n1, k0, k1;
} MatmulRange;

// A product on its way: its operands, and the workspace as it is cut.
typedef struct {
    const MatmulShape *shape;
    MatmulCut cut;
    void *c;
    const void *a, *b, *bias;
    float *packed_a, *packed_b, *sums;
} MatmulTiled;

// Packs what the super-block needs of A, or B, or both. Called by all threads, which share the work by rows of the
// source.
static inline void matmul_pack(const MatmulTiled *p, const MatmulRange *r, bool pack_a, bool pack_b) {
    const MatmulShape *s = p->shape;
    const MatmulCut *cut = &p->cut;
    float *a = p->packed_a, *b = p->packed_b;
    TileSource a_from = {s->a_dtype, p->a, 0, s->a_transposed ? s->M : s->K};
    TileSource b_from = {s->b_dtype, p->b, 0, s->b_transposed ? s->K : s->N};
    const size_t m0 = cut->direct ? r->m0 + (r->m1 - r->m0) / TILE_M * TILE_M : r->m0, K = r->k1 - r->k0;
    const size_t a_step = s->a_transposed ? 32 : 8 * TILE_M, b_step = s->b_transposed ? 2 * TILE_N : 32;
    const size_t a_steps = pack_a ? size_ceil_div(s->a_transposed ? K : r->m1 - m0, a_step) : 0;
    const size_t b_steps = pack_b ? size_ceil_div(s->b_transposed ? r->n1 - r->n0 : K, b_step) : 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t step = 0; step < (int64_t)(a_steps + b_steps); step++) {
        size_t i = (size_t)step;
        if (i < b_steps && s->b_transposed) {
            size_t n = r->n0 + i * b_step;
            tile_pack_b(b + i * b_step / TILE_N * cut->panel, cut->panel, &b_from, true, n, size_min(n + b_step, r->n1),
                        r->k0, K);
        } else if (i < b_steps) {
            size_t k = i * b_step;
            tile_pack_b(b + k * TILE_N, cut->panel, &b_from, false, r->n0, r->n1, r->k0 + k, size_min(b_step, K - k));
        } else if (s->a_transposed) {
            size_t k = (i - b_steps) * a_step;
            tile_pack_a(a + k, cut->lda, &a_from, true, m0, r->m1, r->k0 + k, size_min(a_step, K - k));
        } else {
            size_t m = m0 + (i - b_steps) * a_step;
            tile_pack_a(a + (m - m0) * cut->lda, cut->lda, &a_from, false, m, size_min(m + a_step, r->m1), r->k0, K);
        }
    }
}

// Columns [n0, n1) of one row of tiles, at row m.
static inline void matmul_tiles(const MatmulTiled *p, const MatmulRange *r, size_t m, size_t n0, size_t n1) {
    const MatmulShape *s = p->shape;
    const MatmulCut *cut = &p->cut;
    const float *a = p->packed_a, *b = p->packed_b;
    size_t K = r->k1 - r->k0, lda = cut->lda, rows = size_min(TILE_M, r->m1 - m);
    size_t ldc = cut->parted ? cut->N : cut->unit_n;
    float *to = p->sums + (cut->parted ? (m - r->m0) * cut->N + n0 - r->n0
                                       : (size_t)device_thread() * TILE_M * cut->unit_n);
    if (!cut->direct) {
        a += (m - r->m0) * lda;
    } else if (rows == TILE_M) {
        a = (const float *)p->a + m * s->K + r->k0;
        lda = s->K;
    }
    for (size_t n = n0; n < n1; n += TILE_N) {
        tile_product(K, a, lda, b + (n - r->n0) / TILE_N * cut->panel, to + n - n0, ldc, r->k0 > 0);
    }
    if (r->k1 < s->K) return;
    for (size_t i = 0; i < rows; i++) matmul_store_row(s, p->c, p->bias, to + i * ldc, m + i, n0, n1 - n0);
}

// c = a . b on `threads` threads; workspace: matmul_tiled_floats().
static inline void matmul_tiled_cpu(const MatmulShape *s, void *c, const void *a, const void *b, const void *bias,
                                    float *workspace, int threads) {
    const MatmulCut cut = matmul_cut(s, threads);
    float *packed_b = workspace + cut.a, *sums = packed_b + cut.b;
    const MatmulTiled p = {s, cut, c, a, b, bias, workspace, packed_b, sums};
    // Super-blocks in rows, parts of K innermost: A stays packed along a row if it has one part, B if the row also has
    // only one super-block.
    const size_t across = size_ceil_div(s->N, cut.N), parts = size_ceil_div(s->K, cut.K);
    const size_t steps = size_ceil_div(s->M, cut.M) * across * parts;
#pragma omp parallel
    for (size_t step = 0; step < steps; step++) {
        size_t m = step / parts / across, n = step / parts % across, k = step % parts;
        MatmulRange r = {m * cut.M, size_min((m + 1) * cut.M, s->M), n * cut.N, size_min((n + 1) * cut.N, s->N),
                         k * cut.K, size_min((k + 1) * cut.K, s->K)};
        const size_t columns = size_ceil_div(r.n1 - r.n0, cut.unit_n);
        const size_t units = columns * size_ceil_div(r.m1 - r.m0, cut.unit_m);
        matmul_pack(&p, &r, parts > 1 || n == 0, parts > 1 || across > 1 || m == 0);
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < (int64_t)units; unit++) {
            size_t n0 = r.n0 + (size_t)unit % columns * cut.unit_n, n1 = size_min(n0 + cut.unit_n, r.n1);
            size_t m0 = r.m0 + (size_t)unit / columns * cut.unit_m, m1 = size_min(m0 + cut.unit_m, r.m1);
            for (size_t i = m0; i < m1; i += TILE_M) matmul_tiles(&p, &r, i, n0, n1);
        }
    }
}

#endif
