// ptx_convert.c - conversions between types, and comparisons, of 32 lanes.
//
// A register may be wider than the type that an instruction gives it: the source's low bits count, the result is
// extended as its type says. instruction->type is the type converted to, instruction->mode the one converted from.
//
// Invariant: as PTX says: conversions to integers saturate, NaN becomes 0 (fp64 or 64 bits: the most negative number).
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "numbers.h"
#include "ptx.h"

#define EACH_LANE _Pragma("GCC ivdep") for (int l = 0; l < LANES; l++)

static bool is_signed(Type type) { return type >= TYPE_S8 && type <= TYPE_S64; }
static bool is_float(Type type) { return type >= TYPE_F16 && type != TYPE_TF32; }

static inline uint64_t register_read(const void *lanes, size_t n_bytes, int l) {
    if (n_bytes == 2) return ((const uint16_t *)lanes)[l];
    return n_bytes == 4 ? ((const uint32_t *)lanes)[l] : ((const uint64_t *)lanes)[l];
}
static inline void register_write(void *lanes, size_t n_bytes, int l, uint64_t value) {
    if (n_bytes == 2) ((uint16_t *)lanes)[l] = (uint16_t)value;
    if (n_bytes == 4) ((uint32_t *)lanes)[l] = (uint32_t)value;
    if (n_bytes == 8) ((uint64_t *)lanes)[l] = value;
}

