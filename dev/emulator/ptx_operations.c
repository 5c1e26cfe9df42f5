// ptx_operations.c - arithmetic of 32 lanes, and the table that gives each instruction its function.
//
// Loops over all lanes of registers that are plain arrays; the compiler makes vector code of them. Lanes that are not
// active are computed too and dropped by lanes_blend(), so nothing here may trap on any value. Modifiers .rz .rm .rp
// and .ftz are MXCSR bits that the caller sets; .sat of floats is done by the caller.
//
// Approximations (ex2.approx, rcp.approx, div.full …) are computed in double and rounded once.
#include "numbers.h"
#include "ptx.h"

#define EACH_LANE _Pragma("GCC ivdep") for (int l = 0; l < LANES; l++)
#define UNUSED_PARAMETERS (void)s, (void)i

// A function of 32 lanes: result type, source type, expression of a, b, c, e (the sources) at [l].
#define LANES_FUNCTION(name, D, S, expression)                                                    \
    static void name(void *result, const void *const *s, const Instruction *i) {                  \
        D *d = result;                                                                            \
        const S *a = s[0], *b = s[1], *c = s[2], *e = s[3];                                       \
        UNUSED_PARAMETERS, (void)a, (void)b, (void)c, (void)e;                                    \
        EACH_LANE d[l] = (D)(expression);                                                         \
    }

// ---------------------------------------------------------------------------------------------------------------
// Integers


