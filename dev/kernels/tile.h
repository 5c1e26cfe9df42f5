// tile.h - the CPU's own inner loop for products of matrices, in registers.
//
//     c[TILE_M][TILE_N]  =  (add ? c : 0)  +  sum over k < K of  a[TILE_M][k] (x) b[k][TILE_N]
//
// a is a packed panel of TILE_M rows of K values, b one of K rows of TILE_N values, both fp32 and padded with zeros:
// a's values are broadcast one by one, so its rows can stay rows; b's are loaded as vectors. Each element of c is one
// chain of fused multiply-adds in the order of k, so the bits depend neither on the tile's size nor on the instruction
// set. Used by matmul_tiles.h where the math library can't serve, and by attention.h.
#ifndef TILE_H
#define TILE_H

#include "../number.h"
#include "vec.h"

#if VEC == 16
enum { TILE_M = 12, TILE_N = 2 * VEC };
#elif VEC == 8
enum { TILE_M = 6, TILE_N = 2 * VEC };
#else
enum { TILE_M = 4, TILE_N = 2 * VEC };
#endif

// One tile; c has rows of ldc floats and TILE_M x TILE_N valid elements, a's rows lie lda >= K floats apart.
static inline void tile_product(size_t K, const float *a, size_t lda, const float *b, float *c, size_t ldc, bool add) {
    Vec sum[TILE_M][2];
    for (int i = 0; i < TILE_M; i++) {
        sum[i][0] = add ? vec_load(c + (size_t)i * ldc) : vec_all(0.0f);
        sum[i][1] = add ? vec_load(c + (size_t)i * ldc + VEC) : vec_all(0.0f);
    }
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 4
#endif
    for (size_t k = 0; k < K; k++, b += TILE_N) {
        Vec b0 = vec_load(b), b1 = vec_load(b + VEC);
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 16
#endif
        for (int i = 0; i < TILE_M; i++) {
            Vec ai = vec_all(a[(size_t)i * lda + k]);
            sum[i][0] = vec_fma(ai, b0, sum[i][0]);
            sum[i][1] = vec_fma(ai, b1, sum[i][1]);
        }
    }
    for (int i = 0; i < TILE_M; i++) {
        vec_store(c + (size_t)i * ldc, sum[i][0]);
        vec_store(c + (size_t)i * ldc + VEC, sum[i][1]);
    }
}

// to[j][i] = from[i][j] for i, j < 8, rows ldt and ldf floats apart.
static inline void tile_transpose_8x8(float *to, size_t ldt, const float *from, size_t ldf) {
#if defined(__AVX2__) && !defined(__CUDA_ARCH__)
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + (size_t)i * ldf);
    for (int i = 0; i < 4; i++) {
        s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + (size_t)i * ldt, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (size_t)(i + 4) * ldt, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
#else
    for (size_t i = 0; i < 8; i++) {
        for (size_t j = 0; j < 8; j++) to[j * ldt + i] = from[i * ldf + j];
    }
#endif
}

// A stored matrix as the packing functions read it: element (row, column) at base[first + row * stride + column].
typedef struct {
    Dtype dtype;
    const void *base;
    size_t first, stride;
} TileSource;

enum { TILE_STRIP = 256 };  // columns converted at a time while transposing

// to[i][j] (n_rows x n_columns, rows ldt floats apart) = the source from (row0, column0) on, as fp32.
static inline void tile_copy(float *to, size_t ldt, const TileSource *from, size_t row0, size_t n_rows, size_t column0,
                             size_t n_columns) {
    float block[NUMBER_BLOCK];
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0, n; j < n_columns; j += n) {
            n = size_min(n_columns - j, NUMBER_BLOCK);
            size_t element = from->first + (row0 + i) * from->stride + column0 + j;
            memcpy(to + i * ldt + j, number_load(from->dtype, from->base, element, n, block), n * sizeof(float));
        }
    }
}

// The transpose of tile_copy: to[j][i] = the source's (row0 + i, column0 + j), for i < n_rows, j < n_columns.
static inline void tile_copy_transposed(float *to, size_t ldt, const TileSource *from, size_t row0, size_t n_rows,
                                        size_t column0, size_t n_columns) {
    float blocks[8][TILE_STRIP];
    for (size_t i = 0; i < n_rows; i += 8) {
        for (size_t j = 0, n; j < n_columns; j += n) {
            n = size_min(n_columns - j, TILE_STRIP);
            const float *rows[8];
            size_t m = size_min(n_rows - i, 8), whole = m == 8 ? n / 8 * 8 : 0;
            for (size_t r = 0; r < m; r++) {
                size_t element = from->first + (row0 + i + r) * from->stride + column0 + j;
                rows[r] = number_load(from->dtype, from->base, element, n, blocks[r]);
            }
            size_t ldf = from->dtype == FP32 ? from->stride : (size_t)TILE_STRIP;
            for (size_t k = 0; k < whole; k += 8) {
                tile_transpose_8x8(to + (j + k) * ldt + i, ldt, rows[0] + k, ldf);
            }
            for (size_t k = whole; k < n; k++) {
                for (size_t r = 0; r < m; r++) to[(j + k) * ldt + i + r] = rows[r][k];
            }
        }
    }
}

// The left side of products: rows i0 <= i < i_end of K values each, lda floats apart, and rows of zeros up to a whole
// number of tiles. across: the source's rows are k and its columns i.
static inline void tile_pack_a(float *to, size_t lda, const TileSource *from, bool across, size_t i0, size_t i_end,
                               size_t k0, size_t K) {
    size_t n = i_end - i0, padded = size_round_up(n, TILE_M);
    if (across) tile_copy_transposed(to, lda, from, k0, K, i0, n);
    else tile_copy(to, lda, from, i0, n, k0, K);
    for (size_t i = n; i < padded; i++) memset(to + i * lda, 0, K * sizeof(float));
}

// The right side of products: panels of K rows of TILE_N values each, of columns i0 <= i < i_end; panels lie `stride`
// floats apart, the last one is filled with zeros. across: the source's rows are i and its columns k.
static inline void tile_pack_b(float *to, size_t stride, const TileSource *from, bool across, size_t i0, size_t i_end,
                               size_t k0, size_t K) {
    float block[NUMBER_BLOCK];
    size_t whole = (i_end - i0) / TILE_N, rest = (i_end - i0) % TILE_N;
    if (rest > 0) memset(to + whole * stride, 0, K * TILE_N * sizeof(float));
    if (across) {
        for (size_t i = i0; i < i_end; i += TILE_N, to += stride) {
            tile_copy_transposed(to, TILE_N, from, i, size_min(TILE_N, i_end - i), k0, K);
        }
        return;
    }
    for (size_t k = 0; k < K; k++) {
        float *panel = to + k * TILE_N;
        for (size_t i = i0, n; i < i_end; i += n) {
            n = size_min(i_end - i, NUMBER_BLOCK);
            const size_t first = from->first + (k0 + k) * from->stride + i;
            const float *row = number_load(from->dtype, from->base, first, n, block);
            for (size_t j = 0; j + TILE_N <= n; j += TILE_N, panel += stride)
                memcpy(panel, row + j, TILE_N * sizeof(float));
            if (n % TILE_N > 0) memcpy(panel, row + n - n % TILE_N, (n % TILE_N) * sizeof(float));
        }
    }
}

#endif
