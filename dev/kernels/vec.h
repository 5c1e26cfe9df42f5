// vec.h - VEC fp32 numbers in a vector register of the CPU: load, store, fused multiply-add.
#ifndef VEC_H
#define VEC_H

#include <math.h>
#include <string.h>

#if defined(__AVX2__) && defined(__FMA__) && !defined(__CUDA_ARCH__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && !defined(__CUDA_ARCH__)
#define VEC 16
typedef __m512 Vec;
static inline Vec vec_load(const float *x) { return _mm512_loadu_ps(x); }
static inline void vec_store(float *x, Vec v) { _mm512_storeu_ps(x, v); }
static inline Vec vec_all(float x) { return _mm512_set1_ps(x); }
static inline Vec vec_fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__CUDA_ARCH__)
#define VEC 8
typedef __m256 Vec;
static inline Vec vec_load(const float *x) { return _mm256_loadu_ps(x); }
static inline void vec_store(float *x, Vec v) { _mm256_storeu_ps(x, v); }
static inline Vec vec_all(float x) { return _mm256_set1_ps(x); }
static inline Vec vec_fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#else
#define VEC 4
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

#endif
