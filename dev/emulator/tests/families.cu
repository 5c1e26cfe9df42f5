// families.cu - the instructions of each family against the same computed by the host.
//
// OPERATION() makes an inline instruction and the host's expression for it; compare() runs both on values that are
// likely to be wrong (ends of ranges, zeros, infinities, NaN) and on random bits, and wants the same bits (any NaN for
// a NaN). The other families are small kernels.
//
// Invariant: what the host computes is written from the PTX documentation, not from the emulator.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cfenv>
#include <unistd.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "emulator.h"
#include "plants.h"

#define CHECK(call)                                                                      \
    do {                                                                                 \
        if ((call) != 0) fprintf(stderr, "%s failed\n", #call), exit(3);                 \
    } while (0)
#define EXPECT(holds, ...)                                                                                     \
    do {                                                                                                       \
        if (!(holds))                                                                                          \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), \
                exit(2);                                                                                       \
    } while (0)

static uint64_t random_bits() {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull;
}

template <class T>
static T *upload(const T *host, size_t n) {
    T *device;
    CHECK(cudaMalloc(&device, n * sizeof(T)));
    CHECK(cudaMemcpy(device, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}
template <class T>
static T *room(size_t n) {
    T *device;
    CHECK(cudaMalloc(&device, n * sizeof(T)));
    return device;
}
template <class T>
static void download(T *host, const T *device, size_t n) {
    CHECK(cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost));
}

// ---------------------------------------------------------------------------------------------------------------
// Single instructions. Values are carried as bits: u16, u32 or u64.

#define R16 "h"
#define R32 "r"
#define R64 "l"

// name, bits of the result and of the sources, instruction with %0 … %3, host expression of a b c
#define OPERATION(name, D, S, text, expression)                                                      \
    struct name {                                                                                    \
        typedef uint##D##_t Result;                                                                  \
        typedef uint##S##_t Source;                                                                  \
        __device__ static Result device(Source a, Source b, Source c) {                              \
            Result d;                                                                                \
            asm volatile(text : "=" R##D(d) : R##S(a), R##S(b), R##S(c));                            \
            return d;                                                                                \
        }                                                                                            \
        static Result host(Source a, Source b, Source c) {                                           \
            (void)a, (void)b, (void)c;                                                               \
            return (Result)(expression);                                                             \
        }                                                                                            \
    };

template <class O>
__global__ void apply(typename O::Result *d, const typename O::Source *a, const typename O::Source *b,
                      const typename O::Source *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) d[i] = O::device(a[i], b[i], c[i]);
}

static const uint64_t SPECIAL[] = {
    0, 1, 2, 31, 32, 33, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x3f80, 0x3c00, 0x7f80, 0xff80, 0x7c00, 0xfc00,
    0x7fc0, 0x0001, 0x8001, 0x7f800000, 0xff800000, 0x7fc00000, 0x3f800000, 0xbf800000, 0x00000001, 0x80000001,
    0x00800000, 0x7f7fffff, 0x80000000, 0x7fffffff, 0xffffffff, 0x4f000000, 0xcf000000, 0x3f000000, 0x3fc00000,
    0x40200000, 0x477fe000, 0x477ff000, 0x33000000, 0x387fc000, 0x7ff0000000000000, 0x7ff8000000000000,
    0x3ff0000000000000, 0x8000000000000000, 0x7fffffffffffffff, 0xffffffffffffffff, 0x0000000100000000,
    0x41e0000000000000, 0x3810000000000000};
enum { N_SPECIAL = sizeof(SPECIAL) / sizeof(SPECIAL[0]), N_CASES = N_SPECIAL * N_SPECIAL + 4096 };

// What to compare as: bits, or a float type whose NaNs are all alike.
typedef enum { BITS, AS_F16, AS_BF16, AS_F32, AS_F64, AS_F16X2, AS_BF16X2 } As;

static uint64_t canonical(uint64_t x, As as) {
    switch (as) {
    case AS_F16: return (x & 0x7fff) > 0x7c00 ? 0x7fff : x;
    case AS_BF16: return (x & 0x7fff) > 0x7f80 ? 0x7fff : x;
    case AS_F32: return (x & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : x;
    case AS_F64: return (x & ~(1ull << 63)) > 0x7ff0000000000000 ? ~0ull : x;
    case AS_F16X2: return canonical(x >> 16, AS_F16) << 16 | canonical(x & 0xffff, AS_F16);
    case AS_BF16X2: return canonical(x >> 16, AS_BF16) << 16 | canonical(x & 0xffff, AS_BF16);
    default: return x;
    }
}

template <class O>
static void compare(const char *name, As as) {
    typedef typename O::Source S;
    typedef typename O::Result D;
    static S a[N_CASES], b[N_CASES], c[N_CASES];
    static D d[N_CASES];
    for (int i = 0; i < N_CASES; i++) {
        bool is_special = i < N_SPECIAL * N_SPECIAL;
        a[i] = (S)(is_special ? SPECIAL[i % N_SPECIAL] : random_bits());
        b[i] = (S)(is_special ? SPECIAL[i / N_SPECIAL] : random_bits());
        c[i] = (S)(is_special ? SPECIAL[(i * 7) % N_SPECIAL] : random_bits());
        if (sizeof(S) == 8 && i % 3 == 0) a[i] = (S)((uint64_t)a[i] >> 40), b[i] = (S)((uint64_t)b[i] >> 44);
    }
    S *da = upload(a, N_CASES), *db = upload(b, N_CASES), *dc = upload(c, N_CASES);
    D *dd = room<D>(N_CASES);
    apply<O><<<(N_CASES + 127) / 128, 128>>>(dd, da, db, dc, N_CASES);
    download(d, dd, N_CASES);
    void *all[] = {da, db, dc, dd};
    for (void *pointer : all) CHECK(cudaFree(pointer));
    for (int i = 0; i < N_CASES; i++) {
        D want = O::host(a[i], b[i], c[i]);
        EXPECT(canonical(d[i], as) == canonical(want, as), "%s(0x%llx, 0x%llx, 0x%llx) = 0x%llx, not 0x%llx", name,
               (unsigned long long)a[i], (unsigned long long)b[i], (unsigned long long)c[i], (unsigned long long)want,
               (unsigned long long)d[i]);
    }
}
#define COMPARE(name, as) compare<name>(#name, as)

static float f32(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
static uint32_t b32(float f) { uint32_t x; memcpy(&x, &f, 4); return x; }
static double f64(uint64_t x) { double f; memcpy(&f, &x, 8); return f; }
static uint64_t b64(double f) { uint64_t x; memcpy(&x, &f, 8); return x; }
typedef __int128 Wide;
typedef unsigned __int128 UWide;

// --- integers
OPERATION(add_u32, 32, 32, "add.u32 %0, %1, %2;", a + b)
OPERATION(add_sat_s32, 32, 32, "add.sat.s32 %0, %1, %2;",
          ((int64_t)(int32_t)a + (int32_t)b > INT32_MAX ? INT32_MAX : (int64_t)(int32_t)a + (int32_t)b < INT32_MIN
          ? INT32_MIN : (int32_t)a + (int64_t)(int32_t)b))
OPERATION(sub_u64, 64, 64, "sub.u64 %0, %1, %2;", a - b)
OPERATION(mul_lo_s32, 32, 32, "mul.lo.s32 %0, %1, %2;", a *b)
OPERATION(mul_lo_u64, 64, 64, "mul.lo.u64 %0, %1, %2;", a *b)
OPERATION(mul_lo_u16, 16, 16, "mul.lo.u16 %0, %1, %2;", (uint32_t)a * b)
OPERATION(mul_hi_u32, 32, 32, "mul.hi.u32 %0, %1, %2;", (uint64_t)a * b >> 32)
OPERATION(mul_hi_s32, 32, 32, "mul.hi.s32 %0, %1, %2;", (int64_t)(int32_t)a * (int32_t)b >> 32)
OPERATION(mul_hi_u64, 64, 64, "mul.hi.u64 %0, %1, %2;", (UWide)a * b >> 64)
OPERATION(mul_hi_s64, 64, 64, "mul.hi.s64 %0, %1, %2;", (Wide)(int64_t)a * (int64_t)b >> 64)
OPERATION(mul_wide_u32, 64, 32, "mul.wide.u32 %0, %1, %2;", (uint64_t)a * b)
OPERATION(mul_wide_s32, 64, 32, "mul.wide.s32 %0, %1, %2;", (int64_t)(int32_t)a * (int32_t)b)
OPERATION(mul_wide_s16, 32, 16, "mul.wide.s16 %0, %1, %2;", (int32_t)(int16_t)a * (int16_t)b)
OPERATION(mad_lo_s32, 32, 32, "mad.lo.s32 %0, %1, %2, %3;", a *b + c)
OPERATION(mad_hi_u32, 32, 32, "mad.hi.u32 %0, %1, %2, %3;", ((uint64_t)a * b >> 32) + c)
OPERATION(div_u32, 32, 32, "div.u32 %0, %1, %2;", b ? a / b : 0xffffffff)
OPERATION(div_s32, 32, 32, "{.reg .s32 x; or.b32 x, %2, 2; div.s32 %0, %1, x;}",
          (int32_t)(b | 2) == -1 ? 0 - a : (int32_t)a / (int32_t)(b | 2))
OPERATION(rem_s64, 64, 64, "{.reg .b64 x; or.b64 x, %2, 2; rem.s64 %0, %1, x;}",
          (int64_t)(b | 2) == -1 ? 0 : (int64_t)a % (int64_t)(b | 2))
OPERATION(rem_u32, 32, 32, "rem.u32 %0, %1, %2;", b ? a % b : a)
OPERATION(min_s32, 32, 32, "min.s32 %0, %1, %2;", (int32_t)a < (int32_t)b ? a : b)
OPERATION(max_u64, 64, 64, "max.u64 %0, %1, %2;", a > b ? a : b)
OPERATION(abs_s32, 32, 32, "abs.s32 %0, %1;", (int32_t)a < 0 ? 0 - a : a)
OPERATION(neg_s64, 64, 64, "neg.s64 %0, %1;", 0 - a)
OPERATION(sad_u32, 32, 32, "sad.u32 %0, %1, %2, %3;", c + (a < b ? b - a : a - b))
OPERATION(and_b16, 16, 16, "and.b16 %0, %1, %2;", a &b)
OPERATION(not_b64, 64, 64, "not.b64 %0, %1;", ~a)
OPERATION(shl_b32, 32, 32, "shl.b32 %0, %1, %2;", b > 31 ? 0 : a << b)
OPERATION(shr_u32, 32, 32, "shr.u32 %0, %1, %2;", b > 31 ? 0 : a >> b)
OPERATION(shr_s32, 32, 32, "shr.s32 %0, %1, %2;", (int32_t)a >> (b > 31 ? 31 : b))
OPERATION(shr_s64, 64, 64, "{.reg .u32 n; cvt.u32.u64 n, %2; shr.s64 %0, %1, n;}",
          (int64_t)a >> ((uint32_t)b > 63 ? 63 : (uint32_t)b))
OPERATION(shf_l_wrap, 32, 32, "shf.l.wrap.b32 %0, %1, %2, %3;", ((uint64_t)b << 32 | a) << (c & 31) >> 32)
OPERATION(shf_r_clamp, 32, 32, "shf.r.clamp.b32 %0, %1, %2, %3;", ((uint64_t)b << 32 | a) >> (c > 32 ? 32 : c))
OPERATION(bfe_u32, 32, 32, "bfe.u32 %0, %1, %2, 11;", (b & 255) > 31 ? 0 : a >> (b & 255) & 0x7ff)
OPERATION(bfe_s32, 32, 32, "bfe.s32 %0, %1, 5, 9;", (int32_t)(a << 18) >> 23)
OPERATION(bfi_b32, 32, 32, "bfi.b32 %0, %1, %2, 7, 12;", (b & ~(0xfffu << 7)) | (a & 0xfff) << 7)
OPERATION(bfi_b64, 64, 64, "bfi.b64 %0, %1, %2, 30, 20;", (b & ~(0xfffffull << 30)) | (a & 0xfffff) << 30)
OPERATION(lop3_b32, 32, 32, "lop3.b32 %0, %1, %2, %3, 0x96;", a ^ b ^ c)
OPERATION(lop3_mix, 32, 32, "lop3.b32 %0, %1, %2, %3, 0xca;", (a & b) | (~a & c))
OPERATION(prmt_b32, 32, 32, "prmt.b32 %0, %1, %2, 0x9150;",
          (a & 255) | (b >> 8 & 255) << 8 | (a >> 8 & 255) << 16 | (a >> 8 & 128 ? 255u : 0u) << 24)
OPERATION(popc_b32, 32, 32, "popc.b32 %0, %1;", __builtin_popcount(a))
OPERATION(popc_b64, 32, 64, "popc.b64 %0, %1;", __builtin_popcountll(a))
OPERATION(clz_b32, 32, 32, "clz.b32 %0, %1;", a ? __builtin_clz(a) : 32)
OPERATION(clz_b64, 32, 64, "clz.b64 %0, %1;", a ? __builtin_clzll(a) : 64)
OPERATION(bfind_u32, 32, 32, "bfind.u32 %0, %1;", a ? 31 - __builtin_clz(a) : -1)
static uint32_t reversed(uint32_t x) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
OPERATION(brev_b32, 32, 32, "brev.b32 %0, %1;", reversed(a))
static uint32_t dot(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 4; i++) c += (uint32_t)((int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i));
    return c;
}
OPERATION(dp4a_s32, 32, 32, "dp4a.s32.s32 %0, %1, %2, %3;", dot(a, b, c))
OPERATION(carry, 64, 64, "{.reg .u32 l, h, p, q, x, y; mov.b64 {l, h}, %1; mov.b64 {p, q}, %2; add.cc.u32 x, l, p; "
          "addc.u32 y, h, q; mov.b64 %0, {x, y};}", a + b)
OPERATION(borrow, 64, 64, "{.reg .u32 l, h, p, q, x, y; mov.b64 {l, h}, %1; mov.b64 {p, q}, %2; sub.cc.u32 x, l, p; "
          "subc.u32 y, h, q; mov.b64 %0, {x, y};}", a - b)
OPERATION(mad_carry, 64, 64,
          "{.reg .u32 l, h, p, q, x, y; mov.b64 {l, h}, %1; mov.b64 {p, q}, %2; mov.b64 {x, y}, %3; "
          "mad.lo.cc.u32 x, l, p, x; madc.hi.u32 y, l, p, y; mad.lo.u32 y, l, q, y; mad.lo.u32 y, h, p, y; mov.b64 %0, "
          "{x, y};}",
          a *b + c)
OPERATION(slct_b32, 32, 32, "slct.b32.s32 %0, %1, %2, %3;", (int32_t)c >= 0 ? a : b)
OPERATION(setp_join, 32, 32, "{.reg .pred p, q, r; setp.lt.s32 r, %3, 0; setp.gt.and.u32 p|q, %1, %2, !r; "
          "selp.b32 %0, 1, 0, p; @q add.u32 %0, %0, 2;}", (int32_t)c < 0 ? 0 : a > b ? 1 : 2)
OPERATION(set_u32, 32, 32, "set.le.u32.u32 %0, %1, %2;", a <= b ? 0xffffffff : 0)

static void integers() {
    COMPARE(add_u32, BITS), COMPARE(add_sat_s32, BITS), COMPARE(sub_u64, BITS), COMPARE(mul_lo_s32, BITS);
    COMPARE(mul_lo_u64, BITS), COMPARE(mul_lo_u16, BITS), COMPARE(mul_hi_u32, BITS), COMPARE(mul_hi_s32, BITS);
    COMPARE(mul_hi_u64, BITS), COMPARE(mul_hi_s64, BITS), COMPARE(mul_wide_u32, BITS), COMPARE(mul_wide_s32, BITS);
    COMPARE(mul_wide_s16, BITS), COMPARE(mad_lo_s32, BITS), COMPARE(mad_hi_u32, BITS), COMPARE(div_u32, BITS);
    COMPARE(div_s32, BITS), COMPARE(rem_s64, BITS), COMPARE(rem_u32, BITS), COMPARE(min_s32, BITS),
        COMPARE(max_u64, BITS);
    COMPARE(abs_s32, BITS), COMPARE(neg_s64, BITS), COMPARE(sad_u32, BITS), COMPARE(dp4a_s32, BITS),
        COMPARE(carry, BITS);
    COMPARE(borrow, BITS), COMPARE(mad_carry, BITS);
}

static void bits() {
    COMPARE(and_b16, BITS), COMPARE(not_b64, BITS), COMPARE(shl_b32, BITS), COMPARE(shr_u32, BITS),
        COMPARE(shr_s32, BITS);
    COMPARE(shr_s64, BITS), COMPARE(shf_l_wrap, BITS), COMPARE(shf_r_clamp, BITS), COMPARE(bfe_u32, BITS);
    COMPARE(bfe_s32, BITS), COMPARE(bfi_b32, BITS), COMPARE(bfi_b64, BITS), COMPARE(lop3_b32, BITS),
        COMPARE(lop3_mix, BITS);
    COMPARE(prmt_b32, BITS), COMPARE(popc_b32, BITS), COMPARE(popc_b64, BITS), COMPARE(clz_b32, BITS),
        COMPARE(clz_b64, BITS);
    COMPARE(bfind_u32, BITS), COMPARE(brev_b32, BITS), COMPARE(slct_b32, BITS), COMPARE(setp_join, BITS),
        COMPARE(set_u32, BITS);
}

// --- floats
template <class F>
static auto rounded(int mode, F f) {
    fesetround(mode);
    auto x = f();
    fesetround(FE_TONEAREST);
    return x;
}
static float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
static float saturated(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static volatile float vf;
OPERATION(add_f32, 32, 32, "add.rn.f32 %0, %1, %2;", b32(f32(a) + f32(b)))
OPERATION(add_rz, 32, 32, "add.rz.f32 %0, %1, %2;", b32(rounded(FE_TOWARDZERO, [=] {
              volatile float x = f32(a), y = f32(b);
              vf = x + y;
              return (float)vf;
          })))
OPERATION(mul_rm, 32, 32, "mul.rm.f32 %0, %1, %2;", b32(rounded(FE_DOWNWARD, [=] {
              volatile float x = f32(a), y = f32(b);
              vf = x * y;
              return (float)vf;
          })))
OPERATION(fma_rp, 32, 32, "fma.rp.f32 %0, %1, %2, %3;", b32(rounded(FE_UPWARD, [=] {
              volatile float x = f32(a), y = f32(b), z = f32(c);
              vf = std::fma(x, y, z);
              return (float)vf;
          })))
OPERATION(fma_f32, 32, 32, "fma.rn.f32 %0, %1, %2, %3;", b32(std::fma(f32(a), f32(b), f32(c))))
OPERATION(mul_ftz, 32, 32, "mul.ftz.f32 %0, %1, %2;", b32(flushed(flushed(f32(a)) * flushed(f32(b)))))
OPERATION(add_sat, 32, 32, "add.sat.f32 %0, %1, %2;", b32(saturated(f32(a) + f32(b))))
OPERATION(div_f32, 32, 32, "div.rn.f32 %0, %1, %2;", b32(f32(a) / f32(b)))
OPERATION(sqrt_f32, 32, 32, "sqrt.rn.f32 %0, %1;", b32(std::sqrt(f32(a))))
OPERATION(rcp_f32, 32, 32, "rcp.rn.f32 %0, %1;", b32(1 / f32(a)))
static float least(float a, float b) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}
OPERATION(min_f32, 32, 32, "min.f32 %0, %1, %2;", b32(least(f32(a), f32(b))))
OPERATION(max_f32, 32, 32, "max.f32 %0, %1, %2;", b32(-least(-f32(a), -f32(b))))
OPERATION(min_nan, 32, 32, "min.NaN.f32 %0, %1, %2;",
          f32(a) != f32(a) || f32(b) != f32(b) ? 0x7fffffff : b32(least(f32(a), f32(b))))
OPERATION(neg_f32, 32, 32, "neg.f32 %0, %1;", a ^ 0x80000000)
OPERATION(abs_f32, 32, 32, "abs.f32 %0, %1;", a & 0x7fffffff)
OPERATION(copysign_f32, 32, 32, "copysign.f32 %0, %1, %2;", (a & 0x80000000) | (b & 0x7fffffff))
OPERATION(add_f64, 64, 64, "{.reg .f64 x, y; mov.b64 x, %1; mov.b64 y, %2; add.rn.f64 x, x, y; mov.b64 %0, x;}",
          b64(f64(a) + f64(b)))
OPERATION(fma_f64, 64, 64,
          "{.reg .f64 x, y, z; mov.b64 x, %1; mov.b64 y, %2; mov.b64 z, %3; fma.rn.f64 x, x, y, z; mov.b64 %0, x;}",
          b64(std::fma(f64(a), f64(b), f64(c))))
OPERATION(div_f64, 64, 64, "{.reg .f64 x, y; mov.b64 x, %1; mov.b64 y, %2; div.rn.f64 x, x, y; mov.b64 %0, x;}",
          b64(f64(a) / f64(b)))
OPERATION(sqrt_f64, 64, 64, "{.reg .f64 x; mov.b64 x, %1; sqrt.rn.f64 x, x; mov.b64 %0, x;}", b64(std::sqrt(f64(a))))

// All comparisons of one pair in one word.
#define TEST(op, bit) "setp." op ".f32 p, %1, %2; @p or.b32 %0, %0, " bit ";"
OPERATION(compare_f32, 32, 32,
          "{.reg .pred p; mov.u32 %0, 0;" TEST("eq", "1") TEST("ne", "2") TEST("lt", "4") TEST("le", "8")
              TEST("gt", "16") TEST("ge", "32") TEST("equ", "64") TEST("neu", "128") TEST("ltu", "256")
                  TEST("leu", "512") TEST("gtu", "1024") TEST("geu", "2048") TEST("num", "4096")
                      TEST("nan", "8192") "}",
          f32(a) != f32(a) || f32(b) != f32(b)
              ? 64 | 128 | 256 | 512 | 1024 | 2048 | 8192
              : (f32(a) == f32(b) ? 1 | 64 : 2 | 128) | (f32(a) < f32(b) ? 4 | 256 : 0) |
                    (f32(a) <= f32(b) ? 8 | 512 : 0) | (f32(a) > f32(b) ? 16 | 1024 : 0) |
                    (f32(a) >= f32(b) ? 32 | 2048 : 0) | 4096)

static void floats() {
    COMPARE(add_f32, AS_F32), COMPARE(add_rz, AS_F32), COMPARE(mul_rm, AS_F32), COMPARE(fma_rp, AS_F32);
    COMPARE(fma_f32, AS_F32), COMPARE(mul_ftz, AS_F32), COMPARE(add_sat, AS_F32), COMPARE(div_f32, AS_F32);
    COMPARE(sqrt_f32, AS_F32), COMPARE(rcp_f32, AS_F32), COMPARE(min_f32, AS_F32), COMPARE(max_f32, AS_F32);
    COMPARE(min_nan, AS_F32), COMPARE(neg_f32, BITS), COMPARE(abs_f32, BITS), COMPARE(copysign_f32, BITS);
    COMPARE(add_f64, AS_F64), COMPARE(fma_f64, AS_F64), COMPARE(div_f64, AS_F64), COMPARE(sqrt_f64, AS_F64);
    COMPARE(compare_f32, BITS);
}

// --- conversions
static uint16_t bf16_of(float x) {
    __nv_bfloat16 h = __float2bfloat16_rn(x);
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
static uint16_t f16_of(float x) { __half h = __float2half_rn(x); uint16_t bits; memcpy(&bits, &h, 2); return bits; }
static float of_bf16(uint16_t x) { return f32((uint32_t)x << 16); }
static float of_f16(uint16_t x) { __half_raw raw; raw.x = x; __half h(raw); return __half2float(h); }
static uint64_t to_integer(double x, int bits, bool is_signed, bool wide) {
    if (x != x) return wide ? 1ull << (bits - 1) : 0;
    double low = is_signed ? -std::ldexp(1, bits - 1) : 0, high = std::ldexp(1, is_signed ? bits - 1 : bits);
    if (x <= low) return is_signed ? 1ull << (bits - 1) : 0;
    if (x >= high) return is_signed ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
    return is_signed ? (uint64_t)(int64_t)x : (uint64_t)x;
}
OPERATION(bf16_f32, 16, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rn.bf16.f32 %0, x;}", bf16_of(f32(a)))
OPERATION(bf16x2_f32, 32, 32, "{.reg .f32 x, y; mov.b32 x, %1; mov.b32 y, %2; cvt.rn.bf16x2.f32 %0, x, y;}",
          (uint32_t)bf16_of(f32(a)) << 16 | bf16_of(f32(b)))
OPERATION(f16_f32, 16, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rn.f16.f32 %0, x;}", f16_of(f32(a)))
OPERATION(f16_rz_f32, 16, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rz.f16.f32 %0, x;}",
          [=] { __half h = __float2half_rz(f32(a)); uint16_t bits; memcpy(&bits, &h, 2); return bits; }())
OPERATION(f16x2_f32, 32, 32, "{.reg .f32 x, y; mov.b32 x, %1; mov.b32 y, %2; cvt.rn.f16x2.f32 %0, x, y;}",
          (uint32_t)f16_of(f32(a)) << 16 | f16_of(f32(b)))
OPERATION(f32_f16, 32, 16, "{.reg .f32 x; cvt.f32.f16 x, %1; mov.b32 %0, x;}", b32(of_f16(a)))
OPERATION(s32_f32, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rzi.s32.f32 %0, x;}",
          to_integer(std::trunc(f32(a)), 32, true, false))
OPERATION(u32_f32, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rpi.u32.f32 %0, x;}",
          to_integer(std::ceil(f32(a)), 32, false, false))
