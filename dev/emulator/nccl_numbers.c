// nccl_numbers.c - reductions of NCCL's number types, rank by rank.
//
// Invariant: every sum is rounded to its type, once; NCCL's own order of ranks depends on its algorithm.
#include <nccl.h>

#include "nccl_ranks.h"
#include "numbers.h"

static const struct {
    const char *name;
    size_t n_bytes;
} TYPES[] = {
    [ncclInt8] = {"ncclInt8", 1},        [ncclUint8] = {"ncclUint8", 1},     [ncclInt32] = {"ncclInt32", 4},
    [ncclUint32] = {"ncclUint32", 4},    [ncclInt64] = {"ncclInt64", 8},     [ncclUint64] = {"ncclUint64", 8},
    [ncclFloat16] = {"ncclFloat16", 2},  [ncclFloat32] = {"ncclFloat32", 4}, [ncclFloat64] = {"ncclFloat64", 8},
    [ncclBfloat16] = {"ncclBfloat16", 2}};

size_t number_bytes(int type) {
    return type >= 0 && (size_t)type < sizeof(TYPES) / sizeof(TYPES[0]) ? TYPES[type].n_bytes : 0;
}

const char *number_name(int type) { return number_bytes(type) > 0 ? TYPES[type].name : "no emulated type"; }

const char *reduction_name(int reduction) {
    static const char *const NAMES[] = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};
    return reduction >= 0 && reduction < ncclNumOps ? NAMES[reduction] : NULL;
}

static bool is_float(int type) {
    return type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16;
}

// A double holds the sum and the product of two floats well enough to round them correctly.
static double float_get(int type, const void *x, size_t i) {
    switch (type) {
    case ncclFloat16: return f16_float(((const uint16_t *)x)[i]);
    case ncclBfloat16: return bf16_float(((const uint16_t *)x)[i]);
    case ncclFloat32: return ((const float *)x)[i];
    default: return ((const double *)x)[i];
    }
}

static void float_set(int type, void *x, size_t i, double value) {
    switch (type) {
    case ncclFloat16: ((uint16_t *)x)[i] = float_f16(double_float_to_odd(value)); break;
    case ncclBfloat16: ((uint16_t *)x)[i] = float_bf16(double_float_to_odd(value)); break;
    case ncclFloat32: ((float *)x)[i] = (float)value; break;
    default: ((double *)x)[i] = value;
    }
}

static uint64_t integer_get(int type, const void *x, size_t i) {
    switch (type) {
    case ncclInt8: return (uint64_t)((const int8_t *)x)[i];
    case ncclUint8: return ((const uint8_t *)x)[i];
    case ncclInt32: return (uint64_t)((const int32_t *)x)[i];
    case ncclUint32: return ((const uint32_t *)x)[i];
    default: return ((const uint64_t *)x)[i];
    }
}

static void integer_set(int type, void *x, size_t i, uint64_t value) {
    switch (TYPES[type].n_bytes) {
    case 1: ((uint8_t *)x)[i] = (uint8_t)value; break;
    case 4: ((uint32_t *)x)[i] = (uint32_t)value; break;
    default: ((uint64_t *)x)[i] = value;
    }
}

static double float_reduced(int reduction, double a, double b) {
    switch (reduction) {
    case ncclProd: return a * b;
    case ncclMax: return a != a || a > b ? a : b;
    case ncclMin: return a != a || a < b ? a : b;
    default: return a + b;
    }
}

static uint64_t integer_reduced(int type, int reduction, uint64_t a, uint64_t b) {
    bool is_less = type == ncclUint64 ? a < b : (int64_t)a < (int64_t)b;
    switch (reduction) {
    case ncclProd: return a * b;
    case ncclMax: return is_less ? b : a;
    case ncclMin: return is_less ? a : b;
    default: return a + b;
    }
}

void numbers_reduce(int type, int reduction, void *sum, const void *x, size_t n) {
    for (size_t i = 0; i < n && is_float(type); i++) {
        float_set(type, sum, i, float_reduced(reduction, float_get(type, sum, i), float_get(type, x, i)));
    }
    for (size_t i = 0; i < n && !is_float(type); i++) {
        integer_set(type, sum, i, integer_reduced(type, reduction, integer_get(type, sum, i), integer_get(type, x, i)));
    }
}

void numbers_scale(int type, void *x, size_t n, int n_ranks, bool is_sum) {
    for (size_t i = 0; i < n && is_float(type) && !is_sum; i++) {
        float_set(type, x, i, float_get(type, x, i) * (1.0 / n_ranks));
    }
    for (size_t i = 0; i < n && !is_float(type) && is_sum; i++) {
        uint64_t value = integer_get(type, x, i), by = (uint64_t)n_ranks;
        bool is_signed = type == ncclInt8 || type == ncclInt32 || type == ncclInt64;
        integer_set(type, x, i, is_signed ? (uint64_t)((int64_t)value / n_ranks) : value / by);
    }
}