#define INTEGERS(name, expression)                        \
    LANES_FUNCTION(name##_16, uint16_t, uint16_t, expression) \
    LANES_FUNCTION(name##_32, uint32_t, uint32_t, expression) \
    LANES_FUNCTION(name##_64, uint64_t, uint64_t, expression)
#define SIGNED_INTEGERS(name, expression)                 \
    LANES_FUNCTION(name##_s16, int16_t, int16_t, expression) \
    LANES_FUNCTION(name##_s32, int32_t, int32_t, expression) \
    LANES_FUNCTION(name##_s64, int64_t, int64_t, expression)

INTEGERS(add, a[l] + b[l])
INTEGERS(sub, a[l] - b[l])
LANES_FUNCTION(mul_16, uint16_t, uint16_t, (uint32_t)a[l] * b[l])
LANES_FUNCTION(mul_32, uint32_t, uint32_t, a[l] *b[l])
LANES_FUNCTION(mul_64, uint64_t, uint64_t, a[l] *b[l])
LANES_FUNCTION(mad_16, uint16_t, uint16_t, (uint32_t)a[l] * b[l] + c[l])
LANES_FUNCTION(mad_32, uint32_t, uint32_t, a[l] *b[l] + c[l])
LANES_FUNCTION(mad_64, uint64_t, uint64_t, a[l] *b[l] + c[l])
INTEGERS(and, a[l] & b[l])
INTEGERS(or, a[l] | b[l])
INTEGERS(xor, a[l] ^ b[l])
INTEGERS(not, ~a[l])
INTEGERS(cnot, a[l] == 0)
INTEGERS(neg, 0 - a[l])
INTEGERS(min, a[l] < b[l] ? a[l] : b[l])
INTEGERS(max, a[l] > b[l] ? a[l] : b[l])
SIGNED_INTEGERS(min, a[l] < b[l] ? a[l] : b[l])
SIGNED_INTEGERS(max, a[l] > b[l] ? a[l] : b[l])
LANES_FUNCTION(abs_s16, uint16_t, int16_t, a[l] < 0 ? -a[l] : a[l])
LANES_FUNCTION(abs_s32, uint32_t, int32_t, a[l] < 0 ? 0u - (uint32_t)a[l] : (uint32_t)a[l])
LANES_FUNCTION(abs_s64, uint64_t, int64_t, a[l] < 0 ? 0u - (uint64_t)a[l] : (uint64_t)a[l])

// The device gives something for x / 0; so does this. The most negative number over -1 is itself.
INTEGERS(div, b[l] == 0 ? (uint64_t)-1 : a[l] / b[l])
INTEGERS(rem, b[l] == 0 ? a[l] : a[l] % b[l])
SIGNED_INTEGERS(div, b[l] == 0 ? -1 : b[l] == -1 ? (int64_t)(0 - (uint64_t)a[l]) : (int64_t)(a[l] / b[l]))
SIGNED_INTEGERS(rem, b[l] == 0 ? a[l] : b[l] == -1 ? 0 : a[l] % b[l])

LANES_FUNCTION(mul_wide_u16, uint32_t, uint16_t, (uint32_t)a[l] * b[l])
LANES_FUNCTION(mul_wide_s16, int32_t, int16_t, (int32_t)a[l] * b[l])
LANES_FUNCTION(mul_wide_u32, uint64_t, uint32_t, (uint64_t)a[l] * b[l])
LANES_FUNCTION(mul_wide_s32, int64_t, int32_t, (int64_t)a[l] * b[l])
LANES_FUNCTION(mul_hi_u16, uint16_t, uint16_t, (uint32_t)a[l] * b[l] >> 16)
LANES_FUNCTION(mul_hi_s16, int16_t, int16_t, (int32_t)a[l] * b[l] >> 16)
LANES_FUNCTION(mul_hi_u32, uint32_t, uint32_t, (uint64_t)a[l] * b[l] >> 32)
LANES_FUNCTION(mul_hi_s32, int32_t, int32_t, (int64_t)a[l] * b[l] >> 32)
LANES_FUNCTION(mul_hi_u64, uint64_t, uint64_t, (Wide)a[l] * b[l] >> 64)
LANES_FUNCTION(mul_hi_s64, int64_t, int64_t, (SignedWide)a[l] * b[l] >> 64)
LANES_FUNCTION(mad_hi_u32, uint32_t, uint32_t, ((uint64_t)a[l] * b[l] >> 32) + c[l])
LANES_FUNCTION(mad_hi_s32, int32_t, int32_t, (uint32_t)((int64_t)a[l] * b[l] >> 32) + (uint32_t)c[l])
LANES_FUNCTION(mad_hi_u64, uint64_t, uint64_t, (uint64_t)((Wide)a[l] * b[l] >> 64) + c[l])
LANES_FUNCTION(mul24_lo_u32, uint32_t, uint32_t, (a[l] & 0xffffff) * (b[l] & 0xffffff))
LANES_FUNCTION(sad_u32, uint32_t, uint32_t, c[l] + (a[l] < b[l] ? b[l] - a[l] : a[l] - b[l]))
LANES_FUNCTION(sad_s32, uint32_t, int32_t,
               (uint32_t)c[l] + (a[l] < b[l] ? (uint32_t)b[l] - (uint32_t)a[l] : (uint32_t)a[l] - (uint32_t)b[l]))

static void mad_wide_u32(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint64_t *d = result;
    const uint32_t *a = s[0], *b = s[1];
    const uint64_t *c = s[2];
    EACH_LANE d[l] = (uint64_t)a[l] * b[l] + c[l];
}
static void mad_wide_s32(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint64_t *d = result;
    const int32_t *a = s[0], *b = s[1];
    const uint64_t *c = s[2];
    EACH_LANE d[l] = (uint64_t)((int64_t)a[l] * b[l]) + c[l];
}
static void mad_wide_u16(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint32_t *d = result;
    const uint16_t *a = s[0], *b = s[1];
    const uint32_t *c = s[2];
    EACH_LANE d[l] = (uint32_t)a[l] * b[l] + c[l];
}
static void mad_wide_s16(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint32_t *d = result;
    const int16_t *a = s[0], *b = s[1];
    const uint32_t *c = s[2];
    EACH_LANE d[l] = (uint32_t)((int32_t)a[l] * b[l]) + c[l];
}

static int32_t saturated_s32(int64_t x) { return (int32_t)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x); }
LANES_FUNCTION(add_sat_s32, int32_t, int32_t, saturated_s32((int64_t)a[l] + b[l]))
LANES_FUNCTION(sub_sat_s32, int32_t, int32_t, saturated_s32((int64_t)a[l] - b[l]))

// Shifts take 32-bit amounts, which are clamped to the width.
#define SHIFT(name, D, width, shifted, beyond)                                    \
    static void name(void *result, const void *const *s, const Instruction *i) { \
        (void)i;                                                                  \
        D *d = result;                                                            \
        const D *a = s[0];                                                        \
        const uint32_t *b = s[1];                                                 \
        EACH_LANE d[l] = (D)(b[l] < width ? (shifted) : (beyond));                \
    }
SHIFT(shl_16, uint16_t, 16, (uint32_t)a[l] << (b[l] & 15), 0)
SHIFT(shl_32, uint32_t, 32, a[l] << (b[l] & 31), 0)
SHIFT(shl_64, uint64_t, 64, a[l] << (b[l] & 63), 0)
SHIFT(shr_16, uint16_t, 16, a[l] >> (b[l] & 15), 0)
SHIFT(shr_32, uint32_t, 32, a[l] >> (b[l] & 31), 0)
SHIFT(shr_64, uint64_t, 64, a[l] >> (b[l] & 63), 0)
SHIFT(shr_s16, int16_t, 16, a[l] >> (b[l] & 15), a[l] < 0 ? -1 : 0)
SHIFT(shr_s32, int32_t, 32, a[l] >> (b[l] & 31), a[l] < 0 ? -1 : 0)
SHIFT(shr_s64, int64_t, 64, a[l] >> (b[l] & 63), a[l] < 0 ? -1 : 0)

static uint64_t join_words(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }
static uint32_t at_most_32(uint32_t n) { return n > 32 ? 32 : n; }
LANES_FUNCTION(shf_l_wrap, uint32_t, uint32_t, join_words(a[l], b[l]) << (c[l] & 31) >> 32)
LANES_FUNCTION(shf_r_wrap, uint32_t, uint32_t, join_words(a[l], b[l]) >> (c[l] & 31))
LANES_FUNCTION(shf_l_clamp, uint32_t, uint32_t, c[l] >= 32 ? a[l] : join_words(a[l], b[l]) << (c[l] & 31) >> 32)
LANES_FUNCTION(shf_r_clamp, uint32_t, uint32_t, join_words(a[l], b[l]) >> at_most_32(c[l]))

static uint32_t logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t d = 0;
    if (table & 1) d |= ~a & ~b & ~c;
    if (table & 2) d |= ~a & ~b & c;
    if (table & 4) d |= ~a & b & ~c;
    if (table & 8) d |= ~a & b & c;
    if (table & 16) d |= a & ~b & ~c;
    if (table & 32) d |= a & ~b & c;
    if (table & 64) d |= a & b & ~c;
    if (table & 128) d |= a & b & c;
    return d;
}
LANES_FUNCTION(lop3, uint32_t, uint32_t, logic3(a[l], b[l], c[l], e[l]))

static uint64_t low_bits(uint32_t n) { return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1; }
static uint64_t shifted_left(uint64_t x, uint32_t n) { return n >= 64 ? 0 : x << n; }
static uint64_t shifted_right(uint64_t x, uint32_t n) { return n >= 64 ? 0 : x >> n; }

static uint64_t bit_field_insert(uint64_t field, uint64_t base, uint32_t position, uint32_t length) {
    uint64_t mask = shifted_left(low_bits(length & 255), position & 255);
    return (base & ~mask) | (shifted_left(field, position & 255) & mask);
}
static void bfi_32(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint32_t *d = result;
    const uint32_t *a = s[0], *b = s[1], *c = s[2], *e = s[3];
    EACH_LANE d[l] = (uint32_t)bit_field_insert(a[l], b[l], c[l], e[l]);
}
static void bfi_64(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint64_t *d = result;
    const uint64_t *a = s[0], *b = s[1];
    const uint32_t *c = s[2], *e = s[3];
    EACH_LANE d[l] = bit_field_insert(a[l], b[l], c[l], e[l]);
}

// The sign bit of a field is its highest bit, or the number's highest if the field goes beyond.
static uint64_t bit_field(uint64_t x, uint32_t position, uint32_t length, uint32_t width, bool is_signed) {
    position &= 255;
    length &= 255;
    uint64_t field = shifted_right(x, position) & low_bits(length);
    if (!is_signed || length == 0) return field;
    uint32_t top = position + length - 1 < width - 1 ? position + length - 1 : width - 1;
    if (!(x >> top & 1)) return field;
    uint32_t n = top >= position ? top - position + 1 : 0;
    return field | ~low_bits(n);
}
#define BIT_FIELD(name, D, width, is_signed)                                       \
    static void name(void *result, const void *const *s, const Instruction *i) {  \
        (void)i;                                                                   \
        D *d = result;                                                             \
        const D *a = s[0];                                                         \
        const uint32_t *b = s[1], *c = s[2];                                       \
        EACH_LANE d[l] = (D)bit_field(a[l], b[l], c[l], width, is_signed);         \
    }
BIT_FIELD(bfe_u32, uint32_t, 32, false)
BIT_FIELD(bfe_s32, uint32_t, 32, true)
BIT_FIELD(bfe_u64, uint64_t, 64, false)
BIT_FIELD(bfe_s64, uint64_t, 64, true)

static uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = join_words(a, b);
    uint32_t d = 0;
    for (int q = 0; q < 4; q++) {
        uint32_t pick = selector >> 4 * q & 15, byte = (uint32_t)(bytes >> 8 * (pick & 7)) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        d |= byte << 8 * q;
    }
    return d;
}
LANES_FUNCTION(prmt, uint32_t, uint32_t, permute_bytes(a[l], b[l], c[l]))

static uint32_t reversed_bits(uint32_t x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}
LANES_FUNCTION(brev_32, uint32_t, uint32_t, reversed_bits(a[l]))
LANES_FUNCTION(brev_64, uint64_t, uint64_t,
               join_words(reversed_bits((uint32_t)(a[l] >> 32)), reversed_bits((uint32_t)a[l])))
LANES_FUNCTION(popc_32, uint32_t, uint32_t, __builtin_popcount(a[l]))
LANES_FUNCTION(popc_64, uint32_t, uint64_t, __builtin_popcountll(a[l]))
LANES_FUNCTION(clz_32, uint32_t, uint32_t, a[l] ? __builtin_clz(a[l]) : 32)
LANES_FUNCTION(clz_64, uint32_t, uint64_t, a[l] ? __builtin_clzll(a[l]) : 64)

static uint32_t highest_bit(uint64_t x) { return x ? 63u - (uint32_t)__builtin_clzll(x) : 0xffffffffu; }
LANES_FUNCTION(bfind_u32, uint32_t, uint32_t, highest_bit(a[l]))
LANES_FUNCTION(bfind_s32, uint32_t, int32_t, highest_bit((uint32_t)(a[l] < 0 ? ~a[l] : a[l])))
LANES_FUNCTION(bfind_u64, uint32_t, uint64_t, highest_bit(a[l]))
LANES_FUNCTION(bfind_s64, uint32_t, int64_t, highest_bit((uint64_t)(a[l] < 0 ? ~a[l] : a[l])))

LANES_FUNCTION(bfind_shift_u32, uint32_t, uint32_t, a[l] ? 31 - highest_bit(a[l]) : 0xffffffffu)
LANES_FUNCTION(bfind_shift_u64, uint32_t, uint64_t, a[l] ? 63 - highest_bit(a[l]) : 0xffffffffu)

static uint32_t dot4(uint32_t a, uint32_t b, uint32_t c, bool signed_a, bool signed_b) {
    for (int q = 0; q < 4; q++) {
        int32_t x = (int32_t)(a >> 8 * q & 255), y = (int32_t)(b >> 8 * q & 255);
        if (signed_a) x = (int8_t)x;
        if (signed_b) y = (int8_t)y;
        c += (uint32_t)(x * y);
    }
    return c;
}
LANES_FUNCTION(dp4a_uu, uint32_t, uint32_t, dot4(a[l], b[l], c[l], false, false))
LANES_FUNCTION(dp4a_ss, uint32_t, uint32_t, dot4(a[l], b[l], c[l], true, true))

// ---------------------------------------------------------------------------------------------------------------
// fp32 and fp64

#define FLOATS(name, expression)                      \
    LANES_FUNCTION(name##_f32, float, float, expression) \
    LANES_FUNCTION(name##_f64, double, double, expression)

FLOATS(add, a[l] + b[l])
FLOATS(sub, a[l] - b[l])
FLOATS(mul, a[l] *b[l])
FLOATS(div, a[l] / b[l])
FLOATS(rcp, 1 / a[l])
LANES_FUNCTION(fma_f32, float, float, __builtin_fmaf(a[l], b[l], c[l]))
LANES_FUNCTION(fma_f64, double, double, __builtin_fma(a[l], b[l], c[l]))
LANES_FUNCTION(sqrt_f32, float, float, sqrtf(a[l]))
LANES_FUNCTION(sqrt_f64, double, double, sqrt(a[l]))
LANES_FUNCTION(rsqrt_f32, float, float, 1 / sqrt((double)a[l]))
LANES_FUNCTION(rsqrt_f64, double, double, 1 / sqrt(a[l]))
LANES_FUNCTION(neg_f32, uint32_t, uint32_t, a[l] ^ 0x80000000u)
LANES_FUNCTION(neg_f64, uint64_t, uint64_t, a[l] ^ (uint64_t)1 << 63)
LANES_FUNCTION(abs_f32, uint32_t, uint32_t, a[l] & 0x7fffffffu)
LANES_FUNCTION(abs_f64, uint64_t, uint64_t, a[l] & ~((uint64_t)1 << 63))
LANES_FUNCTION(copysign_f32, uint32_t, uint32_t, (a[l] & 0x80000000u) | (b[l] & 0x7fffffffu))
LANES_FUNCTION(copysign_f64, uint64_t, uint64_t,
               (a[l] & (uint64_t)1 << 63) | (b[l] & ~((uint64_t)1 << 63)))

// min and max give the other operand for a NaN, and know that -0 < +0.
static float least_float(float a, float b) {
    float other = a < b || (a == b && float_bits(a) >> 31) ? a : b;
    return a != a ? (b != b ? bits_float(0x7fffffff) : b) : b != b ? a : other;
}
static float greatest_float(float a, float b) {
    float other = a > b || (a == b && !(float_bits(a) >> 31)) ? a : b;
    return a != a ? (b != b ? bits_float(0x7fffffff) : b) : b != b ? a : other;
}
static float or_nan(float result, float a, float b) { return a != a || b != b ? bits_float(0x7fffffff) : result; }
LANES_FUNCTION(min_f32, float, float, least_float(a[l], b[l]))
LANES_FUNCTION(max_f32, float, float, greatest_float(a[l], b[l]))
LANES_FUNCTION(min_nan_f32, float, float, or_nan(least_float(a[l], b[l]), a[l], b[l]))
LANES_FUNCTION(max_nan_f32, float, float, or_nan(greatest_float(a[l], b[l]), a[l], b[l]))
LANES_FUNCTION(min_f64, double, double, fmin(a[l], b[l]))
LANES_FUNCTION(max_f64, double, double, fmax(a[l], b[l]))

LANES_FUNCTION(ex2_f32, float, float, exp2_precise(a[l]))
LANES_FUNCTION(lg2_f32, float, float, log2((double)a[l]))
LANES_FUNCTION(sin_f32, float, float, sin((double)a[l]))
LANES_FUNCTION(cos_f32, float, float, cos((double)a[l]))

static double tanh_precise(double x) {
    double near = x - x * x * x / 3, far = 1 - 2 / (exp2_precise(x * 0x1.71547652b82fep+1) + 1);
    return fabs(x) < 1e-4 ? near : far;
}
LANES_FUNCTION(tanh_f32, float, float, tanh_precise(a[l]))

// ---------------------------------------------------------------------------------------------------------------
// fp16 and bf16, single and in pairs. Sums and products of two are exact enough in fp32 (24 >= 2 * 11 + 2 bits).

#define SHORT_FLOATS(name, call)                                                                                \
    LANES_FUNCTION(name##_f16, uint16_t, uint16_t, F16_CALL(call, a[l], b[l], c[l]))                            \
    LANES_FUNCTION(name##_bf16, uint16_t, uint16_t, BF16_CALL(call, a[l], b[l], c[l]))                          \
    LANES_FUNCTION(name##_f16x2, uint32_t, uint32_t, PAIR(F16_CALL, call, a[l], b[l], c[l]))                    \
    LANES_FUNCTION(name##_bf16x2, uint32_t, uint32_t, PAIR(BF16_CALL, call, a[l], b[l], c[l]))
#define F16_CALL(call, a, b, c) call(a, b, c, false)
#define BF16_CALL(call, a, b, c) call(a, b, c, true)
#define PAIR(CALL, call, a, b, c)                                                                 \
    ((uint32_t)CALL(call, (uint16_t)(a), (uint16_t)(b), (uint16_t)(c)) |                          \
     (uint32_t)CALL(call, (uint16_t)((a) >> 16), (uint16_t)((b) >> 16), (uint16_t)((c) >> 16)) << 16)

static inline float short_float(uint16_t x, bool bf16) { return bf16 ? bf16_float(x) : f16_float(x); }
static inline uint16_t float_short(float x, bool bf16) { return bf16 ? float_bf16(x) : float_f16(x); }

static inline uint16_t short_add(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)c;
    return float_short(short_float(a, bf16) + short_float(b, bf16), bf16);
}
static inline uint16_t short_sub(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)c;
    return float_short(short_float(a, bf16) - short_float(b, bf16), bf16);
}
static inline uint16_t short_mul(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)c;
    return float_short(short_float(a, bf16) * short_float(b, bf16), bf16);
}
static inline uint16_t short_fma(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    return bf16 ? bf16_fma(a, b, c) : f16_fma(a, b, c);
}
static inline uint16_t short_fma_relu(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    uint16_t d = short_fma(a, b, c, bf16);
    return d >> 15 ? 0 : d;
}
static inline uint16_t short_min(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)c;
    return float_short(least_float(short_float(a, bf16), short_float(b, bf16)), bf16);
}
static inline uint16_t short_max(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)c;
    return float_short(greatest_float(short_float(a, bf16), short_float(b, bf16)), bf16);
}
static inline uint16_t short_min_nan(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    float x = short_float(a, bf16), y = short_float(b, bf16);
    return x != x || y != y ? 0x7fff : short_min(a, b, c, bf16);
}
static inline uint16_t short_max_nan(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    float x = short_float(a, bf16), y = short_float(b, bf16);
    return x != x || y != y ? 0x7fff : short_max(a, b, c, bf16);
}
static inline uint16_t short_neg(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)b, (void)c, (void)bf16;
    return a ^ 0x8000;
}
static inline uint16_t short_abs(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)b, (void)c, (void)bf16;
    return a & 0x7fff;
}
static inline uint16_t short_ex2(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)b, (void)c;
    return float_short(double_float_to_odd(exp2_precise(short_float(a, bf16))), bf16);
}
static inline uint16_t short_tanh(uint16_t a, uint16_t b, uint16_t c, bool bf16) {
    (void)b, (void)c;
    return float_short(double_float_to_odd(tanh_precise(short_float(a, bf16))), bf16);
}
SHORT_FLOATS(add, short_add)
SHORT_FLOATS(sub, short_sub)
SHORT_FLOATS(mul, short_mul)
SHORT_FLOATS(fma, short_fma)
SHORT_FLOATS(fma_relu, short_fma_relu)
SHORT_FLOATS(min, short_min)
SHORT_FLOATS(max, short_max)
SHORT_FLOATS(min_nan, short_min_nan)
SHORT_FLOATS(max_nan, short_max_nan)
SHORT_FLOATS(neg, short_neg)
SHORT_FLOATS(abs, short_abs)
SHORT_FLOATS(ex2, short_ex2)
SHORT_FLOATS(tanh, short_tanh)

// ---------------------------------------------------------------------------------------------------------------
// Moves

LANES_FUNCTION(mov_16, uint16_t, uint16_t, a[l])
LANES_FUNCTION(mov_32, uint32_t, uint32_t, a[l])
LANES_FUNCTION(mov_64, uint64_t, uint64_t, a[l])
LANES_FUNCTION(slct_s32, uint32_t, uint32_t, (int32_t)c[l] >= 0 ? a[l] : b[l])
LANES_FUNCTION(slct_f32, uint32_t, uint32_t, bits_float(c[l]) >= 0 ? a[l] : b[l])

#define SELECT(name, T)                                                           \
    static void name(void *result, const void *const *s, const Instruction *i) { \
        (void)i;                                                                  \
        T *d = result;                                                            \
        const T *a = s[0], *b = s[1];                                             \
        uint32_t mask = *(const uint32_t *)s[2];                                  \
        EACH_LANE d[l] = mask >> l & 1 ? a[l] : b[l];                             \
    }
SELECT(select_16, uint16_t)
SELECT(select_32, uint32_t)
SELECT(select_64, uint64_t)

LanesFunction *select_find(size_t n_bytes) { return n_bytes == 2 ? select_16 : n_bytes == 4 ? select_32 : select_64; }

void lanes_blend(void *d, const void *s, uint32_t mask, size_t n_bytes) {
    const void *sources[4] = {s, d, &mask, NULL};
    select_find(n_bytes)(d, sources, NULL);
}

void lanes_fill(void *d, uint64_t value, size_t n_bytes) {
    for (int l = 0; l < LANES && n_bytes == 2; l++) ((uint16_t *)d)[l] = (uint16_t)value;
    for (int l = 0; l < LANES && n_bytes == 4; l++) ((uint32_t *)d)[l] = (uint32_t)value;
    for (int l = 0; l < LANES && n_bytes == 8; l++) ((uint64_t *)d)[l] = value;
}

// ---------------------------------------------------------------------------------------------------------------
// The table

#define ROWS_INTEGER(name, f) \
    {name, TYPE_B16, NULL, 0, f##_16}, {name, TYPE_B32, NULL, 0, f##_32}, { name, TYPE_B64, NULL, 0, f##_64 }
#define ROWS_SIGNED(name, f) \
    {name, TYPE_S16, NULL, 0, f##_s16}, {name, TYPE_S32, NULL, 0, f##_s32}, { name, TYPE_S64, NULL, 0, f##_s64 }
#define ROWS_SHIFT(name, T, f) \
    {name, TYPE_##T##16, "*4", 0, f##16}, {name, TYPE_##T##32, "*4", 0, f##32}, {name, TYPE_##T##64, "*4", 0, f##64}
#define ROWS_FLOAT(name, f) {name, TYPE_F32, NULL, 0, f##_f32}, {name, TYPE_F64, NULL, 0, f##_f64}
#define ROWS_SHORT(name, f)                                                                     \
    {name, TYPE_F16, NULL, 0, f##_f16}, {name, TYPE_BF16, NULL, 0, f##_bf16}, {name, TYPE_F16X2, NULL, 0, f##_f16x2}, \
        {name, TYPE_BF16X2, NULL, 0, f##_bf16x2}

// A row for S types comes before the row for B types that would match as well.
static const Table TABLE[] = {
    ROWS_FLOAT("add", add), ROWS_SHORT("add", add), ROWS_INTEGER("add", add),
    ROWS_FLOAT("sub", sub), ROWS_SHORT("sub", sub), ROWS_INTEGER("sub", sub),
    ROWS_FLOAT("mul", mul), ROWS_SHORT("mul", mul), ROWS_INTEGER("mul.lo", mul),
    ROWS_FLOAT("fma", fma), ROWS_FLOAT("mad", fma), ROWS_SHORT("fma", fma), ROWS_SHORT("fma.relu", fma_relu),
    ROWS_INTEGER("mad.lo", mad),
    ROWS_FLOAT("div", div), ROWS_SIGNED("div", div), ROWS_INTEGER("div", div),
    ROWS_SIGNED("rem", rem), ROWS_INTEGER("rem", rem),
    ROWS_FLOAT("min", min), ROWS_SHORT("min", min), ROWS_SIGNED("min", min), ROWS_INTEGER("min", min),
    ROWS_FLOAT("max", max), ROWS_SHORT("max", max), ROWS_SIGNED("max", max), ROWS_INTEGER("max", max),
    {"min.NaN", TYPE_F32, NULL, 0, min_nan_f32}, {"max.NaN", TYPE_F32, NULL, 0, max_nan_f32},
    ROWS_SHORT("min.NaN", min_nan), ROWS_SHORT("max.NaN", max_nan),
    ROWS_FLOAT("neg", neg), ROWS_SHORT("neg", neg), ROWS_INTEGER("neg", neg),
    ROWS_FLOAT("abs", abs), ROWS_SHORT("abs", abs), ROWS_SIGNED("abs", abs),
    ROWS_FLOAT("copysign", copysign),
    ROWS_INTEGER("and", and), ROWS_INTEGER("or", or), ROWS_INTEGER("xor", xor), ROWS_INTEGER("not", not),
    ROWS_INTEGER("cnot", cnot), ROWS_INTEGER("mov", mov),
    ROWS_SHIFT("shl", B, shl_), ROWS_SHIFT("shr", S, shr_s), ROWS_SHIFT("shr", B, shr_),
    {"add.sat", TYPE_S32, NULL, 0, add_sat_s32}, {"sub.sat", TYPE_S32, NULL, 0, sub_sat_s32},
    {"mul.wide", TYPE_U16, NULL, 4, mul_wide_u16}, {"mul.wide", TYPE_S16, NULL, 4, mul_wide_s16},
    {"mul.wide", TYPE_U32, NULL, 8, mul_wide_u32}, {"mul.wide", TYPE_S32, NULL, 8, mul_wide_s32},
    {"mad.wide", TYPE_U16, "**4", 4, mad_wide_u16}, {"mad.wide", TYPE_S16, "**4", 4, mad_wide_s16},
    {"mad.wide", TYPE_U32, "**8", 8, mad_wide_u32}, {"mad.wide", TYPE_S32, "**8", 8, mad_wide_s32},
    {"mul.hi", TYPE_U16, NULL, 0, mul_hi_u16}, {"mul.hi", TYPE_S16, NULL, 0, mul_hi_s16},
    {"mul.hi", TYPE_U32, NULL, 0, mul_hi_u32}, {"mul.hi", TYPE_S32, NULL, 0, mul_hi_s32},
    {"mul.hi", TYPE_U64, NULL, 0, mul_hi_u64}, {"mul.hi", TYPE_S64, NULL, 0, mul_hi_s64},
    {"mad.hi", TYPE_U32, NULL, 0, mad_hi_u32}, {"mad.hi", TYPE_S32, NULL, 0, mad_hi_s32},
    {"mad.hi", TYPE_U64, NULL, 0, mad_hi_u64}, {"mul24.lo", TYPE_U32, NULL, 0, mul24_lo_u32},
    {"sad", TYPE_U32, NULL, 0, sad_u32}, {"sad", TYPE_S32, NULL, 0, sad_s32},
    {"shf.l.wrap", TYPE_B32, NULL, 0, shf_l_wrap}, {"shf.r.wrap", TYPE_B32, NULL, 0, shf_r_wrap},
    {"shf.l.clamp", TYPE_B32, NULL, 0, shf_l_clamp}, {"shf.r.clamp", TYPE_B32, NULL, 0, shf_r_clamp},
    {"lop3", TYPE_B32, NULL, 0, lop3}, {"prmt", TYPE_B32, NULL, 0, prmt},
    {"bfi", TYPE_B32, NULL, 0, bfi_32}, {"bfi", TYPE_B64, "**44", 0, bfi_64},
    {"bfe", TYPE_U32, NULL, 0, bfe_u32}, {"bfe", TYPE_S32, NULL, 0, bfe_s32},
    {"bfe", TYPE_U64, "*44", 0, bfe_u64}, {"bfe", TYPE_S64, "*44", 0, bfe_s64},
    {"brev", TYPE_B32, NULL, 0, brev_32}, {"brev", TYPE_B64, NULL, 0, brev_64},
    {"popc", TYPE_B32, NULL, 4, popc_32}, {"popc", TYPE_B64, NULL, 4, popc_64},
    {"clz", TYPE_B32, NULL, 4, clz_32}, {"clz", TYPE_B64, NULL, 4, clz_64},
    {"bfind", TYPE_U32, NULL, 4, bfind_u32}, {"bfind", TYPE_S32, NULL, 4, bfind_s32},
    {"bfind", TYPE_U64, NULL, 4, bfind_u64}, {"bfind", TYPE_S64, NULL, 4, bfind_s64},
    {"bfind.shiftamt", TYPE_U32, NULL, 4, bfind_shift_u32}, {"bfind.shiftamt", TYPE_U64, NULL, 4, bfind_shift_u64},
    {"dp4a", TYPE_U32, NULL, 0, dp4a_uu}, {"dp4a", TYPE_S32, NULL, 0, dp4a_ss},
    {"slct", TYPE_S32, NULL, 0, slct_s32}, {"slct", TYPE_F32, NULL, 0, slct_f32},
    ROWS_FLOAT("rcp", rcp), ROWS_FLOAT("sqrt", sqrt), ROWS_FLOAT("rsqrt", rsqrt),
    {"ex2", TYPE_F32, NULL, 0, ex2_f32}, {"lg2", TYPE_F32, NULL, 0, lg2_f32}, {"sin", TYPE_F32, NULL, 0, sin_f32},
    {"cos", TYPE_F32, NULL, 0, cos_f32}, {"tanh", TYPE_F32, NULL, 0, tanh_f32},
    ROWS_SHORT("ex2", ex2), ROWS_SHORT("tanh", tanh),
};

static Type any_type(Type type) {
    switch (type) {
    case TYPE_U8: case TYPE_S8: return TYPE_B8;
    case TYPE_U16: case TYPE_S16: case TYPE_F16: case TYPE_BF16: return TYPE_B16;
    case TYPE_U32: case TYPE_S32: case TYPE_F32: case TYPE_F16X2: case TYPE_BF16X2: return TYPE_B32;
    case TYPE_U64: case TYPE_S64: case TYPE_F64: return TYPE_B64;
    default: return type;
    }
}

const Table *operation_find(const char *name, Type type) {
    bool is_float = type >= TYPE_F16;
    for (size_t r = 0; r < sizeof(TABLE) / sizeof(TABLE[0]); r++) {
        if (strcmp(TABLE[r].name, name) != 0) continue;
        if (TABLE[r].type == type) return &TABLE[r];
        bool takes_floats = strcmp(name, "mov") == 0;
        if (TABLE[r].type == any_type(type) && (!is_float || takes_floats)) return &TABLE[r];
        if (type >= TYPE_B8 && type <= TYPE_B64 && any_type(TABLE[r].type) == type && TABLE[r].type < TYPE_F16 &&
            TABLE[r].type >= TYPE_U8 && TABLE[r].type <= TYPE_U64) {
            return &TABLE[r];  // .b32 where the table says .u32
        }
    }
    return NULL;
}