OPERATION(s32_rni, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rni.s32.f32 %0, x;}",
          to_integer(std::nearbyint(f32(a)), 32, true, false))
OPERATION(s64_f32, 64, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rmi.s64.f32 %0, x;}",
          to_integer(std::floor(f32(a)), 64, true, true))
OPERATION(u8_f32, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rzi.u8.f32 %0, x;}",
          to_integer(std::trunc(f32(a)), 8, false, false))
OPERATION(f32_s32, 32, 32, "{.reg .f32 x; cvt.rn.f32.s32 x, %1; mov.b32 %0, x;}", b32((float)(int32_t)a))
OPERATION(f32_u32, 32, 32, "{.reg .f32 x; cvt.rn.f32.u32 x, %1; mov.b32 %0, x;}", b32((float)a))
OPERATION(f32_u64, 32, 64, "{.reg .f32 x; cvt.rn.f32.u64 x, %1; mov.b32 %0, x;}", b32((float)a))
OPERATION(f32_s64_rz, 32, 64, "{.reg .f32 x; cvt.rz.f32.s64 x, %1; mov.b32 %0, x;}",
          b32(rounded(FE_TOWARDZERO, [=] { volatile int64_t x = (int64_t)a; vf = (float)x; return (float)vf; })))
OPERATION(f64_s64, 64, 64, "{.reg .f64 x; cvt.rn.f64.s64 x, %1; mov.b64 %0, x;}", b64((double)(int64_t)a))
OPERATION(f32_f64, 32, 64, "{.reg .f64 x; .reg .f32 y; mov.b64 x, %1; cvt.rn.f32.f64 y, x; mov.b32 %0, y;}",
          b32((float)f64(a)))
