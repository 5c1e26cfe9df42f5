// numbers.h - bf16 and fp16 values, and rounding to them, as the device does it.
//
// Invariant: every conversion is exact or rounded once, to nearest even unless it says otherwise; NaN stays NaN.
#ifndef NUMBERS_H
#define NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

__extension__ typedef _Float16 Half;

static inline float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}
static inline uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
static inline double bits_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}
static inline uint64_t double_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float bf16_float(uint16_t h) { return bits_float((uint32_t)h << 16); }

// cvt.rn.bf16.f32; every NaN becomes 0x7fff, as on the device.
static inline uint16_t float_bf16(float x) {
    uint32_t bits = float_bits(x);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

static inline uint16_t float_bf16_to_zero(float x) {
    uint32_t bits = float_bits(x);
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : bits >> 16);
}

static inline float f16_float(uint16_t h) {
    Half x;
    memcpy(&x, &h, sizeof(x));
    return (float)x;
}

// cvt.rn.f16.f32; every NaN becomes 0x7fff.
static inline uint16_t float_f16(float x) {
    Half rounded = (Half)x;
    uint16_t bits;
    memcpy(&bits, &rounded, sizeof(bits));
    return x != x ? 0x7fff : bits;
}

static inline uint16_t float_f16_to_zero(float x) {
    uint16_t bits = float_f16(x);
    if ((bits & 0x7fff) > 0x7c00 || (bits & 0x7fff) == 0) return bits;
    return fabsf(f16_float(bits)) > fabsf(x) ? (uint16_t)(bits - 1) : bits;
}

// a b + c with one rounding, to odd: what is then rounded to a shorter type is rounded correctly. The product of two
// short floats is exact in double, so the error of the sum is all there is.
static inline double fma_to_odd(float a, float b, float c) {
    double product = (double)a * (double)b, sum = product + (double)c;
    if (!isfinite(sum)) return sum;
    double part = sum - product, error = (product - (sum - part)) + ((double)c - part);
    uint64_t bits = double_bits(sum);
    if (error == 0 || (bits & 1)) return sum;
    bool away = (error > 0) == (sum > 0);
    return bits_double(sum == 0 ? double_bits(error) : away ? bits + 1 : bits - 1);
}

// To bf16 or fp16 from a double that was rounded to odd: first to fp32, to odd again, which keeps what matters.
static inline float double_float_to_odd(double x) {
    float rounded = (float)x;
    if ((double)rounded == x || !isfinite(rounded)) return rounded;
    uint32_t bits = float_bits(rounded);
    if (bits & 1) return rounded;
    bool too_large = fabs((double)rounded) > fabs(x);
    return bits_float(too_large ? bits - 1 : bits + 1);
}

static inline uint16_t bf16_fma(uint16_t a, uint16_t b, uint16_t c) {
    return float_bf16(double_float_to_odd(fma_to_odd(bf16_float(a), bf16_float(b), bf16_float(c))));
}
static inline uint16_t f16_fma(uint16_t a, uint16_t b, uint16_t c) {
    return float_f16(double_float_to_odd(fma_to_odd(f16_float(a), f16_float(b), f16_float(c))));
}

// 2^x by its series around the nearest integer, in double: error below 1e-14, so the fp32 result is correctly rounded
// but for one case in millions. The device's approximation errs in the last two bits.
static inline double exp2_precise(double x) {
    double bounded = x < -1000 ? -1000 : x > 1000 ? 1000 : x;
    double shifted = bounded + 0x1.8p52, n = shifted - 0x1.8p52, f = (bounded - n) * 0x1.62e42fefa39efp-1;
    double p = 1.0 / 6227020800;
    p = p * f + 1.0 / 479001600;
    p = p * f + 1.0 / 39916800;
    p = p * f + 1.0 / 3628800;
    p = p * f + 1.0 / 362880;
    p = p * f + 1.0 / 40320;
    p = p * f + 1.0 / 5040;
    p = p * f + 1.0 / 720;
    p = p * f + 1.0 / 120;
    p = p * f + 1.0 / 24;
    p = p * f + 1.0 / 6;
    p = p * f + 0.5;
    p = p * f + 1;
    p = p * f + 1;
    uint64_t power = (double_bits(shifted) + 1023) << 52;  // the integer n is in the low bits of `shifted`
    double result = p * bits_double(power);
    return x != x ? x : result;
}

#endif
