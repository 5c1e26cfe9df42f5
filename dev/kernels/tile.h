// tile.h - the CPU's own inner loop for products of matrices, in registers.
//
//     c[TILE_M][TILE_N]  =  (add ? c : 0)  +  sum over k < K of  a[k][TILE_M] (x) b[k][TILE_N]
//
// a and b are packed panels: K rows of TILE_M (TILE_N) fp32 values, padded with zeros. Each element of c is one chain
// of fused multiply-adds in the order of k, so the bits depend neither on the tile's size nor on the instruction set.
// Used by matmul.h where the math library can't serve, and by attention.h.
#ifndef TILE_H
#define TILE_H

#include "../number.h"

#if defined(__AVX512F__) && !defined(__CUDA_ARCH__)
enum { VEC = 16, TILE_M = 12, TILE_N = 2 * VEC };
typedef __m512 Vec;
static inline Vec vec_load(const float *x) { return _mm512_loadu_ps(x); }
static inline void vec_store(float *x, Vec v) { _mm512_storeu_ps(x, v); }
static inline Vec vec_all(float x) { return _mm512_set1_ps(x); }
static inline Vec vec_fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__CUDA_ARCH__)
enum { VEC = 8, TILE_M = 6, TILE_N = 2 * VEC };
typedef __m256 Vec;
static inline Vec vec_load(const float *x) { return _mm256_loadu_ps(x); }
static inline void vec_store(float *x, Vec v) { _mm256_storeu_ps(x, v); }
static inline Vec vec_all(float x) { return _mm256_set1_ps(x); }
static inline Vec vec_fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#else
enum { VEC = 4, TILE_M = 4, TILE_N = 2 * VEC };
typedef struct { float x[4]; } Vec;
static inline Vec vec_load(const float *x) {
    Vec v;
    memcpy(v.x, x, sizeof(v.x));
    return v;
}
static inline void vec_store(float *x, Vec v) { memcpy(x, v.x, sizeof(v.x)); }
static inline Vec vec_all(float x) {
    Vec v = {{x, x, x, x}};
    return v;
}
static inline Vec vec_fma(Vec a, Vec b, Vec c) {
    for (int i = 0; i < 4; i++) c.x[i] = fmaf(a.x[i], b.x[i], c.x[i]);
    return c;
}
#endif

// One tile; c has rows of ldc floats and TILE_M x TILE_N valid elements.
static inline void tile_product(size_t K, const float *a, const float *b, float *c, size_t ldc, bool add) {
    Vec sum[TILE_M][2];
    for (int i = 0; i < TILE_M; i++) {
        sum[i][0] = add ? vec_load(c + (size_t)i * ldc) : vec_all(0.0f);
        sum[i][1] = add ? vec_load(c + (size_t)i * ldc + VEC) : vec_all(0.0f);
    }
    for (size_t k = 0; k < K; k++, a += TILE_M, b += TILE_N) {
        Vec b0 = vec_load(b), b1 = vec_load(b + VEC);
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 16
#endif
        for (int i = 0; i < TILE_M; i++) {
            Vec ai = vec_all(a[i]);
            sum[i][0] = vec_fma(ai, b0, sum[i][0]);
            sum[i][1] = vec_fma(ai, b1, sum[i][1]);
        }
    }
    for (int i = 0; i < TILE_M; i++) {
        vec_store(c + (size_t)i * ldc, sum[i][0]);
        vec_store(c + (size_t)i * ldc + VEC, sum[i][1]);
    }
}

// A matrix as tile_pack() reads it: element (k, i) is stored at base[first + k * k_stride + i * i_stride]; one of the
// two strides is 1.
typedef struct {
    Number type;
    const void *base;
    size_t first, k_stride, i_stride;
} TileSource;

// Packs n_panels panels of `width` elements: panel p holds (k, i) for k0 <= k < k0 + K and i0 + p * width <= i < that
// + width, each panel K rows of width; i >= i_end is filled with zeros.
static inline void tile_pack(float *to, size_t width, size_t n_panels, const TileSource *from, size_t k0, size_t K,
                             size_t i0, size_t i_end) {
    float block[NUMBER_BLOCK];
    for (size_t p = 0; p < n_panels; p++, to += K * width, i0 += width) {
        size_t n = i0 < i_end ? size_min(width, i_end - i0) : 0;
        if (n < width) memset(to, 0, K * width * sizeof(float));
        if (from->i_stride == 1) {
            for (size_t k = 0; k < K; k++) {
                size_t at = from->first + (k0 + k) * from->k_stride + i0;
                const float *row = number_load(from->type, from->base, at, n, block);
                for (size_t i = 0; i < n; i++) to[k * width + i] = row[i];
            }
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0, m; k < K; k += m) {
                m = size_min(K - k, NUMBER_BLOCK);
                size_t at = from->first + (i0 + i) * from->i_stride + k0 + k;
                const float *row = number_load(from->type, from->base, at, m, block);
                for (size_t j = 0; j < m; j++) to[(k + j) * width + i] = row[j];
            }
        }
    }
}

#endif