OPERATION(f64_f32, 64, 32, "{.reg .f64 x; .reg .f32 y; mov.b32 y, %1; cvt.f64.f32 x, y; mov.b64 %0, x;}", b64(f32(a)))
OPERATION(f32_rni_f32, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rni.f32.f32 x, x; mov.b32 %0, x;}",
          b32(std::nearbyint(f32(a))))
OPERATION(f32_sat_f32, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.sat.f32.f32 x, x; mov.b32 %0, x;}",
          b32(saturated(f32(a))))
OPERATION(s16_s8, 16, 16, "cvt.s16.s8 %0, %1;", (int16_t)(int8_t)a)
OPERATION(s64_s32, 64, 32, "cvt.s64.s32 %0, %1;", (int64_t)(int32_t)a)
OPERATION(u32_u8, 32, 32, "cvt.u32.u8 %0, %1;", a & 255)
OPERATION(sat_u8_s32, 32, 32, "cvt.sat.u8.s32 %0, %1;", (int32_t)a < 0 ? 0 : (int32_t)a > 255 ? 255 : a)
OPERATION(sat_s16_s64, 32, 64, "{.reg .b16 x; cvt.sat.s16.s64 x, %1; cvt.s32.s16 %0, x;}",
          (int64_t)a < -32768 ? -32768 : (int64_t)a > 32767 ? 32767 : (int64_t)a)
