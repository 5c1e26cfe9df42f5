// number.h - how numbers are stored and rounded.
//
// Storage types are chosen at run time (-p); arithmetic is always fp32. A CPU kernel is written once for all of them:
// it walks its rows in blocks of at most NUMBER_BLOCK elements, asks number_load() for an fp32 view of each block
// (for fp32 storage that is the row itself), computes, and gives the result to number_store().
//
// Invariants: a value is rounded to the storage type exactly once, where it is stored, to nearest even. Fused
// multiply-adds are written out (fmaf), never contracted. Sums have one order: partials.h.
#ifndef NUMBER_H
#define NUMBER_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "size.h"

typedef enum { FP32, BF16, FP16, DTYPES } Dtype;

enum { NUMBER_BLOCK = 1024 };

// A hint to bring a line into the caches; the address may be invalid.
#ifdef __GNUC__
#define NUMBER_PREFETCH(pointer) __builtin_prefetch(pointer)
#else
#define NUMBER_PREFETCH(pointer) ((void)0)
#endif

// Bytes of a number.
HOST_DEVICE size_t number_size(Dtype dtype) { return dtype == FP32 ? 4 : 2; }
static inline const char *number_name(Dtype dtype) { return dtype == FP32 ? "fp32" : dtype == BF16 ? "bf16" : "fp16"; }

// ---------------------------------------------------------------------------------------------------------------
// Conversions

// A float's bits, and the float of bits.
HOST_DEVICE uint32_t number_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

HOST_DEVICE float number_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Exact.
HOST_DEVICE float number_from_bf16(uint16_t x) { return number_of_bits((uint32_t)x << 16); }

// Round to nearest even; NaN stays NaN (quiet), overflow becomes infinity.
HOST_DEVICE uint16_t number_to_bf16(float x) {
    uint32_t bits = number_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Exact.
HOST_DEVICE float number_from_fp16(uint16_t x) {
    uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13, sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t special = (x & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;           // infinity, NaN
    uint32_t scaled = number_bits(number_of_bits(magnitude) * number_of_bits(0x77800000u));  // 2^112: biases
    return number_of_bits((special ? magnitude | special : scaled) | sign);
}

// Round to nearest even; NaN stays NaN, 65520 and more become infinity; subnormal numbers keep what they can.
HOST_DEVICE uint16_t number_to_fp16(float x) {
    uint32_t bits = number_bits(x), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // The last place of 0.5 is the smallest number.
    uint32_t small = number_bits(number_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t rounded = magnitude < 0x38800000u ? small : normal;
    rounded = magnitude >= 0x477ff000u ? 0x7c00u : rounded;
    rounded = magnitude > 0x7f800000u ? 0x7e00u : rounded;
    return (uint16_t)(rounded | sign);
}

// The 16-bit types, by type.
HOST_DEVICE float number_from_16(Dtype dtype, uint16_t x) {
    return dtype == BF16 ? number_from_bf16(x) : number_from_fp16(x);
}

HOST_DEVICE uint16_t number_to_16(Dtype dtype, float x) {
    return dtype == BF16 ? number_to_bf16(x) : number_to_fp16(x);
}

// Where an element of a stored array is.
HOST_DEVICE void *number_pointer(Dtype dtype, void *base, size_t element) {
    return (char *)base + element * number_size(dtype);
}

HOST_DEVICE const void *number_pointer_const(Dtype dtype, const void *base, size_t element) {
    return (const char *)base + element * number_size(dtype);
}

// An fp32 view of elements [first, first + n) of a stored array, n <= NUMBER_BLOCK: the array itself if it is fp32,
// otherwise `block` filled with the converted values.
static inline const float *number_load(Dtype dtype, const void *base, size_t first, size_t n, float *block) {
    if (dtype == FP32) return (const float *)base + first;
    const uint16_t *x = (const uint16_t *)base + first;
    if (dtype == BF16) {
        for (size_t i = 0; i < n; i++) block[i] = number_from_bf16(x[i]);
    } else {
        for (size_t i = 0; i < n; i++) block[i] = number_from_fp16(x[i]);
    }
    return block;
}

// Where to write fp32 results before number_store(): the array itself if it is fp32, otherwise `block`.
static inline float *number_target(Dtype dtype, void *base, size_t first, float *block) {
    return dtype == FP32 ? (float *)base + first : block;
}

// Rounds `values` (which number_target() gave, or any other fp32 block) into elements [first, first + n).
static inline void number_store(Dtype dtype, void *base, size_t first, size_t n, const float *values) {
    if (dtype == FP32) {
        float *y = (float *)base + first;
        if (y != values) memcpy(y, values, n * sizeof(float));
        return;
    }
    uint16_t *y = (uint16_t *)base + first;
    if (dtype == BF16) {
        for (size_t i = 0; i < n; i++) y[i] = number_to_bf16(values[i]);
    } else {
        for (size_t i = 0; i < n; i++) y[i] = number_to_fp16(values[i]);
    }
}

// One element as fp32.
HOST_DEVICE float number_get(Dtype dtype, const void *base, size_t i) {
    return dtype == FP32 ? ((const float *)base)[i] : number_from_16(dtype, ((const uint16_t *)base)[i]);
}

// One element, rounded.
HOST_DEVICE void number_put(Dtype dtype, void *base, size_t i, float value) {
    if (dtype == FP32) ((float *)base)[i] = value;
    else ((uint16_t *)base)[i] = number_to_16(dtype, value);
}

// ---------------------------------------------------------------------------------------------------------------
// Functions that vectorise (no library call, no branch)

// exp(x) in fp32, within 1.5 units in the last place for results above 1.2e-38; 0 below (softmax only feeds x <= 0),
// saturates at exp(88.37). x = n ln 2 + r with |r| <= ln 2 / 2, exp(r) by a polynomial of degree 7, scaled by 2^n.
HOST_DEVICE float number_exp(float x) {
    float clamped = x < -87.33654f ? -87.33654f : (x > 88.37f ? 88.37f : x);
    float n = fmaf(clamped, 1.44269504f, 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: rounds to an integer
    float r = fmaf(n, -0.693145752f, clamped);                        // ln 2 in two parts
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.98412698e-4f;
    p = fmaf(p, r, 1.38888889e-3f);
    p = fmaf(p, r, 8.33333333e-3f);
    p = fmaf(p, r, 4.16666667e-2f);
    p = fmaf(p, r, 1.66666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p * r, r, r) + 1.0f;
    float y = p * number_of_bits((uint32_t)((int32_t)n + 127) << 23);
    y = x < -87.33654f ? 0.0f : y;
    return x != x ? x : y;
}

// 1 / (1 + exp(-x)) in fp32: within 3 units in the last place for results above 1e-38.
HOST_DEVICE float number_sigmoid(float x) { return 1.0f / (1.0f + number_exp(-x)); }

#endif