static inline uint64_t extended(uint64_t value, Type type) {
    switch (type) {
    case TYPE_S8: return (uint64_t)(int64_t)(int8_t)value;
    case TYPE_S16: return (uint64_t)(int64_t)(int16_t)value;
    case TYPE_S32: return (uint64_t)(int64_t)(int32_t)value;
    case TYPE_U8: case TYPE_B8: return (uint8_t)value;
    case TYPE_U16: case TYPE_B16: return (uint16_t)value;
    case TYPE_U32: case TYPE_B32: return (uint32_t)value;
    default: return value;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Integers to integers

static uint64_t saturated(uint64_t value, Type from, Type to) {
    uint32_t bits = (uint32_t)type_bytes(to) * 8;
    uint64_t most = is_signed(to) ? ((uint64_t)1 << (bits - 1)) - 1
                    : bits == 64  ? ~(uint64_t)0
                                  : ((uint64_t)1 << bits) - 1;
    bool negative = is_signed(from) && (int64_t)value < 0;
    if (negative && !is_signed(to)) return 0;
    if (negative) return (int64_t)value < -(int64_t)most - 1 ? (uint64_t)(-(int64_t)most - 1) : value;
    return value > most ? most : value;
}

static void integer_any(void *d, const void *const *s, const Instruction *i) {
    Type to = (Type)i->type, from = (Type)i->mode;
    for (int l = 0; l < LANES; l++) {
        uint64_t value = extended(register_read(s[0], i->n_vector, l), from);
        if (i->is_saturated) value = saturated(value, from, to);
        register_write(d, i->d_bytes, l, extended(value, to));
    }
}

#define DIRECT(name, D, S)                                                   \
    static void name(void *result, const void *const *s, const Instruction *i) { \
        (void)i;                                                             \
        D *d = result;                                                       \
        const S *a = s[0];                                                   \
        EACH_LANE d[l] = (D)a[l];                                            \
    }
DIRECT(u64_u32, uint64_t, uint32_t)
DIRECT(s64_s32, int64_t, int32_t)
DIRECT(u32_u64, uint32_t, uint64_t)
DIRECT(u32_u16, uint32_t, uint16_t)
DIRECT(s32_s16, int32_t, int16_t)
DIRECT(u16_u32, uint16_t, uint32_t)
DIRECT(u64_u16, uint64_t, uint16_t)

// ---------------------------------------------------------------------------------------------------------------
// Floats

// The value of a float register as double; exact.
static inline double float_read(const void *lanes, Type type, int l) {
    switch (type) {
    case TYPE_F16: return f16_float(((const uint16_t *)lanes)[l]);
    case TYPE_BF16: return bf16_float(((const uint16_t *)lanes)[l]);
    case TYPE_F32: return ((const float *)lanes)[l];
    default: return ((const double *)lanes)[l];
    }
}

static inline uint16_t short_rounded(float x, Type type, char rounding) {
    if (type == TYPE_BF16) return rounding == 'z' ? float_bf16_to_zero(x) : float_bf16(x);
    return rounding == 'z' ? float_f16_to_zero(x) : float_f16(x);
}

static double to_integral(double x, char rounding) {
    switch (rounding) {
    case 'z': return trunc(x);
    case 'm': return floor(x);
    case 'p': return ceil(x);
    default: return rint(x);
    }
}

static uint64_t float_integer(double x, Type to, bool wide, char rounding) {
    uint32_t bits = (uint32_t)type_bytes(to) * 8;
    if (x != x) return wide ? (uint64_t)1 << (bits - 1) : 0;
    double whole = to_integral(x, rounding), limit = ldexp(1, (int)bits - is_signed(to));
    if (is_signed(to)) {
        if (whole < -limit) return (uint64_t)1 << (bits - 1);
        return whole >= limit ? ((uint64_t)1 << (bits - 1)) - 1 : (uint64_t)(int64_t)whole;
    }
    if (whole <= 0) return 0;
    return whole >= limit ? (bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1) : (uint64_t)whole;
}

static void float_to_integer(void *d, const void *const *s, const Instruction *i) {
    Type to = (Type)i->type, from = (Type)i->mode;
    bool wide = from == TYPE_F64 || type_bytes(to) == 8;
    for (int l = 0; l < LANES; l++) {
        uint64_t value = float_integer(float_read(s[0], from, l), to, wide, (char)i->rounding);
        register_write(d, i->d_bytes, l, extended(value, to));
    }
}

static void integer_to_float(void *d, const void *const *s, const Instruction *i) {
    Type to = (Type)i->type, from = (Type)i->mode;
    for (int l = 0; l < LANES; l++) {
        uint64_t value = extended(register_read(s[0], i->n_vector, l), from);
        bool negative = is_signed(from);
        if (to == TYPE_F64) {
            ((double *)d)[l] = negative ? (double)(int64_t)value : (double)value;
        } else if (to == TYPE_F32) {
            ((float *)d)[l] = negative ? (float)(int64_t)value : (float)value;
        } else {
            double x = negative ? (double)(int64_t)value : (double)value;
            ((uint16_t *)d)[l] = short_rounded(double_float_to_odd(x), to, (char)i->rounding);
        }
    }
}
DIRECT(f32_s32, float, int32_t)
DIRECT(f64_s32, double, int32_t)
DIRECT(f64_u32, double, uint32_t)

static void float_to_float(void *d, const void *const *s, const Instruction *i) {
    Type to = (Type)i->type, from = (Type)i->mode;
    for (int l = 0; l < LANES; l++) {
        double x = float_read(s[0], from, l);
        if (i->flag) x = to_integral(x, (char)i->rounding);
        if (to == TYPE_F64) {
            ((double *)d)[l] = x;
        } else if (to == TYPE_F32) {
            ((float *)d)[l] = (float)x;
        } else {
            ((uint16_t *)d)[l] = short_rounded(double_float_to_odd(x), to, i->flag ? 'n' : (char)i->rounding);
        }
    }
}
DIRECT(f64_f32, double, float)
DIRECT(f32_f64, float, double)

static void f32_f16(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    const uint16_t *a = s[0];
    EACH_LANE((float *)result)[l] = f16_float(a[l]);
}
static void f32_bf16(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    const uint16_t *a = s[0];
    uint32_t *d = result;
    EACH_LANE d[l] = (uint32_t)a[l] << 16;
}
static void bf16_f32(void *result, const void *const *s, const Instruction *i) {
    uint16_t *d = result;
    const float *a = s[0];
    if (i->rounding == 'z') {
        EACH_LANE d[l] = float_bf16_to_zero(a[l]);
    } else {
        EACH_LANE d[l] = float_bf16(a[l]);
    }
}
static void f16_f32(void *result, const void *const *s, const Instruction *i) {
    uint16_t *d = result;
    const float *a = s[0];
    for (int l = 0; l < LANES; l++) d[l] = short_rounded(a[l], TYPE_F16, (char)i->rounding);
}

// Two fp32 to a pair: the first source is the upper half.
static void pair_f32(void *result, const void *const *s, const Instruction *i) {
    Type type = i->type == TYPE_BF16X2 ? TYPE_BF16 : TYPE_F16;
    uint32_t *d = result;
    const float *high = s[0], *low = s[1];
    for (int l = 0; l < LANES; l++) {
        uint32_t upper = short_rounded(high[l], type, (char)i->rounding);
        uint32_t lower = short_rounded(low[l], type, (char)i->rounding);
        d[l] = upper << 16 | lower;
    }
}

// cvt.rna.tf32.f32: 10 bits of fraction, ties away from zero.
static void tf32_f32(void *result, const void *const *s, const Instruction *i) {
    (void)i;
    uint32_t *d = result;
    const uint32_t *a = s[0];
    EACH_LANE d[l] = (a[l] & 0x7fffffffu) >= 0x7f800000u ? a[l] : (a[l] + 0x1000u) & 0xffffe000u;
}

static LanesFunction *integer_conversion(Type to, size_t to_bytes, Type from, size_t from_bytes) {
    size_t n = type_bytes(from), m = type_bytes(to);
    if (n == from_bytes && m == to_bytes) {
        if (m == 8 && n == 4) return is_signed(from) ? s64_s32 : u64_u32;
        if (m == 4 && n == 8) return u32_u64;
        if (m == 4 && n == 2) return is_signed(from) ? s32_s16 : u32_u16;
        if (m == 2 && n == 4) return u16_u32;
        if (m == 8 && n == 2 && !is_signed(from)) return u64_u16;
    }
    return integer_any;
}

LanesFunction *conversion_find(Type to, size_t to_bytes, Type from, size_t from_bytes) {
    if (to == TYPE_TF32) return from == TYPE_F32 ? tf32_f32 : NULL;
    if (to == TYPE_BF16X2 || to == TYPE_F16X2) return from == TYPE_F32 ? pair_f32 : NULL;
    if (!is_float(to) && !is_float(from)) return integer_conversion(to, to_bytes, from, from_bytes);
    if (!is_float(to)) return float_to_integer;
    if (to_bytes != type_bytes(to)) return NULL;
    if (!is_float(from)) {
        if (from_bytes == 4 && from == TYPE_S32 && to == TYPE_F32) return f32_s32;
        if (from_bytes == 4 && from == TYPE_S32 && to == TYPE_F64) return f64_s32;
        if (from_bytes == 4 && from == TYPE_U32 && to == TYPE_F64) return f64_u32;
        return integer_to_float;
    }
    if (from_bytes != type_bytes(from)) return NULL;
    if (to == TYPE_F32 && from == TYPE_F16) return f32_f16;
    if (to == TYPE_F32 && from == TYPE_BF16) return f32_bf16;
    if (to == TYPE_BF16 && from == TYPE_F32) return bf16_f32;
    if (to == TYPE_F16 && from == TYPE_F32) return f16_f32;
    if (to == TYPE_F64 && from == TYPE_F32) return f64_f32;
    if (to == TYPE_F32 && from == TYPE_F64) return f32_f64;
    return float_to_float;
}

// ---------------------------------------------------------------------------------------------------------------
// Comparisons

// One bit of each lane's word, which is 0 or -1.
static uint32_t mask_of_words(const int32_t *words) {
#ifdef __AVX2__
    uint32_t mask = 0;
    for (int q = 0; q < 4; q++) {
        __m256 part = _mm256_loadu_ps((const float *)(const void *)(words + 8 * q));
        mask |= (uint32_t)_mm256_movemask_ps(part) << 8 * q;
    }
    return mask;
#else
    uint32_t mask = 0;
    for (int l = 0; l < LANES; l++) mask |= (uint32_t)(words[l] & 1) << l;
    return mask;
#endif
}

#define COMPARE(name, S, expression)                            \
    static uint32_t name(const void *sa, const void *sb) {      \
        const S *a = sa, *b = sb;                               \
        int32_t words[LANES];                                   \
        EACH_LANE words[l] = -(int32_t)(expression);            \
        return mask_of_words(words);                            \
    }
#define COMPARES(suffix, S)                 \
    COMPARE(eq_##suffix, S, a[l] == b[l])   \
    COMPARE(ne_##suffix, S, a[l] != b[l])   \
    COMPARE(lt_##suffix, S, a[l] < b[l])    \
    COMPARE(le_##suffix, S, a[l] <= b[l])   \
    COMPARE(gt_##suffix, S, a[l] > b[l])    \
    COMPARE(ge_##suffix, S, a[l] >= b[l])
// Ordered comparisons are false for NaN, those with a u are true.
#define FLOAT_COMPARES(suffix, S, A, B)                                \
    COMPARE(eq_##suffix, S, A == B)                                    \
    COMPARE(ne_##suffix, S, A < B || A > B)                            \
    COMPARE(lt_##suffix, S, A < B)                                     \
    COMPARE(le_##suffix, S, A <= B)                                    \
    COMPARE(gt_##suffix, S, A > B)                                     \
    COMPARE(ge_##suffix, S, A >= B)                                    \
    COMPARE(equ_##suffix, S, !(A < B || A > B))                        \
    COMPARE(neu_##suffix, S, A != B)                                   \
    COMPARE(ltu_##suffix, S, !(A >= B))                                \
    COMPARE(leu_##suffix, S, !(A > B))                                 \
    COMPARE(gtu_##suffix, S, !(A <= B))                                \
    COMPARE(geu_##suffix, S, !(A < B))                                 \
    COMPARE(num_##suffix, S, A == A && B == B)                         \
    COMPARE(nan_##suffix, S, A != A || B != B)
COMPARES(s16, int16_t)
COMPARES(u16, uint16_t)
COMPARES(s32, int32_t)
COMPARES(u32, uint32_t)
COMPARES(s64, int64_t)
COMPARES(u64, uint64_t)
FLOAT_COMPARES(f32, float, a[l], b[l])
FLOAT_COMPARES(f64, double, a[l], b[l])
FLOAT_COMPARES(f16, uint16_t, f16_float(a[l]), f16_float(b[l]))
FLOAT_COMPARES(bf16, uint16_t, bf16_float(a[l]), bf16_float(b[l]))

#define ROWS(T, suffix)                                                                                            \
    {"eq", T, eq_##suffix}, {"ne", T, ne_##suffix}, {"lt", T, lt_##suffix}, {"le", T, le_##suffix},                \
        {"gt", T, gt_##suffix}, {"ge", T, ge_##suffix}
#define FLOAT_ROWS(T, suffix)                                                                                      \
    ROWS(T, suffix), {"equ", T, equ_##suffix}, {"neu", T, neu_##suffix}, {"ltu", T, ltu_##suffix},                 \
        {"leu", T, leu_##suffix}, {"gtu", T, gtu_##suffix}, {"geu", T, geu_##suffix}, {"num", T, num_##suffix},    \
        {"nan", T, nan_##suffix}
#define UNSIGNED_ROWS(T, suffix)                                                                                   \
    ROWS(T, suffix), {"lo", T, lt_##suffix}, {"ls", T, le_##suffix}, {"hi", T, gt_##suffix}, {"hs", T, ge_##suffix}

static const struct {
    const char *name;
    Type type;
    CompareFunction *compare;
} COMPARISONS[] = {
    ROWS(TYPE_S16, s16), UNSIGNED_ROWS(TYPE_U16, u16), ROWS(TYPE_S32, s32), UNSIGNED_ROWS(TYPE_U32, u32),
    ROWS(TYPE_S64, s64), UNSIGNED_ROWS(TYPE_U64, u64), FLOAT_ROWS(TYPE_F32, f32), FLOAT_ROWS(TYPE_F64, f64),
    FLOAT_ROWS(TYPE_F16, f16), FLOAT_ROWS(TYPE_BF16, bf16),
};

// Both halves of each lane; a half becomes the instruction's constant where the comparison holds.
void set_pair(void *result, const void *const *s, const Instruction *i) {
    uint16_t halves[2][2][LANES];
    uint32_t *d = result;
    for (int j = 0; j < 2; j++) {
        const uint32_t *lanes = s[j];
        EACH_LANE halves[j][0][l] = (uint16_t)lanes[l];
        EACH_LANE halves[j][1][l] = (uint16_t)(lanes[l] >> 16);
    }
    uint32_t low = i->pair_compare(halves[0][0], halves[1][0]), high = i->pair_compare(halves[0][1], halves[1][1]);
    uint32_t one = (uint32_t)i->immediate;
    EACH_LANE d[l] = (low >> l & 1 ? one : 0) | (high >> l & 1 ? one << 16 : 0);
}

CompareFunction *comparison_find(const char *name, Type type) {
    if (type == TYPE_B16) type = TYPE_U16;
    if (type == TYPE_B32) type = TYPE_U32;
    if (type == TYPE_B64) type = TYPE_U64;
    for (size_t r = 0; r < sizeof(COMPARISONS) / sizeof(COMPARISONS[0]); r++) {
        if (COMPARISONS[r].type == type && strcmp(COMPARISONS[r].name, name) == 0) return COMPARISONS[r].compare;
    }
    return NULL;
}