OPERATION(tf32_f32, 32, 32, "{.reg .f32 x; mov.b32 x, %1; cvt.rna.tf32.f32 %0, x;}",
          (a & 0x7fffffff) >= 0x7f800000 ? a : (a + 0x1000) & 0xffffe000)
OPERATION(f16_s32, 16, 32, "cvt.rn.f16.s32 %0, %1;",
          f16_of((float)(std::abs((double)(int32_t)a) > 1e6 ? std::copysign(1e6, (int32_t)a) : (int32_t)a)))

static void conversions() {
    COMPARE(bf16_f32, AS_BF16), COMPARE(bf16x2_f32, AS_BF16X2), COMPARE(f16_f32, AS_F16), COMPARE(f16_rz_f32, AS_F16);
    COMPARE(f16x2_f32, AS_F16X2), COMPARE(f32_f16, AS_F32), COMPARE(s32_f32, BITS), COMPARE(u32_f32, BITS);
    COMPARE(s32_rni, BITS), COMPARE(s64_f32, BITS), COMPARE(u8_f32, BITS), COMPARE(f32_s32, BITS),
        COMPARE(f32_u32, BITS);
    COMPARE(f32_u64, BITS), COMPARE(f32_s64_rz, BITS), COMPARE(f64_s64, BITS), COMPARE(f32_f64, AS_F32),
        COMPARE(f64_f32, AS_F64);
    COMPARE(f32_rni_f32, AS_F32), COMPARE(f32_sat_f32, AS_F32), COMPARE(s16_s8, BITS), COMPARE(s64_s32, BITS);
    COMPARE(u32_u8, BITS), COMPARE(sat_u8_s32, BITS), COMPARE(sat_s16_s64, BITS), COMPARE(tf32_f32, BITS),
        COMPARE(f16_s32, AS_F16);
}

// --- fp16 and bf16 arithmetic. a b is exact in long double; where a b + c is not, it is moved off the value that it
// was rounded to, towards the true one, so that rounding it again can't take it for a tie.
static long double sum_off_ties(long double product, long double c) {
    long double sum = product + c, part = sum - product, error = (product - (sum - part)) + (c - part);
    return error == 0 || !std::isfinite(sum) ? sum : std::nextafter(sum, error > 0 ? HUGE_VALL : -HUGE_VALL);
}
// To fp32, off ties again: to odd.
static float to_odd(long double x) {
    float near = (float)x;
    if ((long double)near == x || !std::isfinite(near) || (b32(near) & 1)) return near;
    return f32(std::fabs((long double)near) > std::fabs(x) ? b32(near) - 1 : b32(near) + 1);
}
OPERATION(fma_bf16, 16, 16, "fma.rn.bf16 %0, %1, %2, %3;",
          bf16_of(to_odd(sum_off_ties((long double)of_bf16(a) * of_bf16(b), of_bf16(c)))))
OPERATION(fma_f16, 16, 16, "fma.rn.f16 %0, %1, %2, %3;",
          f16_of(to_odd(sum_off_ties((long double)of_f16(a) * of_f16(b), of_f16(c)))))
OPERATION(add_f16, 16, 16, "add.rn.f16 %0, %1, %2;", f16_of(of_f16(a) + of_f16(b)))
OPERATION(mul_f16, 16, 16, "mul.rn.f16 %0, %1, %2;", f16_of(of_f16(a) * of_f16(b)))
OPERATION(max_f16, 16, 16, "max.f16 %0, %1, %2;", f16_of(-least(-of_f16(a), -of_f16(b))))
OPERATION(max_bf16, 16, 16, "max.bf16 %0, %1, %2;", bf16_of(-least(-of_bf16(a), -of_bf16(b))))
OPERATION(neg_bf16, 16, 16, "neg.bf16 %0, %1;", a ^ 0x8000)
OPERATION(fma_bf16x2, 32, 32, "fma.rn.bf16x2 %0, %1, %2, %3;",
          (uint32_t)fma_bf16::host(a >> 16, b >> 16, c >> 16) << 16 |
              fma_bf16::host((uint16_t)a, (uint16_t)b, (uint16_t)c))
OPERATION(add_f16x2, 32, 32, "add.rn.f16x2 %0, %1, %2;",
          (uint32_t)add_f16::host(a >> 16, b >> 16, 0) << 16 | add_f16::host((uint16_t)a, (uint16_t)b, 0))
static uint32_t less(float a, float b) { return a < b ? 0x3c00 : 0; }
OPERATION(set_f16x2, 32, 32, "set.lt.f16x2.f16x2 %0, %1, %2;",
          less(of_f16(a >> 16), of_f16(b >> 16)) << 16 | less(of_f16((uint16_t)a), of_f16((uint16_t)b)))
OPERATION(compare_f16, 32, 16, "{.reg .pred p; setp.ltu.f16 p, %1, %2; selp.u32 %0, 1, 0, p;}",
          !(of_f16(a) >= of_f16(b)))
OPERATION(compare_bf16, 32, 16,
          "{.reg .pred p; .reg .f32 x, y; mov.b32 x, {0, %1}; mov.b32 y, {0, %2}; setp.lt.f32 p, x, y; "
          "selp.u32 %0, 1, 0, p;}",
          of_bf16(a) < of_bf16(b))

static void short_floats() {
    COMPARE(fma_bf16, AS_BF16), COMPARE(fma_f16, AS_F16), COMPARE(add_f16, AS_F16), COMPARE(mul_f16, AS_F16);
    COMPARE(max_f16, AS_F16), COMPARE(max_bf16, AS_BF16), COMPARE(neg_bf16, BITS), COMPARE(fma_bf16x2, AS_BF16X2);
    COMPARE(add_f16x2, AS_F16X2), COMPARE(set_f16x2, BITS), COMPARE(compare_f16, BITS), COMPARE(compare_bf16, BITS);
}

// --- approximations: at most one unit in the last place from the correctly rounded value
__global__ void math_kernel(float *d, const float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d[i * 8]) : "f"(x[i]));
    asm("lg2.approx.f32 %0, %1;" : "=f"(d[i * 8 + 1]) : "f"(x[i]));
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(d[i * 8 + 2]) : "f"(x[i]));
    asm("sin.approx.f32 %0, %1;" : "=f"(d[i * 8 + 3]) : "f"(x[i]));
    asm("cos.approx.f32 %0, %1;" : "=f"(d[i * 8 + 4]) : "f"(x[i]));
    asm("tanh.approx.f32 %0, %1;" : "=f"(d[i * 8 + 5]) : "f"(x[i]));
    d[i * 8 + 6] = expf(x[i]);
    d[i * 8 + 7] = tanhf(x[i]) + logf(x[i]) + powf(x[i], 0.3f) + erff(x[i]) + sinf(x[i] * 1e6f);
}

static bool is_close(float got, double want, double units) {
    if (want != want) return got != got;
    if (std::fabs(want) > 3.4e38 || std::fabs(want) < 1.2e-38)
        return std::fabs(want) > 1 ? std::isinf(got) : std::fabs(got) < 1.2e-38f;
    return std::fabs(got - want) <= units * std::fabs(want) * 0x1p-23;
}

static void math() {
    enum { M = 2048 };
    static float x[M], d[M * 8];
    for (int i = 0; i < M; i++) x[i] = (float)((double)random_bits() / 0x1p64 * 40 - (i % 2 ? 20 : 0));
    x[0] = 0, x[1] = INFINITY, x[2] = -INFINITY, x[3] = NAN, x[4] = 200, x[5] = -200, x[6] = 1e-6f, x[7] = -1e-6f;
    float *dx = upload(x, M), *dd = room<float>(M * 8);
    math_kernel<<<M / 128, 128>>>(dd, dx, M);
    download(d, dd, M * 8);
    for (int i = 0; i < M; i++) {
        const float *r = d + i * 8;
        double v = x[i];
        double want[] = {std::exp2(v), std::log2(v), 1 / std::sqrt(v), std::sin(v),
                         std::cos(v),  std::tanh(v), std::exp(v)};
        for (int q = 0; q < 7; q++)
            EXPECT(is_close(r[q], want[q], 1.5 + (q == 6)), "function %d of %g: %g, not %g", q, v, r[q], want[q]);
        double sum = std::tanh(v) + std::log(v) + std::pow(v, 0.3) + std::erf(v) + std::sin((double)(x[i] * 1e6f));
        EXPECT(sum != sum || std::isinf(sum) || std::fabs(r[7] - sum) < 1e-5, "library functions of %g: %g, not %g", v,
               r[7], sum);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Warps

__global__ void warp_kernel(unsigned *o) {
    unsigned l = threadIdx.x, v = l * 3 + 1, *d = o + l * 16, p;
    d[0] = __shfl_xor_sync(~0u, v, 5);
    d[1] = __shfl_up_sync(~0u, v, 3);
    d[2] = __shfl_down_sync(~0u, v, 4, 8);
    d[3] = __shfl_sync(~0u, v, l / 2, 16);
    d[4] = __ballot_sync(~0u, l % 3 == 0);
    d[5] = __all_sync(~0u, l < 32) + 2 * __any_sync(~0u, l == 40) + 4 * __all_sync(~0u, l < 31);
    d[6] = __match_any_sync(~0u, l / 5);
    d[7] = __reduce_add_sync(~0u, v) + __reduce_max_sync(~0u, v) * 65536;
    d[8] = (unsigned)__reduce_min_sync(~0u, (int)l - 16);
    d[9] = __activemask();
    asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %1, 8, 0x1f, -1; selp.u32 %0, %0, 1000, p;}"
                 : "=r"(p)
                 : "r"(v));
    d[10] = p;
    if (l < 16) {
        d[11] = __shfl_xor_sync(0xffffu, v, 1) + (__activemask() == 0xffffu) * 1000;
    } else {
        d[11] = __shfl_xor_sync(0xffff0000u, v, 2);
    }
    int same;
    __match_all_sync(~0u, l / 32, &same);
    d[12] = (unsigned)same;
    d[13] = __reduce_xor_sync(~0u, v) ^ __reduce_or_sync(~0u, l) ^ __reduce_and_sync(~0u, l | 64);
    float f = (float)l;
    for (int k = 16; k > 0; k /= 2) f += __shfl_xor_sync(~0u, f, k);
    d[14] = (unsigned)f;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(p));
    d[15] = p;
}

static void warps() {
    static unsigned o[32 * 16];
    unsigned *d = room<unsigned>(32 * 16), sum = 0, all_xor = 0;
    warp_kernel<<<1, 32>>>(d);
    download(o, d, 32 * 16);
    for (unsigned l = 0; l < 32; l++) sum += l * 3 + 1, all_xor ^= l * 3 + 1;
    for (unsigned l = 0; l < 32; l++) {
        unsigned same = 0, thirds = 0, v = l * 3 + 1;
        for (unsigned k = 0; k < 32; k++) same |= (k / 5 == l / 5) << k, thirds |= (k % 3 == 0) << k;
        unsigned want[16] = {(l ^ 5) * 3 + 1, l < 3 ? v : (l - 3) * 3 + 1, l % 8 < 4 ? (l + 4) * 3 + 1 : v,
                             (l / 16 * 16 + l / 2 % 16) * 3 + 1, thirds, 1, same, sum + 94 * 65536, (unsigned)-16, ~0u,
                             l < 24 ? (l + 8) * 3 + 1 : 1000, l < 16 ? (l ^ 1) * 3 + 1 + 1000 : (l ^ 2) * 3 + 1, 1,
                             all_xor ^ 31 ^ 64, 496, (1u << l) - 1};
        for (int q = 0; q < 16; q++)
            EXPECT(o[l * 16 + q] == want[q], "lane %u, value %d: %u, not %u", l, q, o[l * 16 + q], want[q]);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Matrices

// C = A B + C by one warp; A m16 x k by rows and B k x n8 by columns as 16-bit values in memory.
template <int k, int kind>  // kind 0: bf16, 1: f16, 2: f16 with f16 accumulators
__global__ void mma_kernel(float *d, const uint16_t *a, const uint16_t *b, const float *c) {
    int l = threadIdx.x, g = l / 4, t = l % 4;
    auto pair = [](const uint16_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 16; };
    uint32_t ra[4], rb[2];
    for (int r = 0; r < k / 4; r++) ra[r] = pair(a + (g + 8 * (r % 2)) * k + 2 * t + 8 * (r / 2));
    for (int r = 0; r < k / 8; r++) rb[r] = pair(b + g * k + 2 * t + 8 * r);
    float x[4];
    for (int r = 0; r < 4; r++) x[r] = c[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2];
    if (kind == 2) {
        __half2 h0 = __floats2half2_rn(x[0], x[1]), h1 = __floats2half2_rn(x[2], x[3]);
        uint32_t c0 = *(uint32_t *)&h0, c1 = *(uint32_t *)&h1;
        asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
            : "+r"(c0), "+r"(c1) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        h0 = *(__half2 *)&c0, h1 = *(__half2 *)&c1;
        x[0] = __low2float(h0), x[1] = __high2float(h0), x[2] = __low2float(h1), x[3] = __high2float(h1);
    } else if (k == 8) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]) : "r"(ra[0]), "r"(ra[1]), "r"(rb[0]));
    } else if (kind == 0) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
            : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
            : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    }
    for (int r = 0; r < 4; r++) d[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = x[r];
}

template <int k, int kind>
static void matrix_case() {
    uint16_t a[16 * k], b[8 * k];
    float c[128], d[128];
    for (auto &x : a)
        x = kind == 0 ? bf16_of((float)(random_bits() % 64) / 8 - 4) : f16_of((float)(random_bits() % 64) / 8 - 4);
    for (auto &x : b)
        x = kind == 0 ? bf16_of((float)(random_bits() % 64) / 8 - 4) : f16_of((float)(random_bits() % 64) / 8 - 4);
    for (auto &x : c) x = (float)(random_bits() % 64);
    float *dd = room<float>(128);
    mma_kernel<k, kind><<<1, 32>>>(dd, upload(a, 16 * k), upload(b, 8 * k), upload(c, 128));
    download(d, dd, 128);
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < 8; n++) {
            double sum = c[m * 8 + n];
            for (int q = 0; q < k; q++) {
                sum += kind == 0 ? (double)of_bf16(a[m * k + q]) * of_bf16(b[n * k + q])
                                 : (double)of_f16(a[m * k + q]) * of_f16(b[n * k + q]);
            }
            double bound = kind == 2 ? std::fabs(sum) * 0x1p-10 : 0;  // the numbers are short: fp32 sums are exact
            EXPECT(std::fabs(sum - d[m * 8 + n]) <= bound, "mma k%d kind %d [%d][%d]: %g, not %g", k, kind, m, n,
                   d[m * 8 + n], sum);
        }
    }
}

template <int count, bool trans>
__global__ void ldmatrix_kernel(uint32_t *o, const uint16_t *in) {
    __shared__ __align__(16) uint16_t s[32 * 8];
    for (int i = threadIdx.x; i < 256; i += 32) s[i] = in[i];
    __syncwarp();
    uint32_t r[4] = {0, 0, 0, 0}, at = (uint32_t)__cvta_generic_to_shared(s + threadIdx.x * 8);
    if (count == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
    if (count == 2 && !trans)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(at)
                     : "memory");
    if (count == 2 && trans)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(at)
                     : "memory");
    if (count == 4 && !trans)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    if (count == 4 && trans)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    for (int q = 0; q < 4; q++) o[threadIdx.x * 4 + q] = r[q];
}

template <int count, bool trans>
static void ldmatrix_case() {
    uint16_t in[256];
    uint32_t o[128];
    for (int i = 0; i < 256; i++) in[i] = (uint16_t)(i * 257);
    uint32_t *d = room<uint32_t>(128);
    ldmatrix_kernel<count, trans><<<1, 32>>>(d, upload(in, 256));
    download(o, d, 128);
    for (int l = 0; l < 32; l++) {
        for (int q = 0; q < count; q++) {
            const uint16_t *matrix = in + q * 64;
            int row = l / 4, column = l % 4 * 2;
            uint32_t low = trans ? matrix[column * 8 + row] : matrix[row * 8 + column];
            uint32_t high = trans ? matrix[(column + 1) * 8 + row] : matrix[row * 8 + column + 1];
            EXPECT(o[l * 4 + q] == (low | high << 16), "ldmatrix x%d trans %d: lane %d, matrix %d", count, trans, l, q);
        }
    }
}

static void matrices() {
    matrix_case<16, 0>(), matrix_case<16, 1>(), matrix_case<16, 2>(), matrix_case<8, 0>();
    ldmatrix_case<1, false>(), ldmatrix_case<2, false>(), ldmatrix_case<2, true>(), ldmatrix_case<4, false>(),
        ldmatrix_case<4, true>();
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

// Copies of 4, 8 and 16 bytes, the last lanes with fewer source bytes, in two groups.
__global__ void copy_kernel(uint32_t *o, const uint32_t *in) {
    __shared__ __align__(16) uint32_t s[32 * 8];
    int l = threadIdx.x, few = l < 30 ? 16 : l == 30 ? 8 : 0;
    uint32_t at = (uint32_t)__cvta_generic_to_shared(s);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at + l * 4), "l"(in + l) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at + 128 + l * 8), "l"(in + 32 + l * 2) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at + 384 + l * 16),
                 "l"(in + 96 + l * 4), "r"(few)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
    o[l] = s[31 - l];
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    for (int q = 0; q < 6; q++) o[32 + l * 6 + q] = s[32 + l * 6 + q];
}

struct Mixed {
    int8_t a;
    uint8_t b;
    int16_t c;
    uint16_t d;
    int32_t e;
    uint64_t f;
    double g;
};
__global__ void widths_kernel(Mixed *o, const Mixed *i, float4 *v, const float2 *w, const uchar4 *x) {
    int t = threadIdx.x;
    Mixed m = i[t];
    m.a = (int8_t)(m.a * 2), m.b = (uint8_t)(m.b + 1), m.c = (int16_t)(m.c - 1), m.d = (uint16_t)(m.d * 3);
    m.e = -m.e, m.f = m.f * 5, m.g = m.g / 2;
    o[t] = m;
    float2 p = w[t * 2], q = w[t * 2 + 1];
    uchar4 y = x[t];
    v[t] = make_float4(p.x + y.x, p.y + y.y, q.x + y.z, q.y + y.w);
}

__device__ int counter;
__device__ float table[4] = {1, 2, 3, 4};
__constant__ int constants[3];
__device__ const float *pointer_to_table = table;

struct Argument {
    int values[5];
    const float *pointer;
};
__global__ void symbols_kernel(float *o, Argument argument, char one, double two) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[32];
    int t = threadIdx.x;
    float local[6];
    for (int i = 0; i < 6; i++) local[i] = (float)(i * t);
    fixed[t] = local[t % 6], dynamic[t] = argument.values[t % 5];
    __syncthreads();
    float *generic = t % 2 ? fixed : dynamic;
    if (t % 3 == 0) generic = local;
    atomicAdd(&counter, 1);
    o[t] = generic[t % 3 == 0 ? t % 6 : t] + table[t % 4] + (float)constants[t % 3] + argument.pointer[t % 2] + one +
           (float)two + pointer_to_table[3];
}

static void memory() {
    static uint32_t in[256], o[256];
    for (int i = 0; i < 256; i++) in[i] = (uint32_t)random_bits();
    uint32_t *d = room<uint32_t>(256);
    copy_kernel<<<1, 32>>>(d, upload(in, 256));
    download(o, d, 224);
    for (int l = 0; l < 32; l++) EXPECT(o[l] == in[31 - l], "cp.async of 4 bytes, lane %d", l);
    for (int i = 0; i < 192; i++) {
        bool is_zero = i + 32 >= 96 + 31 * 4 || (i + 32 >= 96 + 30 * 4 + 2);
        EXPECT(o[32 + i] == (is_zero ? 0 : in[32 + i]), "cp.async, word %d", i);
    }
    static Mixed m[32], r[32];
    static float2 w[64];
    static uchar4 x[32];
    static float4 v[32];
    for (int i = 0; i < 32; i++) {
        m[i] = {(int8_t)(i - 16),
                (uint8_t)(i * 8 + 7),
                (int16_t)(i * -1000),
                (uint16_t)(i * 999),
                i * -77777,
                random_bits(),
                i * 0.25};
        w[2 * i] = {i * 1.0f, i * 2.0f}, w[2 * i + 1] = {i * 3.0f, i * 4.0f};
        x[i] = {(uint8_t)i, (uint8_t)(i + 200), 255, 0};
    }
    Mixed *dr = room<Mixed>(32);
    float4 *dv = room<float4>(32);
    CHECK(cudaMemset(dr, 0, 32 * sizeof(Mixed)));  // the padding
    widths_kernel<<<1, 32>>>(dr, upload(m, 32), dv, upload(w, 64), upload(x, 32));
    download(r, dr, 32), download(v, dv, 32);
    for (int i = 0; i < 32; i++) {
        bool is_same = r[i].a == (int8_t)(m[i].a * 2) && r[i].b == (uint8_t)(m[i].b + 1) &&
                       r[i].c == (int16_t)(m[i].c - 1) && r[i].d == (uint16_t)(m[i].d * 3) && r[i].e == -m[i].e &&
                       r[i].f == m[i].f * 5 && r[i].g == m[i].g / 2;
        EXPECT(is_same, "loads and stores of all widths, thread %d", i);
        EXPECT(v[i].y == w[2 * i].y + x[i].y && v[i].z == w[2 * i + 1].x + 255, "vectors, thread %d", i);
    }
    int numbers[3] = {10, 20, 30}, count = 5, zero = 0;
    float pair[2] = {0.5f, 0.25f}, got[32];
    CHECK(cudaMemcpyToSymbol(constants, numbers, sizeof(numbers)));
    CHECK(cudaMemcpyToSymbol(counter, &zero, sizeof(zero)));
    Argument argument = {{5, 4, 3, 2, 1}, upload(pair, 2)};
    float *dg = room<float>(32);
    symbols_kernel<<<1, 32, 128>>>(dg, argument, 3, 0.125);
    CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof(count)));
    download(got, dg, 32);
    EXPECT(count == 32, "counter %d", count);
    for (int t = 0; t < 32; t++) {
        float base = t % 3 == 0 ? (float)(t % 6 * t) : t % 2 ? (float)(t % 6 * t) : (float)argument.values[t % 5];
        float want = base + (float)(t % 4 + 1) + (float)numbers[t % 3] + pair[t % 2] + 3 + 0.125f + 4;
        EXPECT(got[t] == want, "symbols, thread %d: %g, not %g", t, got[t], want);
    }
}

__global__ void atomics_kernel(unsigned *u, int *s, unsigned long long *w, float *f, double *g) {
    unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ unsigned block;
    if (threadIdx.x == 0) block = 0;
    __syncthreads();
    atomicAdd(&block, 1u);
    atomicAdd(u, t), atomicMax(u + 1, t * 7 % 100), atomicMin(u + 2, t + 3), atomicOr(u + 3, 1u << t % 32);
    atomicAnd(u + 4, ~(1u << t % 16)), atomicXor(u + 5, t), atomicInc(u + 6, 9), atomicDec(u + 7, 9);
    atomicMin(s, (int)t - 50), atomicMax(s + 1, (int)t - 50);
    atomicAdd(w, (unsigned long long)t << 32), atomicMax(w + 1, (unsigned long long)t);
    unsigned old = atomicOr(u + 8, 0u);  // a plain read would race
    for (unsigned seen; (seen = atomicCAS(u + 8, old, old + 2)) != old; old = seen) {}
    atomicExch(u + 9, 42u);
    atomicAdd(f, 0.5f), atomicAdd(g, 0.25);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(u + 10, block);
}

static void atomics() {
    unsigned u[11] = {0, 0, 1000, 0, 0xffffffff, 0, 0, 0, 0, 0, 0};
    int s[2] = {0, 0};
    unsigned long long w[2] = {0, 0};
    float f = 0;
    double g = 0;
    unsigned *du = upload(u, 11);
    int *ds = upload(s, 2);
    unsigned long long *dw = upload(w, 2);
    float *df = upload(&f, 1);
    double *dg = upload(&g, 1);
    atomics_kernel<<<3, 32>>>(du, ds, dw, df, dg);
    download(u, du, 11), download(s, ds, 2), download(w, dw, 2), download(&f, df, 1), download(&g, dg, 1);
    unsigned all = 0;
    for (unsigned t = 0; t < 96; t++) all ^= t;
    EXPECT(u[0] == 95 * 96 / 2 && u[1] == 99 && u[2] == 3 && u[3] == ~0u && u[4] == 0xffff0000 && u[5] == all,
           "atomics of 32 bits");
    EXPECT(u[6] == 96 % 10 && u[7] == 4 && u[8] == 192 && u[9] == 42 && u[10] == 96, "inc %u dec %u cas %u shared %u",
           u[6], u[7], u[8], u[10]);
    EXPECT(s[0] == -50 && s[1] == 45 && w[0] == (95ull * 96 / 2) << 32 && w[1] == 95 && f == 48 && g == 24,
           "other atomics");
    EXPECT(emulator_counts().float_atomics == 6, "float atomics counted: %d", (int)emulator_counts().float_atomics);
}

// ---------------------------------------------------------------------------------------------------------------
// Control flow

__device__ __noinline__ float twice(float x, int n) {
    for (int i = 0; i < n; i++) x *= 2;
    return x;
}
__device__ __noinline__ float nested(float x, int n) { return n > 3 ? twice(x, n) + 1 : -x; }

__global__ void control_kernel(float *o, const int *in) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, n = in[t], sum = 0;
    for (int i = 0; i < n; i++) {
        if (i % 3 == 1) continue;
        if (i > 20) break;
        sum += i % 2 ? i : -i;
    }
    float x = 0;
    switch (n % 8) {
    case 0: x = 1; break;
    case 1: x = sinf((float)n); break;
    case 2: x = nested((float)n, n % 7); break;
    case 3: x = (float)(n * n); break;
    case 4: x = -3; break;
    case 5: x = twice(1.5f, 3); break;
    case 6: x = (float)(n / 3) + (float)(n % 5); break;
    default: x = 100; sum = -sum;
    }
    __syncwarp();
    o[t] = x + (float)sum + __shfl_xor_sync(~0u, x, 1);
}

__global__ void barriers_kernel(int *o) {
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
        b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int n = blockDim.x * blockDim.y * blockDim.z;
    int count = __syncthreads_count(t % 3 == 0), all = __syncthreads_and(t >= 0), some = __syncthreads_or(t == 5);
    // Producer and consumer with named barriers: the first warp arrives, the second waits.
    __shared__ int handed;
    if (t == 0) handed = b * 3;
    __syncwarp();
    if (t < 32) asm volatile("bar.arrive 3, 64;" ::: "memory");
    if (t >= 32 && t < 64) {
        asm volatile("bar.sync 3, 64;" ::: "memory");
        if (t == 40) count += handed * 1000;
    }
    o[b * n + t] = count + all * 100000 + some * 200000;
}

static void control() {
    static int in[128];
    static float o[128];
    for (int i = 0; i < 128; i++) in[i] = (i * 37) % 41;
    float *d = room<float>(128);
    control_kernel<<<2, 64>>>(d, upload(in, 128));
    download(o, d, 128);
    static float x[128];
    static int sum[128];
    for (int t = 0; t < 128; t++) {
        int n = in[t];
        for (int i = 0; i < n && i <= 20 + (i % 3 == 1); i++) if (i % 3 != 1) sum[t] += i % 2 ? i : -i;
        float nest = n % 7 > 3 ? std::ldexp((float)n, n % 7) + 1 : -(float)n;
        float cases[8] = {1,  (float)std::sin((double)n),      nest, (float)(n * n), -3,
                          12, (float)(n / 3) + (float)(n % 5), 100};
        x[t] = cases[n % 8];
        if (n % 8 == 7) sum[t] = -sum[t];
    }
    for (int t = 0; t < 128; t++) {
        float want = x[t] + (float)sum[t] + x[t ^ 1];
        EXPECT(std::fabs(o[t] - want) < 1e-4f, "control flow, thread %d: %g, not %g", t, o[t], want);
    }
    static int r[12 * 96];
    int *dr = room<int>(12 * 96);
    barriers_kernel<<<dim3(3, 2, 2), dim3(8, 4, 3)>>>(dr);
    download(r, dr, 12 * 96);
    for (int b = 0; b < 12; b++) {
        for (int t = 0; t < 96; t++)
            EXPECT(r[b * 96 + t] == 32 + 300000 + (t == 40 ? b * 3000 : 0), "barriers, block %d thread %d: %d", b, t,
                   r[b * 96 + t]);
    }
}

__global__ void print_kernel(int n) {
    if (threadIdx.x == 3) printf("thread %d of %s: %.2f %llu%%\n", (int)threadIdx.x, "emulated", 1.5 * n, 1ull << 40);
}

static void printing() {
    char text[256] = "";
    FILE *capture = tmpfile();
    int saved = dup(1);
    fflush(stdout);
    dup2(fileno(capture), 1);
    print_kernel<<<1, 32>>>(3);
    CHECK(cudaDeviceSynchronize());
    fflush(stdout);
    dup2(saved, 1);
    rewind(capture);
    EXPECT(fgets(text, sizeof(text), capture), "printf");
    EXPECT(strcmp(text, "thread 3 of emulated: 4.50 1099511627776%\n") == 0, "printf: %s", text);
}

// ---------------------------------------------------------------------------------------------------------------
// The runtime

__global__ void add_kernel(float *x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

static void runtime() {
    cudaDeviceProp properties;
    int n, value, least, greatest;
    size_t free_bytes, total;
    CHECK(cudaGetDeviceCount(&n));
    CHECK(cudaGetDeviceProperties(&properties, 0));
    EXPECT(n == 1 && properties.major == 8 && strcmp(properties.name, "emulated") == 0, "device");
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    EXPECT(value == 163 * 1024, "shared memory");
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    void *much, *some;
    EXPECT(cudaMalloc(&much, (size_t)1 << 40) == cudaErrorMemoryAllocation && !much, "too much memory");
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess, "last error");
    CHECK(cudaMalloc(&some, 1 << 20));
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    EXPECT(total - free_bytes >= 1 << 20 && emulator_counts().live_bytes == total - free_bytes, "memory");
    CHECK(cudaFree(some));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, add_kernel, 256, 0));
    EXPECT(n == 8, "occupancy %d", n);

    cudaStream_t stream, other;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    float *pinned, *x = room<float>(1000), host[1000];
    CHECK(cudaMallocHost(&pinned, 4000));
    emulator_reset_counts();
    for (int i = 0; i < 1000; i++) host[i] = (float)i;
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaMemcpyAsync(x, host, 4000, cudaMemcpyHostToDevice, stream));
    memset(host, 0, sizeof(host));  // pageable memory was staged
    add_kernel<<<4, 256, 0, stream>>>(x, 0.5f, 1000);
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaStreamWaitEvent(other, end, 0));
    CHECK(cudaMemcpyAsync(pinned, x, 4000, cudaMemcpyDeviceToHost, other));
    CHECK(cudaLaunchHostFunc(other, [](void *p) { ((float *)p)[0] += 100; }, pinned));
    while (cudaStreamQuery(other) == cudaErrorNotReady) {}
    EXPECT(pinned[0] == 100.5f && pinned[999] == 999.5f, "streams: %g", pinned[0]);
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    EXPECT(milliseconds >= 0, "time");
    EmulatorCounts counts = emulator_counts();
    EXPECT(counts.launches == 1 && counts.copies == 2 && counts.device_synchronisations == 0 && counts.allocations == 0,
           "counts");
    CHECK(cudaMemcpy2DAsync(host, 40, x, 80, 20, 5, cudaMemcpyDeviceToHost, stream));
    EXPECT(host[0] == 0.5f && host[14] == 24.5f && host[5] == 0, "2D copy: %g", host[14]);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(other));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaFreeHost(pinned));
}

// A ring of five streams: pinned memory to the device, two kernels, a copy within the device, back to pinned memory, a
// host function; each waits for the one before, and the first for the last of the round before.
static void streams() {
    enum { ROUNDS = 5, COUNT = 300 };
    cudaStream_t s[5];
    cudaEvent_t done[5];
    float *x = room<float>(COUNT), *y = room<float>(COUNT), *up, *down = (float *)malloc(COUNT * 4);
    static float *last;
    CHECK(cudaHostAlloc(&up, COUNT * 4, cudaHostAllocPortable));
    CHECK(cudaHostRegister(down, COUNT * 4, cudaHostRegisterDefault));
    for (int i = 0; i < 5; i++) {
        CHECK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < COUNT; i++) up[i] = (float)i;
    last = up;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 5; i++) {
            CHECK(cudaStreamWaitEvent(s[i], done[(i + 4) % 5], 0));
            if (i == 0) CHECK(cudaMemcpyAsync(x, up, COUNT * 4, cudaMemcpyHostToDevice, s[i]));
            if (i == 1) add_kernel<<<2, 256, 0, s[i]>>>(x, 0.5f, COUNT);
            if (i == 2) CHECK(cudaMemcpyAsync(y, x, COUNT * 4, cudaMemcpyDeviceToDevice, s[i]));
            if (i == 3) CHECK(cudaMemcpyAsync(down, y, COUNT * 4, cudaMemcpyDeviceToHost, s[i]));
            if (i == 4) CHECK(cudaLaunchHostFunc(s[i], [](void *p) {
                emulator_host_reads(p, COUNT * 4);
                emulator_host_writes(last, COUNT * 4);
                for (int k = 0; k < COUNT; k++) last[k] = 2 * ((float *)p)[k];
            }, down));
            CHECK(cudaEventRecord(done[i], s[i]));
        }
    }
    while (cudaEventQuery(done[4]) == cudaErrorNotReady) {}
    emulator_host_reads(up, COUNT * 4);
    float expected = 7;
    for (int round = 0; round < ROUNDS; round++) expected = 2 * (expected + 0.5f);
    EXPECT(up[7] == expected, "streams: %g, not %g", up[7], expected);
    CHECK(cudaHostUnregister(down));
}

#define FAMILY(name) {"family_" #name, name}
const Family FAMILIES[] = {FAMILY(integers),     FAMILY(bits),    FAMILY(floats),  FAMILY(conversions),
                           FAMILY(short_floats), FAMILY(math),    FAMILY(warps),   FAMILY(matrices),
                           FAMILY(memory),       FAMILY(atomics), FAMILY(control), FAMILY(printing),
                           FAMILY(runtime),      FAMILY(streams)};
const int N_FAMILIES = sizeof(FAMILIES) / sizeof(FAMILIES[0]);
