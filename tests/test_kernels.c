// test_kernels.c - every operation against its equation in double precision, and what number.h promises.
//
// A case is an operation, its sizes, a storage type and a variant; the tables of shapes and of operations make the
// list. run_case() lets the operation's test draw inputs, rounded to the type they are stored in, runs the operation
// on a device between guards and compares with a naive version, written from the equation, of the same inputs:
//
//     every buffer   | guard | offset | elements | guard |        elements that the operation makes: NaN before
//     the slab       | kept guard | scratch, exactly as planned, poisoned | guard on the stack |
//
// Guards must be as they were afterwards, and so must inputs. Each case is planned and then run twice, with the same
// bits. Backward operations are also compared with finite differences of the naive forward.
//
// A result may differ from the naive one by GROWTH u (size + sqrt(terms) |result|) + u_stored |result|:
//   u         2^-24, the unit roundoff of fp32 (24 significant bits, to nearest), in which all arithmetic is done.
//   size      the sum of the absolute values of the terms that make the result, worked out beside it, each with a
//             factor for what it went through before.
//   terms     how many are added. A chain of n additions rounds n partial sums, up and down: 0.6 u times the root of
//             the sum of their squares is the deviation. Partial sums on the way from 0 to the result are a line and
//             a random walk, which gives 0.34 sqrt(n) |result| + 0.37 size in whatever order; GROWTH is ten of them.
//   u_stored  the unit roundoff of the type that the result is stored in: 2^-24, or 2^-8 for bf16, which has 8
//             significant bits (test_bf16_rounding).
#include "test_helpers.h"

#ifdef EMULATED
#include "../dev/device.h"

#include "observer.h"
#endif

#include "../dev/kernels/adamw.h"
#include "../dev/kernels/attention.h"
#include "../dev/kernels/bias.h"
#include "../dev/kernels/classifier.h"
#include "../dev/kernels/encoder.h"
#include "../dev/kernels/gelu.h"
#include "../dev/kernels/layernorm.h"
#include "../dev/kernels/matmul.h"
#include "../dev/kernels/norm.h"
#include "../dev/kernels/residual.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(address, n_bytes) ((void)(address), (void)(n_bytes))
#define __asan_unpoison_memory_region(address, n_bytes) ((void)(address), (void)(n_bytes))
#endif

#define U32 0x1p-24
#define U16 0x1p-8
#define U_FP16 0x1p-11
#define GROWTH 4.0
#define EXACT (-1.0)      // a size that allows no error
#define UNDERFLOW 1e-34  // where something is added up: exp() gives 0 for less than FLT_MIN, whatever it's then times
#define DIFFERENCE 1e-4  // of finite differences of order 4, which err by its 4th power and by 2^-53 / it

enum { MOST_SIZES = 5, MOST_VARIANTS = 3, MOST_BUFFERS = 8, MOST_ARRAYS = 48, GUARD_BYTES = 128 };
enum { GUARD_WORD = 0x7fd5, MADE_WORD = 0x7fc9 };  // in a row, NaN as bf16, fp32 and fp64

typedef enum { IN_FP32 = FP32, IN_BF16 = BF16, IN_FP16 = FP16, IN_INT32, IN_FP64 } Element;
static const size_t ELEMENT_BYTES[] = {4, 2, 2, 4, 8};

typedef enum { GIVEN, MADE, CHANGED } Role;  // read only, written only, both

// A parameter of an operation, and what it has to be afterwards.
typedef struct {
    Element element;
    Role role;
    size_t n, n_bytes, at;          // elements; bytes with guards; where the elements begin
    double *given, *got;            // before and after, as doubles
    double *want, *size, terms;     // see above; nothing to compare with if terms is 0
    char *before, *after, *memory;  // the bytes, and where they are on the device
} Buffer;

// In the order of `operations`.
enum {
    ENCODER_FORWARD, ENCODER_BACKWARD, LAYERNORM_FORWARD, LAYERNORM_RESIDUAL, LAYERNORM_BACKWARD, RESIDUAL_FORWARD,
    GELU_FORWARD, GELU_BACKWARD, GELU_BACKWARD_BIAS, CLASSIFIER, MATMUL_FORWARD, MATMUL_INPUT, MATMUL_WEIGHT,
    MATMUL_BIAS, ATTENTION_FORWARD, ATTENTION_BACKWARD, NORM_CHUNKS, ADAMW, DEVICE, OPERATIONS
};

typedef struct Run Run;

typedef struct {
    size_t n[MOST_SIZES];
} Shape;

typedef struct {
    const char *name;
    void (*test)(Run *run);
    const Shape *shapes;                  // the last one is all 0
    const char *variants[MOST_VARIANTS];  // at least one
    bool fp32_only, matmul, differences;  // matmul: may run on the library; differences: there must be some
} Operation;

typedef struct {
    const Operation *operation;
    Shape shape;
    Dtype dtype;
    int variant;
    bool unaligned, other_way;  // buffers begin one element late; products the other way: oneDNN, or CUDA's own kernel
} Case;

struct Run {
    Device *device;
    Case c;
    const size_t *n;  // the case's sizes,
    Element dtype;     // type
    int variant;      // and variant
    char name[160];
    Memory memory;
    Ledger ledger;
    Buffer buffers[MOST_BUFFERS];
    void *data[MOST_BUFFERS];  // what the operation gets; buffers are in the order of its parameters
    double *arrays[MOST_ARRAYS];
    int n_buffers, n_arrays, *n_differences;
    uint64_t drawn, hash;  // numbers drawn; hash of all that was made or changed
};

static int operation_index(const Operation *operation);  // in the list of cases
static void call(Run *run);

// ---------------------------------------------------------------------------------------------------------------
// Buffers

static double element_get(Element element, const void *base, size_t i) {
    if (element == IN_INT32) return ((const int32_t *)base)[i];
    if (element == IN_FP64) return ((const double *)base)[i];
    return (double)number_get((Dtype)element, base, i);
}

static void element_put(Element element, void *base, size_t i, double x) {
    if (element == IN_INT32) ((int32_t *)base)[i] = (int32_t)x;
    else if (element == IN_FP64) ((double *)base)[i] = x;
    else number_put((Dtype)element, base, i, (float)x);
}

static double element_round(Element element, double x) {
    double stored;
    element_put(element, &stored, 0, x);
    return element_get(element, &stored, 0);
}

// n zeros, until the case ends.
static double *array(Run *run, size_t n) {
    assert_true(run->n_arrays < MOST_ARRAYS);
    double *x = (double *)calloc(n, sizeof(double));
    assert_non_null(x);
    return run->arrays[run->n_arrays++] = x;
}

// Nearly normal, standard deviation 1: the sum of four uniform numbers.
static double draw(Run *run) {
    uint64_t bits = random_bits(11, 0, run->drawn++), sum = 0;
    for (int i = 0; i < 4; i++) sum += bits >> (16 * i) & 0xffff;
    return ((double)sum / 65536 - 2) * 1.7320508075688772;
}

static Buffer *buffer(Run *run, Role role, Element element, size_t n, double spread) {
    assert_true(run->n_buffers < MOST_BUFFERS);
    Buffer *x = &run->buffers[run->n_buffers++];
    memset(x, 0, sizeof(*x));
    x->role = role;
    x->element = element;
    x->n = n;
    x->given = array(run, n);
    x->got = array(run, n);
    for (size_t i = 0; i < n && spread != 0; i++) x->given[i] = element_round(element, spread * draw(run));
    return x;
}

// The next parameter: read only. The values may be changed, to ones that the type has.
static double *given(Run *run, Element element, size_t n, double spread) {
    return buffer(run, GIVEN, element, n, spread)->given;
}

// The next parameter: made (MADE) or added to (CHANGED) by the operation; each element is the sum of this many terms.
static Buffer *made(Run *run, Role role, Element element, size_t n, size_t terms) {
    Buffer *x = buffer(run, role, element, n, role == MADE ? 0 : 1);
    x->want = array(run, n);
    x->size = array(run, n);
    x->terms = (double)terms;
    for (size_t i = 0; i < n && role == CHANGED; i++) {
        x->want[i] = x->given[i];
        x->size[i] = fabs(x->given[i]);
    }
    return x;
}

// Adds a term to what an element has to be.
static void term(Buffer *x, size_t i, double value, double size) {
    x->want[i] += value;
    x->size[i] += size;
}

static void want(Buffer *x, size_t i, double value, double size) {
    x->want[i] = value;
    x->size[i] = size;
}

static void fill_words(char *to, size_t n_bytes, uint16_t word) {
    for (size_t i = 0; i + 2 <= n_bytes; i += 2) memcpy(to + i, &word, 2);
}

static char *device_bytes(Device *device, size_t n_bytes) {
    void *bytes = NULL;
    if (device->real == DEVICE_CPU) bytes = aligned_alloc(64, n_bytes);
    else CUDA_ONLY(CUDA_CHECK(cudaMalloc(&bytes, n_bytes)));
    return (char *)bytes;
}

static void device_bytes_free(Device *device, char *bytes) {
    if (device->real == DEVICE_CPU) free(bytes);
    else CUDA_ONLY(CUDA_CHECK(cudaFree(bytes)));
}

static void buffer_build(Run *run, int parameter) {
    Buffer *x = &run->buffers[parameter];
    size_t size = ELEMENT_BYTES[x->element];
    x->at = GUARD_BYTES + (run->c.unaligned ? size : 0);
    x->n_bytes = size_round_up(x->at + x->n * size + GUARD_BYTES, 64);
    x->before = (char *)malloc(x->n_bytes);
    x->after = (char *)malloc(x->n_bytes);
    x->memory = device_bytes(run->device, x->n_bytes);
    assert_true(x->before && x->after && x->memory);
    fill_words(x->before, x->n_bytes, GUARD_WORD);
    if (x->role == MADE) fill_words(x->before + x->at, x->n * size, MADE_WORD);
    for (size_t i = 0; i < x->n && x->role != MADE; i++) element_put(x->element, x->before + x->at, i, x->given[i]);
    run->data[parameter] = x->memory + x->at;
}

// Guards are out of bounds for the address sanitizer too, while the operation runs.
static void buffer_upload(Run *run, Buffer *x) {
    size_t end = x->at + x->n * ELEMENT_BYTES[x->element];
    device_upload(run->device, x->memory, x->before, x->n_bytes);
    __asan_poison_memory_region(x->memory, x->at);
    __asan_poison_memory_region(x->memory + end, x->n_bytes - end);
}

// Fetches what is there now; guards, inputs and (if nothing ran) all the rest must be as they were.
static void buffer_download(Run *run, Buffer *x, bool ran) {
    size_t n_bytes = x->n * ELEMENT_BYTES[x->element], end = x->at + n_bytes;
    int parameter = (int)(x - run->buffers);
    __asan_unpoison_memory_region(x->memory, x->n_bytes);
    device_download(run->device, x->after, x->memory, x->n_bytes);
    if (memcmp(x->before, x->after, x->at) != 0) fail_msg("%s: written before parameter %d", run->name, parameter);
    if (memcmp(x->before + end, x->after + end, x->n_bytes - end) != 0) {
        fail_msg("%s: written after parameter %d", run->name, parameter);
    }
    if ((x->role == GIVEN || !ran) && memcmp(x->before + x->at, x->after + x->at, n_bytes) != 0) {
        fail_msg("%s: parameter %d was changed", run->name, parameter);
    }
    for (size_t i = 0; i < x->n; i++) x->got[i] = element_get(x->element, x->after + x->at, i);
    for (size_t b = x->at; b < end && x->role != GIVEN; b += 2) {
        uint16_t word;
        memcpy(&word, x->after + b, 2);
        run->hash = (run->hash ^ word) * 0x100000001b3ull;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// One operation on a device

// On CUDA the other way of making products is our own kernel, which serves where cuBLASLt has none.
static void products_by_own_kernel(Device *device) {
    (void)device;
#ifdef __CUDACC__
    for (size_t i = 0; i < device->matmul->n_entries; i++) device->matmul->entries[i].cuda.own_kernel = true;
#endif
}

// Plans the operation, which must not touch anything, then runs it twice between guards in the slab; the results are in
// the buffers' `got`.
static void execute(Run *run) {
    Device *device = run->device;
    DeviceKind kind = device->kind;
    char pattern[2 * GUARD_BYTES], now[2 * GUARD_BYTES] = {0}, *kept = NULL, *guard = NULL;
    uint64_t hash = 0;
    fill_words(pattern, sizeof(pattern), GUARD_WORD);
    for (int i = 0; i < run->n_buffers; i++) buffer_build(run, i);
    for (int pass = -1; pass < 2; pass++) {
        bool planned = pass < 0;
        for (int i = 0; i < run->n_buffers; i++) buffer_upload(run, &run->buffers[i]);
        device->kind = planned ? DEVICE_PLAN : kind;
        if (planned) memory_open_plan(&run->memory, device);
        if (pass == 0) {
            run->ledger = run->memory.ledger;
            if (device->matmul) matmul_create(device);
            if (run->c.other_way) products_by_own_kernel(device);
            memory_reserve(&run->memory, device, &run->ledger, ".", 0);
        }
        if (pass < 1) {
            kept = (char *)memory_keep(&run->memory, TIER_DEVICE, KIND_DATA, GUARD_BYTES, "guard");
            guard = (char *)memory_push(&run->memory, TIER_DEVICE, KIND_DATA, GUARD_BYTES, "guard");
            device_upload(device, kept, pattern, GUARD_BYTES);
            device_upload(device, guard, pattern, GUARD_BYTES);
        }
        device->bytes = 0;
        memory_begin(&run->memory, PHASE_SETUP);
        call(run);
        assert_int_equal(memory_mark(&run->memory, TIER_DEVICE), 1);  // the scratch is given back
        memory_end(&run->memory);
        assert_true(planned == (device->bytes > 0));
        device->kind = kind;
        run->hash = 0;
        for (int i = 0; i < run->n_buffers; i++) buffer_download(run, &run->buffers[i], !planned);
        if (planned) continue;
        device_download(device, now, kept, GUARD_BYTES);
        device_download(device, now + GUARD_BYTES, guard, GUARD_BYTES);
        if (memcmp(now, pattern, sizeof(now)) != 0) fail_msg("%s: written beside its scratch", run->name);
        if (pass == 1 && run->hash != hash) fail_msg("%s: other bits the second time", run->name);
        hash = run->hash;
    }
    memory_close(&run->memory);
}

// ---------------------------------------------------------------------------------------------------------------
// Comparisons, which NaN does not pass

static void check_number(const Run *run, const char *what, size_t i, double got, double wanted, double tolerance) {
    if (isnan(wanted) ? isnan(got) : isinf(wanted) ? got == wanted : fabs(got - wanted) <= tolerance) return;
    fail_msg("%s: %s [%zu] is %.9g instead of %.9g, tolerance %.3g", run->name, what, i, got, wanted, tolerance);
}

// Where nothing was added up (size 0), nothing but the rounding is allowed.
static double tolerance_of(const Buffer *x, size_t i) {
    if (x->size[i] == EXACT) return 0;
    double error = x->size[i] == 0 ? 0 : GROWTH * U32 * (x->size[i] + sqrt(x->terms) * fabs(x->want[i])) + UNDERFLOW;
    // Half of fp16's smallest number, of the result, and of every term that was stored on the way.
    if (x->element == IN_FP16) error += 0x1p-25 * sqrt(1 + x->terms);
    const double stored = x->element == IN_BF16 ? U16 : x->element == IN_FP16 ? U_FP16 : U32;
    return error + stored * (fabs(x->want[i]) + error);
}

static void check(const Run *run, int parameter) {
    const Buffer *x = &run->buffers[parameter];
    char what[32];
    snprintf(what, sizeof(what), "parameter %d", parameter);
    for (size_t i = 0; i < x->n && x->terms > 0; i++) {
        check_number(run, what, i, x->got[i], x->want[i], tolerance_of(x, i));
    }
}

// A naive forward: from x[2], x[3], ... it makes x[0], whose gradient is x[1].
typedef void (*Forward)(const size_t *n, double *const *x);

// Differences of the sum of x[0] times x[1], by each element of x[which], against the naive backward and what the
// operation made. Only in fp32 and where it takes some 10^7 operations; cost: those of one forward.
static void differences(Run *run, Forward forward, double *const *x, size_t n_out, int which, const Buffer *gradient,
                        double cost) {
    static const double AT[4] = {-2, -1, 1, 2}, WEIGHTS[4] = {1, -8, 8, -1};
    if (!run->n_differences || run->dtype != IN_FP32 || run->c.unaligned || (double)gradient->n * cost > 2e6) return;
    for (size_t i = 0; i < gradient->n; i++) {
        double before = x[which][i], difference = 0, tolerance = 1e-6 * (1 + gradient->size[i]);
        for (int k = 0; k < 4; k++) {
            x[which][i] = before + AT[k] * DIFFERENCE;
            forward(run->n, x);
            for (size_t o = 0; o < n_out; o++) difference += WEIGHTS[k] / (12 * DIFFERENCE) * x[0][o] * x[1][o];
        }
        x[which][i] = before;
        if (gradient->role == CHANGED) difference += gradient->given[i];
        check_number(run, "naive against finite differences", i, gradient->want[i], difference, tolerance);
        tolerance += tolerance_of(gradient, i);
        check_number(run, "finite differences", i, gradient->got[i], difference, tolerance);
        ++*run->n_differences;
    }
}

// Runs a case; returns the hash of all that the operation wrote. n_differences: to be counted up, or NULL for none.
static uint64_t run_case(Device *device, const Case *c, int *n_differences) {
    static Run run;
    memset(&run, 0, offsetof(Run, memory));
    run.device = device;
    run.c = *c;
    run.n = run.c.shape.n;
    run.dtype = (Element)c->dtype;
    run.variant = c->variant;
    run.n_buffers = run.n_arrays = 0;
    run.n_differences = n_differences;
    run.drawn = run.hash = 0;
    snprintf(run.name, sizeof(run.name), "%s %s, %s (%zu %zu %zu %zu %zu)%s%s, %d threads", c->operation->name,
             c->operation->variants[c->variant], number_name(c->dtype), run.n[0], run.n[1], run.n[2], run.n[3],
             run.n[4], c->unaligned ? " unaligned" : "", c->other_way ? " the other way" : "", device->threads);
    device->matmul = c->operation->matmul ? matmul_open(c->other_way && device->real == DEVICE_CPU) : NULL;
    c->operation->test(&run);
    for (int i = 0; i < run.n_buffers; i++) check(&run, i);
    if (device->matmul) matmul_close(device->matmul);
    device->matmul = NULL;
    for (int i = 0; i < run.n_buffers; i++) {
        free(run.buffers[i].before);
        free(run.buffers[i].after);
        device_bytes_free(device, run.buffers[i].memory);
    }
    for (int i = 0; i < run.n_arrays; i++) free(run.arrays[i]);
    return run.hash;
}

// ---------------------------------------------------------------------------------------------------------------
// Encoder: B, T, C, V

static const Shape ENCODER_SHAPES[] = {{{1, 1, 1, 1}},     {{2, 3, 3, 5}},   {{3, 31, 15, 19}},  {{2, 33, 48, 67}},
                                       {{1, 64, 51, 257}}, {{2, 65, 64, 19}}, {{1, 5, 768, 300}}, {{2, 3, 1030, 7}},
                                       {{1, 2, 2049, 3}},  {{1, 127, 3, 1}}, {{5, 32, 130, 4}},  {{2, 300, 40, 2}},
                                       {{3, 100, 264, 9}}, {{0}}};

// Tokens from 0 to V-1, both of which occur.
static double *given_tokens(Run *run, size_t n, size_t V) {
    double *tokens = given(run, IN_INT32, n, 0);
    for (size_t i = 0; i < n; i++) tokens[i] = (double)(random_bits(5, 0, i) % V);
    tokens[n / 2] = (double)(V - 1);
    tokens[0] = 0;
    return tokens;
}

// x: out, dout, tokens, wte, wpe
static void naive_encoder(const size_t *n, double *const *x) {
    const size_t B = n[0], T = n[1], C = n[2];
    for (size_t i = 0; i < B * T * C; i++) {
        x[0][i] = x[3][(size_t)x[2][i / C] * C + i % C] + x[4][i / C % T * C + i % C];
    }
}

static void test_encoder_forward(Run *run) {
    const size_t B = run->n[0], T = run->n[1], C = run->n[2], V = run->n[3];
    Buffer *out = made(run, MADE, run->dtype, B * T * C, 1);
    double *x[5] = {out->want, NULL, given_tokens(run, B * T, V)};
    x[3] = given(run, run->dtype, V * C, 1);
    x[4] = given(run, run->dtype, (T + 2) * C, 1);
    naive_encoder(run->n, x);
    for (size_t i = 0; i < out->n; i++) out->size[i] = fabs(out->want[i]);
    execute(run);
}

// Variants: dwpe replaced, added to.
static void test_encoder_backward(Run *run) {
    const size_t B = run->n[0], T = run->n[1], C = run->n[2], V = run->n[3];
    Buffer *dwte = made(run, CHANGED, IN_FP32, V * C, B * T);
    Buffer *dwpe = made(run, run->variant ? CHANGED : MADE, IN_FP32, (T + 2) * C, B);
    double *x[5] = {array(run, B * T * C), given(run, run->dtype, B * T * C, 1), NULL, array(run, V * C),
                    array(run, (T + 2) * C)};
    x[2] = given_tokens(run, B * T, V);
    // Positions by token, and where each token's begin.
    double *sorted = array(run, B * T + V + 1), *positions;
    size_t at = 0, n_distinct = 0;
    for (size_t v = 0; v < V; v++) {
        sorted[B * T + n_distinct] = (double)at;
        for (size_t i = 0; i < B * T; i++) {
            if (x[2][i] == (double)v) sorted[at++] = (double)i;
        }
        n_distinct += (double)at > sorted[B * T + n_distinct];
    }
    sorted[B * T + n_distinct] = (double)(B * T);
    positions = given(run, IN_INT32, B * T + n_distinct + 1, 0);
    memcpy(positions, sorted, (B * T + n_distinct + 1) * sizeof(double));
    for (size_t i = 0; i < B * T * C; i++) {
        term(dwte, (size_t)x[2][i / C] * C + i % C, x[1][i], fabs(x[1][i]));
        term(dwpe, i / C % T * C + i % C, x[1][i], fabs(x[1][i]));
    }
    execute(run);
    differences(run, naive_encoder, x, B * T * C, 3, dwte, (double)(B * T * C));
    differences(run, naive_encoder, x, B * T * C, 4, dwpe, (double)(B * T * C));
}

// ---------------------------------------------------------------------------------------------------------------
// LayerNorm: rows, C

static const Shape LAYERNORM_SHAPES[] = {{{1, 1}},    {{2, 3}},    {{31, 15}},  {{32, 48}}, {{33, 51}},
                                         {{63, 64}},  {{65, 1}},   {{97, 3}},   {{5, 768}}, {{3, 1030}},
                                         {{2, 2049}}, {{193, 16}}, {{129, 17}}, {{127, 95}}, {{9, 1600}}, {{3, 2176}},
                                         {{0}}};

// Rows of different means and spreads, and every 8th constant.
static double *given_rows(Run *run, size_t rows, size_t C) {
    double *x = given(run, run->dtype, rows * C, 1);
    for (size_t i = 0; i < rows * C; i++) {
        size_t r = i / C;
        x[i] = (r % 8 == 5 ? 0 : x[i] * (1 + (double)(r % 3))) + 5 * ((double)(r % 4) - 1.3);
        x[i] = element_round(run->dtype, x[i]);
    }
    return x;
}

// mean, 1 / sqrt(variance + epsilon) and mean of |x| of a row.
static void naive_statistics(const double *x, size_t C, double *mean, double *rstd, double *absolute) {
    double squares = 0;
    *mean = *absolute = 0;
    for (size_t c = 0; c < C; c++) {
        *mean += x[c] / (double)C;
        *absolute += fabs(x[c]) / (double)C;
    }
    for (size_t c = 0; c < C; c++) squares += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1 / sqrt(squares / (double)C + 1e-5);
}

// x: out, dout, in, w, b
static void naive_layernorm(const size_t *n, double *const *x) {
    const size_t C = n[1];
    for (size_t r = 0; r < n[0]; r++) {
        double mean, rstd, absolute;
        naive_statistics(x[2] + r * C, C, &mean, &rstd, &absolute);
        for (size_t c = 0; c < C; c++) x[0][r * C + c] = (x[2][r * C + c] - mean) * rstd * x[3][c] + x[4][c];
    }
}

// Variants: forward; recompute, from the statistics that a forward left.
static void test_layernorm_forward(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    Buffer *out = made(run, MADE, run->dtype, rows * C, 1);
    Buffer *mean = made(run, run->variant ? GIVEN : MADE, IN_FP32, rows, C);
    Buffer *rstd = made(run, run->variant ? GIVEN : MADE, IN_FP32, rows, C);
    double *x[5] = {out->want, NULL, given_rows(run, rows, C)};
    x[3] = given(run, run->dtype, C, 1);
    x[4] = given(run, run->dtype, C, 1);
    naive_layernorm(run->n, x);
    for (size_t r = 0; r < rows; r++) {
        double m, s, absolute;
        naive_statistics(x[2] + r * C, C, &m, &s, &absolute);
        double shift = GROWTH * U32 * absolute * s;  // an error of the mean adds its square to the variance
        want(mean, r, mean->given[r] = m, absolute);
        want(rstd, r, rstd->given[r] = s, s * (2 + shift * shift / U32));
        for (size_t c = 0; c < C; c++) {
            out->size[r * C + c] = fabs(x[3][c]) * s * (absolute + 4 * fabs(x[2][r * C + c] - m)) + fabs(x[4][c]);
        }
    }
    execute(run);
}

// Variants: in one visit; the two operations; in one visit, the sum in the place of b.
static void test_layernorm_residual(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    Buffer *out = made(run, MADE, run->dtype, rows * C, 1), *mean = made(run, MADE, IN_FP32, rows, C);
    Buffer *rstd = made(run, MADE, IN_FP32, rows, C);
    Buffer *apart = made(run, run->variant == 2 ? GIVEN : MADE, run->dtype, rows * C, run->variant != 2);
    double *a = given_rows(run, rows, C);
    Buffer *b = made(run, run->variant == 2 ? CHANGED : GIVEN, run->dtype, rows * C, run->variant == 2);
    Buffer *sum = run->variant == 2 ? b : apart;
    const double *w = given(run, run->dtype, C, 1), *bias = given(run, run->dtype, C, 1);
    for (size_t i = 0; i < rows * C; i++) {
        b->given[i] = element_round(run->dtype, draw(run));
        want(sum, i, element_round(run->dtype, a[i] + b->given[i]), EXACT);
    }
    for (size_t r = 0; r < rows; r++) {
        double m, s, absolute;
        naive_statistics(sum->want + r * C, C, &m, &s, &absolute);
        double shift = GROWTH * U32 * absolute * s;
        want(mean, r, m, absolute);
        want(rstd, r, s, s * (2 + shift * shift / U32));
        for (size_t c = 0; c < C; c++) {
            const double d = sum->want[r * C + c] - m;
            want(out, r * C + c, d * s * w[c] + bias[c], fabs(w[c]) * s * (absolute + 4 * fabs(d)) + fabs(bias[c]));
        }
    }
    execute(run);
}

// Variants: all replaced; dx added to; dx, dw and db added to.
static void test_layernorm_backward(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    Buffer *dx = made(run, run->variant ? CHANGED : MADE, run->dtype, rows * C, 1);
    Buffer *dw = made(run, run->variant == 2 ? CHANGED : MADE, IN_FP32, C, rows);
    Buffer *db = made(run, run->variant == 2 ? CHANGED : MADE, IN_FP32, C, rows);
    double *x[5] = {array(run, rows * C), given(run, run->dtype, rows * C, 1)};
    x[2] = given_rows(run, rows, C);
    double *mean = given(run, IN_FP32, rows, 1), *rstd = given(run, IN_FP32, rows, 1), absolute;
    x[3] = given(run, run->dtype, C, 1);
    x[4] = array(run, C);
    for (size_t r = 0; r < rows; r++) {
        const double *dy = x[1] + r * C, *in = x[2] + r * C, *w = x[3];
        double sum = 0, sum_n = 0, size = 0, size_n = 0;
        naive_statistics(in, C, &mean[r], &rstd[r], &absolute);
        mean[r] = element_round(IN_FP32, mean[r]);
        rstd[r] = element_round(IN_FP32, rstd[r]);
        for (size_t c = 0; c < C; c++) {
            double dn = dy[c] * w[c] / (double)C, normal = (in[c] - mean[r]) * rstd[r];
            sum += dn;
            size += fabs(dn);
            sum_n += dn * normal;
            size_n += fabs(dn * normal);
            term(dw, c, dy[c] * normal, fabs(dy[c] * normal));
            term(db, c, dy[c], fabs(dy[c]));
        }
        for (size_t c = 0; c < C; c++) {  // the last addend: finite differences do not see how the mean was rounded
            double dn = dy[c] * w[c], normal = (in[c] - mean[r]) * rstd[r];
            term(dx, r * C + c, rstd[r] * (dn - sum - normal * sum_n),
                 rstd[r] * (fabs(dn) + size + fabs(normal) * size_n) +
                     rstd[r] * rstd[r] * fabs(mean[r]) * (size_n + fabs(normal) * size));
        }
    }
    execute(run);
    differences(run, naive_layernorm, x, rows * C, 2, dx, (double)(rows * C));
    differences(run, naive_layernorm, x, rows * C, 3, dw, (double)(rows * C));
    differences(run, naive_layernorm, x, rows * C, 4, db, (double)(rows * C));
}

// ---------------------------------------------------------------------------------------------------------------
// Element by element: n

static const Shape ELEMENT_SHAPES[] = {{{1}},  {{2}},  {{3}},    {{7}},    {{8}},    {{15}},   {{16}},
                                       {{17}}, {{33}}, {{1023}}, {{1024}}, {{1025}}, {{2049}}, {{5000}}, {{0}}};

// The output of `in_place` 0; otherwise it is the input of that number, and parameter 0 is not used.
static Buffer *made_in_place(Run *run, int in_place, int parameter, size_t n) {
    bool is_here = in_place == parameter;
    return made(run, is_here ? parameter ? CHANGED : MADE : GIVEN, run->dtype, n, is_here ? 1 : 0);
}

// Variants: apart; out is a; out is b.
static void test_residual(Run *run) {
    Buffer *p[3];
    for (int i = 0; i < 3; i++) p[i] = made_in_place(run, run->variant, i, run->n[0]);
    for (size_t i = 0; i < run->n[0]; i++) {
        double a = i % 5 == 4 ? 0 : draw(run), b = draw(run);
        p[1]->given[i] = element_round(run->dtype, a);
        p[2]->given[i] = element_round(run->dtype, b);
        want(p[run->variant], i, p[1]->given[i] + p[2]->given[i], fabs(p[1]->given[i] + p[2]->given[i]));
    }
    execute(run);
}

static double naive_gelu_u(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }

// x: out, dout, in
static void naive_gelu(const size_t *n, double *const *x) {
    for (size_t i = 0; i < n[0]; i++) x[0][i] = x[2][i] / (1 + exp(-2 * naive_gelu_u(x[2][i])));
}

// Also where tanh does not change any more.
static double *given_gelu(Run *run) {
    static const double SPECIAL[] = {0, -0.0, 1e-30, -1e-30, 10, -10, 1e18, -1e18, 1e20, -1e20, 5.5, -5.5, 1, -1, 3e-5};
    double *x = given(run, run->dtype, run->n[0], 2);
    for (size_t i = 0; i < sizeof(SPECIAL) / sizeof(SPECIAL[0]) && run->n[0] > 16; i++) {
        x[i] = element_round(run->dtype, run->dtype == IN_FP16 ? fmax(-6e4, fmin(6e4, SPECIAL[i])) : SPECIAL[i]);
    }
    return x;
}

static void test_gelu_forward(Run *run) {
    Buffer *out = made(run, MADE, run->dtype, run->n[0], 1);
    double *x[3] = {out->want, NULL, given_gelu(run)};
    naive_gelu(run->n, x);
    for (size_t i = 0; i < run->n[0]; i++) {
        const double exponent = fmin(fabs(2 * naive_gelu_u(x[2][i])), 88);  // its absolute error is exp's relative one
        out->size[i] = fabs(out->want[i]) * (1 + exponent) + 1e-29;         // exp saturates
    }
    execute(run);
}

// Variants: apart; dx is dy.
static void test_gelu_backward(Run *run) {
    Buffer *made_apart = made_in_place(run, run->variant, 0, run->n[0]);
    Buffer *dy = made_in_place(run, run->variant, 1, run->n[0]), *dx = run->variant ? dy : made_apart;
    double *x[3] = {array(run, run->n[0]), dy->given, given_gelu(run)};
    for (size_t i = 0; i < run->n[0]; i++) {
        double in = x[2][i], t = tanh(naive_gelu_u(in)), slope = 0.79788456080286535588 * (1 + 3 * 0.044715 * in * in);
        dy->given[i] = element_round(run->dtype, draw(run));
        want(dx, i, dy->given[i] * ((1 + t) / 2 + in / 2 * (1 - t * t) * slope),  // 1 - t^2 is as good as t, ...
             fabs(dy->given[i]) * (1 + (fabs(in) < 6 ? 2 * fabs(in) * slope : 0)));  // and 0 where t is rounded to 1
    }
    execute(run);
    if (run->variant == 0 && run->n[0] < 17) differences(run, naive_gelu, x, run->n[0], 2, dx, 1);
}

// dx in the place of dy, (rows, C), and the sums of its columns as it was stored. Variants: replaced, added to; the two
// operations.
static void test_gelu_backward_bias(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    Buffer *dx = made(run, CHANGED, run->dtype, rows * C, 1);
    Buffer *dbias = made(run, run->variant == 1 ? CHANGED : MADE, IN_FP32, C, rows);
    const double *x = given(run, run->dtype, rows * C, 2);
    for (size_t i = 0; i < rows * C; i++) {
        double t = tanh(naive_gelu_u(x[i])), slope = 0.79788456080286535588 * (1 + 3 * 0.044715 * x[i] * x[i]);
        want(dx, i, dx->given[i] * ((1 + t) / 2 + x[i] / 2 * (1 - t * t) * slope),
             fabs(dx->given[i]) * (1 + (fabs(x[i]) < 6 ? 2 * fabs(x[i]) * slope : 0)));
    }
    execute(run);
    for (size_t i = 0; i < rows * C; i++) term(dbias, i % C, dx->got[i], fabs(dx->got[i]));
}

// Variants: zero, upload, download.
static void test_device(Run *run) {
    Buffer *to = made(run, MADE, run->dtype, run->n[0], 1);
    const double *from = given(run, run->dtype, run->n[0], 1);
    for (size_t i = 0; i < run->n[0]; i++) want(to, i, run->variant ? from[i] : 0, EXACT);
    execute(run);
}

// ---------------------------------------------------------------------------------------------------------------
// Classifier: rows, V, Vp

static const Shape CLASSIFIER_SHAPES[] = {
    {{1, 1, 128}},   {{1, 1, 1}},     {{3, 19, 128}},    {{5, 19, 19}},     {{31, 67, 128}},   {{33, 257, 384}},
    {{2, 300, 384}}, {{3, 300, 300}}, {{7, 1025, 1152}}, {{2, 1025, 1025}}, {{2, 2049, 2176}}, {{65, 16, 16}}, {{0}}};

static double naive_log_sum(const double *logits, size_t V) {
    double top = -INFINITY, sum = 0;
    for (size_t v = 0; v < V; v++) top = fmax(top, logits[v]);
    for (size_t v = 0; v < V; v++) sum += exp(logits[v] - top);
    return top + log(sum);
}

// x: losses, their gradients (scale), logits, targets
static void naive_classifier(const size_t *n, double *const *x) {
    for (size_t r = 0; r < n[0]; r++) {
        const double *logits = x[2] + r * n[2];
        x[0][r] = x[3][r] < 0 ? 0 : naive_log_sum(logits, n[1]) - logits[(size_t)x[3][r]];
    }
}

// Variants: losses; losses and gradient. Padding, and every 5th row, which has no target, are NaN: not read.
static void test_classifier(Run *run) {
    const size_t rows = run->n[0], V = run->n[1], Vp = run->n[2];
    const double scale = (double)(1.0f / (float)rows);
    Buffer *losses = made(run, MADE, IN_FP32, rows, 1);
    Buffer *dlogits = buffer(run, run->variant ? CHANGED : GIVEN, run->dtype, rows * Vp, 3);
    double *x[4] = {losses->want, array(run, rows), dlogits->given, given_tokens(run, rows, V)};
    dlogits->want = array(run, rows * Vp);
    dlogits->size = array(run, rows * Vp);
    dlogits->terms = run->variant;
    for (size_t r = 0; r < rows; r++) {
        double *logits = x[2] + r * Vp;
        if (r % 5 == 4) x[3][r] = -1;
        for (size_t v = x[3][r] < 0 ? 0 : V; v < Vp; v++) logits[v] = NAN;
        if (x[3][r] < 0) continue;
        double log_sum = naive_log_sum(logits, V), hit = logits[(size_t)x[3][r]], top = logits[0];
        for (size_t v = 1; v < V; v++) top = fmax(top, logits[v]);
        x[1][r] = scale;
        want(losses, r, log_sum - hit, 4 + (top - hit) + (log_sum - top));
        for (size_t v = 0; v < V; v++) {  // exp(x - top - ...): an error of that difference becomes a relative one
            double p = scale * exp(logits[v] - log_sum);
            want(dlogits, r * Vp + v, p, p * (4 + (top - logits[v]) + (log_sum - top)));
        }
        term(dlogits, r * Vp + (size_t)x[3][r], -scale, scale);
    }
    execute(run);
    x[0] = array(run, rows);
    dlogits->role = MADE;  // for differences(): not added to
    if (run->variant) differences(run, naive_classifier, x, rows, 2, dlogits, (double)(rows * V * 20));
}

// ---------------------------------------------------------------------------------------------------------------
// Products: rows, IC, OC; the last ones are cut in all directions (MATMUL_M, MATMUL_N, MATMUL_K)

static const Shape MATMUL_SHAPES[] = {
    {{1, 1, 1}},      {{1, 5, 6}},       {{5, 6, 7}},     {{7, 1, 15}},     {{6, 15, 1}},    {{15, 16, 17}},
    {{16, 17, 48}},   {{17, 48, 16}},    {{48, 7, 97}},   {{97, 97, 5}},    {{1, 385, 257}}, {{193, 191, 193}},
    {{192, 192, 17}}, {{191, 5, 192}},   {{5, 257, 385}}, {{255, 48, 191}}, {{256, 256, 48}}, {{257, 255, 97}},
    {{385, 17, 256}}, {{48, 256, 255}},  {{385, 193, 7}}, {{3, 768, 1030}}, {{600, 3, 800}}, {{513, 130, 65}},
    {{1030, 9, 1030}}, {{9, 1030, 1030}}, {{1030, 1030, 9}}, {{0}}};

// Adds a . b to c (M,N), and |a| . |b| to size; a(i,k) is a[i a_i + k a_k], b(k,j) is b[k b_k + j b_j].
static void naive_product(double *c, double *size, size_t M, size_t N, size_t K, const double *a, size_t a_i,
                          size_t a_k, const double *b, size_t b_k, size_t b_j) {
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++) {
            double sum = 0, absolute = 0;
            for (size_t k = 0; k < K; k++) {
                double product = a[i * a_i + k * a_k] * b[k * b_k + j * b_j];
                sum += product;
                absolute += fabs(product);
            }
            c[i * N + j] += sum;
            size[i * N + j] += absolute;
        }
    }
}

// x: out, dout, in, weight, bias, out's size
static void naive_matmul(const size_t *n, double *const *x) {
    for (size_t i = 0; i < n[0] * n[2]; i++) {
        x[0][i] = x[4][i % n[2]];
        x[5][i] = fabs(x[0][i]);
    }
    naive_product(x[0], x[5], n[0], n[2], n[1], x[2], n[1], 1, x[3], 1, n[1]);
}

// Forward: without and with bias. Backward, of input, weight and bias: replaced, added to. The parameters are what is
// made and then, in this order, what is given of x.
static void test_matmul(Run *run) {
    static const int MADE_IS[4] = {0, 2, 3, 4};
    static const bool IS_GIVEN[4][6] = {{0, 0, 1, 1, 1, 0}, {0, 1, 0, 1, 0, 0}, {0, 1, 1, 0, 0, 0}, {0, 1, 0, 0, 0, 0}};
    const int kind = operation_index(run->c.operation) - MATMUL_FORWARD;
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2], terms[4] = {IC, OC, rows, rows};
    const size_t sizes[6] = {rows * OC, rows * OC, rows * IC, OC * IC, OC, rows * OC};
    Buffer *y = made(run, kind > 1 && run->variant ? CHANGED : MADE, kind > 1 ? IN_FP32 : run->dtype,
                     sizes[MADE_IS[kind]], terms[kind]);
    double *x[6];
    for (int i = 0; i < 6; i++) {
        x[i] = IS_GIVEN[kind][i] ? given(run, run->dtype, sizes[i], i == 4 ? run->variant : 1) : array(run, sizes[i]);
    }
    if (kind == 0) {
        double *const wanted[6] = {y->want, NULL, x[2], x[3], x[4], y->size};
        naive_matmul(run->n, wanted);
    }
    if (kind == 1) naive_product(y->want, y->size, rows, IC, OC, x[1], OC, 1, x[3], IC, 1);
    if (kind == 2) naive_product(y->want, y->size, OC, IC, rows, x[1], 1, OC, x[2], IC, 1);
    for (size_t i = 0; i < rows * OC && kind == 3; i++) term(y, i % OC, x[1][i], fabs(x[1][i]));
    execute(run);
    if (kind > 0) differences(run, naive_matmul, x, rows * OC, MADE_IS[kind], y, (double)(rows * IC * OC));
}

// ---------------------------------------------------------------------------------------------------------------
// Attention: B, T, NH, HS, spread of the inputs (1 if 0)

static const Shape ATTENTION_SHAPES[] = {
    {{1, 1, 1, 1}},   {{2, 2, 1, 5}},   {{1, 5, 2, 3}},       {{1, 99, 1, 1}},      {{1, 31, 3, 8}},
    {{2, 32, 2, 16}}, {{1, 33, 2, 17}}, {{1, 63, 1, 20}},     {{1, 65, 1, 64}},     {{1, 96, 1, 80}},
    {{1, 97, 2, 16}}, {{2, 64, 2, 40}}, {{1, 95, 2, 5, 4}},   {{1, 193, 1, 96}},    {{2, 127, 1, 1}},
    {{1, 7, 3, 128}}, {{1, 288, 1, 16}}, {{1, 193, 3, 17, 8}}, {{1, 129, 2, 64, 2}}, {{1, 100, 1, 128}},
    {{1, 1, 1, 64}},  {{3, 33, 1, 24}}, {{1, 63, 2, 8}},      {{1, 64, 1, 64}},     {{1, 127, 1, 64, 8}},
    {{1, 128, 1, 128}}, {{1, 129, 1, 96}}, {{1, 193, 1, 80}}, {{1, 257, 1, 64}},    {{1, 255, 1, 120, 4}}, {{0}}};

// Row i of head h of sequence b: p (T) its probabilities, 0 after i; their log-sum-exp; and the relative error of p in
// units of u, which is that of exp() and the absolute one of the scores.
static void naive_attention_row(const size_t *n, const double *qkv, size_t row, double *p, double *lse, double *error) {
    const size_t T = n[1], HS = n[3], C = n[2] * HS, i = row % T, b = row / T / n[2], h = row / T % n[2];
    const double *q = qkv + (b * T + i) * 3 * C + h * HS, *k = qkv + b * T * 3 * C + C + h * HS;
    double size = 0;
    for (size_t j = 0; j <= i; j++) {
        double sum = 0, absolute = 0;
        for (size_t c = 0; c < HS; c++) {
            sum += q[c] * k[j * 3 * C + c];
            absolute += fabs(q[c] * k[j * 3 * C + c]);
        }
        p[j] = sum / sqrt((double)HS);
        size = fmax(size, absolute / sqrt((double)HS) + fabs(sum));
    }
    *lse = naive_log_sum(p, i + 1);
    *error = 4 + size + fabs(*lse);
    for (size_t j = 0; j < T; j++) p[j] = j <= i ? exp(p[j] - *lse) : 0;
}

// Where channel 0 of a row's head begins in out, and, for each of q, k and v, in qkv.
static size_t attention_offset(const size_t *n, size_t row) {
    const size_t T = n[1], NH = n[2], HS = n[3];
    return (row / T / NH * T + row % T) * NH * HS + row / T % NH * HS;
}

static size_t attention_qkv_at(const size_t *n, size_t row, size_t t, size_t part) {
    const size_t T = n[1], NH = n[2], HS = n[3];
    return ((row / T / NH * T + t) * 3 + part) * NH * HS + row / T % NH * HS;
}

// On tensor cores each P, and each dS, is rounded to the storage type before it is multiplied: an error of as much of
// every term. As a factor for sizes.
static double attention_rounds(const Run *run) {
    bool rounds = run->device->real == DEVICE_CUDA && run->variant == ATTENTION_FUSED && !run->c.unaligned &&
                  attention_mma_takes(run->c.dtype, run->n[3]);
    return rounds ? U16 / U32 / GROWTH : 0;
}

// x: out, dout, qkv, out's size or NULL, the probabilities to use (rows, T) or NULL, what to add to the size's factor
static void naive_attention(const size_t *n, double *const *x) {
    const size_t T = n[1], HS = n[3];
    double own[T], lse, error;
    for (size_t row = 0; row < n[0] * n[2] * T; row++) {
        size_t at = attention_offset(n, row);
        naive_attention_row(n, x[2], row, own, &lse, &error);
        const double *p = x[4] ? x[4] + row * T : own;
        for (size_t c = 0; c < HS; c++) {
            double sum = 0, size = 0;
            for (size_t j = 0; j <= row % T; j++) {
                double product = p[j] * x[2][attention_qkv_at(n, row, j, 2) + c];
                sum += product;
                size += fabs(product);
            }
            x[0][at + c] = sum;
            if (x[3]) x[3][at + c] = size * ((x[4] ? 1 : error) + *x[5]);
        }
    }
}

// The next parameter: what the forward saves, lse or P.
static Buffer *made_saved(Run *run, Role role) {
    const size_t *n = run->n, T = n[1], rows = n[0] * n[2] * T, width = run->variant == ATTENTION_PLAIN ? T : 1;
    Element element = run->variant == ATTENTION_PLAIN ? run->dtype : IN_FP32;
    const Attention attention = {(AttentionKind)run->variant, n[0], T, n[2] * n[3], n[2]};
    assert_int_equal(attention_saved_bytes(&attention, run->c.dtype), rows * width * ELEMENT_BYTES[element]);
    return made(run, role, element, rows * width, role == GIVEN ? 0 : 1);
}

static void naive_attention_saved(Run *run, Buffer *saved, const double *qkv) {
    const size_t T = run->n[1], rows = run->n[0] * run->n[2] * T;
    double p[T], lse, error;
    for (size_t row = 0; row < rows; row++) {
        naive_attention_row(run->n, qkv, row, p, &lse, &error);
        if (run->variant == ATTENTION_FUSED) want(saved, row, lse, error);
        for (size_t j = 0; j < T && run->variant == ATTENTION_PLAIN; j++) want(saved, row * T + j, p[j], p[j] * error);
    }
    for (size_t i = 0; i < saved->n; i++) saved->given[i] = element_round(saved->element, saved->want[i]);
}

static size_t attention_outputs(const size_t *n) { return n[0] * n[1] * n[2] * n[3]; }

// Variants: fused; plain, whose out has to be the product of P as it was stored.
static void test_attention_forward(Run *run) {
    Buffer *out = made(run, MADE, run->dtype, attention_outputs(run->n), run->n[1]), *saved = made_saved(run, MADE);
    double *qkv = given(run, run->dtype, 3 * out->n, run->n[4] ? (double)run->n[4] : 1);
    naive_attention_saved(run, saved, qkv);
    execute(run);
    double rounds = attention_rounds(run);
    double *x[6] = {out->want, NULL, qkv, out->size, run->variant == ATTENTION_PLAIN ? saved->got : NULL, &rounds};
    naive_attention(run->n, x);
}

// One row of the backward from the rounded inputs that the operation gets.
static void naive_attention_backward_row(Run *run, Buffer *dqkv, double *const *x, const double *saved, size_t row) {
    const size_t *n = run->n, T = n[1], HS = n[3], q = attention_qkv_at(n, row, row % T, 0);
    const double scale = 1 / sqrt((double)HS), *qkv = x[2], *dout = x[1] + attention_offset(n, row);
    const double rounds = attention_rounds(run);
    double p[T], lse, error, d = 0, d_size = 0;
    naive_attention_row(n, qkv, row, p, &lse, &error);
    for (size_t c = 0; c < HS; c++) {
        d += dout[c] * x[0][attention_offset(n, row) + c];
        d_size += fabs(dout[c] * x[0][attention_offset(n, row) + c]);
    }
    for (size_t j = 0; j <= row % T; j++) {
        size_t k = attention_qkv_at(n, row, j, 1), v = attention_qkv_at(n, row, j, 2);
        double pj = p[j] * exp(lse - saved[row]), dp = 0, size = d_size + sqrt((double)HS) * fabs(d);
        if (run->variant == ATTENTION_PLAIN) pj = saved[row * T + j], error = 1;
        for (size_t c = 0; c < HS; c++) {
            dp += dout[c] * qkv[v + c];
            size += fabs(dout[c] * qkv[v + c]);
        }
        double ds = scale * pj * (dp - d);
        size = scale * pj * ((error + rounds) * fabs(dp - d) + size + sqrt((double)HS) * fabs(dp));
        for (size_t c = 0; c < HS; c++) {
            term(dqkv, q + c, ds * qkv[k + c], size * fabs(qkv[k + c]));
            term(dqkv, k + c, ds * qkv[q + c], size * fabs(qkv[q + c]));
            term(dqkv, v + c, pj * dout[c], (error + rounds) * fabs(pj * dout[c]));
        }
    }
}

// Variants: fused, plain.
static void test_attention_backward(Run *run) {
    const size_t *n = run->n, n_out = attention_outputs(n);
    Buffer *dqkv = made(run, MADE, run->dtype, 3 * n_out, n[1]);
    double *dout = given(run, run->dtype, n_out, 1), *qkv = given(run, run->dtype, 3 * n_out, n[4] ? (double)n[4] : 1);
    double *x[5] = {given(run, run->dtype, n_out, 1), dout, qkv, NULL, NULL};
    Buffer *saved = made_saved(run, GIVEN);
    naive_attention(n, x);
    for (size_t i = 0; i < n_out; i++) x[0][i] = element_round(run->dtype, x[0][i]);
    naive_attention_saved(run, saved, qkv);
    for (size_t row = 0; row < n[0] * n[1] * n[2]; row++) {
        naive_attention_backward_row(run, dqkv, x, saved->given, row);
    }
    execute(run);
    x[0] = array(run, n_out);
    differences(run, naive_attention, x, n_out, 2, dqkv, (double)(n[1] * n_out) / 2);
}

// ---------------------------------------------------------------------------------------------------------------
// The optimizer: norm (chunks), AdamW (n, n_decay)

static const Shape NORM_SHAPES[] = {{{1}}, {{2}}, {{3}}, {{17}}, {{0}}};

// Exactly: there is one order. Partial sum l adds the squares of elements l, l + 256, ..., then halves are added.
static void test_norm_chunks(Run *run) {
    Buffer *sums = made(run, MADE, IN_FP64, run->n[0], NORM_CHUNK);
    const double *g = given(run, IN_FP32, run->n[0] * NORM_CHUNK, 1);
    for (size_t i = 0; i < run->n[0]; i++, g += NORM_CHUNK) {
        double partials[256] = {0};
        for (size_t e = 0; e < NORM_CHUNK; e++) partials[e % 256] = fma(g[e], g[e], partials[e % 256]);
        for (size_t width = 128; width > 0; width /= 2) {
            for (size_t l = 0; l < width; l++) partials[l] += partials[l + width];
        }
        want(sums, i, partials[0], EXACT);
    }
    execute(run);
}

static const Shape ADAMW_SHAPES[] = {{{1, 1}},       {{1023, 1023}}, {{1024, 1}},    {{1025, 1024}}, {{2049, 1025}},
                                     {{4095, 0}},    {{4096, 2000}}, {{4097, 4097}}, {{0}}};
static const float ADAMW_LR = 3e-3f, ADAMW_DECAY = 0.1f, ADAMW_SCALE = 0.37f;
enum { ADAMW_T = 3 };

static double naive_flush(double x) { return fabs(x) < (double)FLT_MIN ? 0 : x; }

// Variants: applied; skipped, when nothing may change. Every 7th and 11th element has gradients and moments that are
// zero or so small that the new moments are.
static void test_adamw(Run *run) {
    const size_t n = run->n[0], n_decay = run->n[1];
    const bool fp32 = run->dtype == IN_FP32;
    const Role role = run->variant ? GIVEN : CHANGED;
    const size_t terms = run->variant ? 0 : 1;
    Buffer *weights = made(run, role == CHANGED && !fp32 ? MADE : role, run->dtype, n, terms);
    Buffer *master = made(run, fp32 ? GIVEN : role, IN_FP32, n, fp32 ? 0 : terms), *w = fp32 ? weights : master;
    Buffer *m = made(run, role, IN_FP32, n, terms), *v = made(run, role, IN_FP32, n, terms);
    double *g = given(run, IN_FP32, n, 1);
    const double b1 = (double)0.9f, b2 = (double)0.95f, lr = (double)ADAMW_LR;
    for (size_t i = 0; i < n; i++) {
        v->given[i] = element_round(IN_FP32, 0.01 * v->given[i] * v->given[i]);
        if (i % 7 == 6) m->given[i] = v->given[i] = g[i] = 0;
        if (i % 11 == 10) {
            m->given[i] = v->given[i] = element_round(IN_FP32, 1e-38);
            g[i] = element_round(IN_FP32, 1e-25);
        }
        double gradient = g[i] * (double)ADAMW_SCALE, decay = i < n_decay ? (double)ADAMW_DECAY : 0;
        double new_m = naive_flush(b1 * m->given[i] + (1 - b1) * gradient);
        double new_v = naive_flush(b2 * v->given[i] + (1 - b2) * gradient * gradient);
        double m_size = b1 * fabs(m->given[i]) + (1 - b1) * fabs(gradient);
        double step = 1 / (1 - pow(b1, ADAMW_T)) / (sqrt(new_v / (1 - pow(b2, ADAMW_T))) + 1e-8);
        want(m, i, new_m, new_m == 0 ? 0 : m_size);
        want(v, i, new_v, new_v);
        want(w, i, w->given[i] - lr * (new_m * step + decay * w->given[i]),
             fabs(w->given[i]) + lr * (2 * m_size * step + fabs(w->given[i])));
    }
    execute(run);
    for (size_t i = 0; i < n && !fp32; i++) want(weights, i, element_round(run->dtype, master->got[i]), EXACT);
}

// ---------------------------------------------------------------------------------------------------------------
// The list of cases

static const Operation operations[OPERATIONS] = {
    {"encoder_forward", test_encoder_forward, ENCODER_SHAPES, {""}, false, false, false},
    {"encoder_backward", test_encoder_backward, ENCODER_SHAPES, {"replace", "add"}, false, false, true},
    {"layernorm_forward", test_layernorm_forward, LAYERNORM_SHAPES, {"", "recompute"}, false, false, false},
    {"layernorm_residual", test_layernorm_residual, LAYERNORM_SHAPES, {"", "apart", "sum is b"}, false, false, false},
    {"layernorm_backward", test_layernorm_backward, LAYERNORM_SHAPES, {"replace", "add dx", "add"}, false, false, true},
    {"residual_forward", test_residual, ELEMENT_SHAPES, {"apart", "out is a", "out is b"}, false, false, false},
    {"gelu_forward", test_gelu_forward, ELEMENT_SHAPES, {""}, false, false, false},
    {"gelu_backward", test_gelu_backward, ELEMENT_SHAPES, {"apart", "dx is dy"}, false, false, true},
    {"gelu_backward_bias", test_gelu_backward_bias, LAYERNORM_SHAPES, {"replace", "add", "apart"}, false, false, false},
    {"classifier", test_classifier, CLASSIFIER_SHAPES, {"losses", "gradient"}, false, false, true},
    {"matmul_forward", test_matmul, MATMUL_SHAPES, {"", "bias"}, false, true, false},
    {"matmul_backward_input", test_matmul, MATMUL_SHAPES, {""}, false, true, true},
    {"matmul_backward_weight", test_matmul, MATMUL_SHAPES, {"replace", "add"}, false, true, true},
    {"bias_backward", test_matmul, MATMUL_SHAPES, {"replace", "add"}, false, false, true},
    {"attention_forward", test_attention_forward, ATTENTION_SHAPES, {"fused", "plain"}, false, false, false},
    {"attention_backward", test_attention_backward, ATTENTION_SHAPES, {"fused", "plain"}, false, false, true},
    {"norm_chunks", test_norm_chunks, NORM_SHAPES, {""}, true, false, false},
    {"adamw", test_adamw, ADAMW_SHAPES, {"", "skipped"}, false, false, false},
    {"device_copies", test_device, ELEMENT_SHAPES, {"zero", "upload", "download"}, false, false, false},
};

static int operation_index(const Operation *operation) { return (int)(operation - operations); }

// A pointer that C++, too, turns into any other.
#ifdef __cplusplus
struct Any {
    void *pointer;
    template <typename T> operator T *() const { return (T *)pointer; }
};
#define ANY(pointer) Any{pointer}
#else
typedef void *Any;
#define ANY(pointer) (pointer)
#endif

// The operation of a case, on the buffers that its test gave and made.
static void call(Run *run) {
    Device *d = run->device;
    const Dtype dtype = run->c.dtype;
    const Context context = {d, &run->memory, dtype};
    const size_t *n = run->n, n_bytes = n[0] * number_size(dtype);
    const int v = run->variant;
    Any p[MOST_BUFFERS];
    for (int i = 0; i < MOST_BUFFERS; i++) p[i] = ANY(run->data[i]);
    switch (operation_index(run->c.operation)) {
    case ENCODER_FORWARD: encoder_forward(&context, p[0], p[1], p[2], p[3], n[0], n[1], n[2]); break;
    case ENCODER_BACKWARD: {
        const EncoderTokens tokens = {p[3], p[4], run->buffers[4].n - n[0] * n[1] - 1, n[0], n[1]};
        encoder_backward(&context, p[0], p[1], p[2], &tokens, n[1] + 2, n[2], v);
        break;
    }
    case LAYERNORM_FORWARD: {
        const LayerNorm ln = {p[4], p[5], p[1], p[2], n[0], n[1]};
        if (v) layernorm_recompute(&context, p[0], p[3], &ln);
        else layernorm_forward(&context, p[0], p[3], &ln);
        break;
    }
    case LAYERNORM_RESIDUAL: {
        const LayerNorm ln = {p[6], p[7], p[1], p[2], n[0], n[1]};
        if (v == 1) residual_forward(&context, p[3], p[4], p[5], n[0] * n[1]);
        if (v == 1) layernorm_forward(&context, p[0], p[3], &ln);
        else layernorm_forward_residual(&context, p[0], v ? p[5] : p[3], p[4], p[5], &ln);
        break;
    }
    case LAYERNORM_BACKWARD: {
        const LayerNorm ln = {p[7], NULL, p[5], p[6], n[0], n[1]};
        const LayerNormGradients gradients = {p[1], p[2], v > 1};
        layernorm_backward(&context, p[0], &gradients, p[3], p[4], &ln, v > 0);
        break;
    }
    case RESIDUAL_FORWARD: residual_forward(&context, p[v], p[1], p[2], n[0]); break;
    case GELU_FORWARD: gelu_forward(&context, p[0], p[1], n[0]); break;
    case GELU_BACKWARD: gelu_backward(&context, p[v], p[1], p[2], n[0]); break;
    case GELU_BACKWARD_BIAS:
        if (v == 2) gelu_backward(&context, p[0], p[0], p[2], n[0] * n[1]);
        if (v == 2) bias_backward(&context, p[1], p[0], n[0], n[1], false);
        else gelu_backward_bias(&context, p[0], p[1], p[0], p[2], n[0], n[1], v == 1);
        break;
    case CLASSIFIER: {
        const Classifier c = {p[0], p[1], p[2], n[0], n[1], n[2]};
        if (v) classifier_forward_backward(&context, &c, 1.0f / (float)n[0]);
        else classifier_forward(&context, &c);
        break;
    }
    case MATMUL_FORWARD: matmul_forward(&context, p[0], p[1], p[2], v ? p[3] : ANY(NULL), n[0], n[1], n[2]); break;
    case MATMUL_INPUT: matmul_backward_input(&context, p[0], p[1], p[2], n[0], n[1], n[2]); break;
    case MATMUL_WEIGHT: matmul_backward_weight(&context, p[0], p[1], p[2], n[0], n[1], n[2], v); break;
    case MATMUL_BIAS: bias_backward(&context, p[0], p[1], n[0], n[2], v); break;
    case ATTENTION_FORWARD: {
        const Attention attention = {(AttentionKind)v, n[0], n[1], n[2] * n[3], n[2]};
        attention_forward(&context, &attention, p[0], p[1], p[2]);
        break;
    }
    case ATTENTION_BACKWARD: {
        const Attention attention = {(AttentionKind)v, n[0], n[1], n[2] * n[3], n[2]};
        attention_backward(&context, &attention, p[0], p[1], p[2], p[3], p[4]);
        break;
    }
    case NORM_CHUNKS: norm_chunks(d, QUEUE_COMPUTE, p[0], p[1], n[0] * NORM_CHUNK); break;
    case ADAMW: {
        const AdamW step = adamw_step(ADAMW_LR, ADAMW_DECAY, ADAMW_T, ADAMW_SCALE, v == 0);
        const AdamWOperands of = {p[0], dtype == FP32 ? ANY(NULL) : p[1], p[2], p[3], p[4], n[0], n[1]};
        adamw(d, &step, dtype, &of);
        break;
    }
    case DEVICE:
        if (v == 0) device_zero(d, p[0], n_bytes);
        if (v == 1) device_upload(d, p[0], run->buffers[1].before + run->buffers[1].at, n_bytes);
        if (v == 2) {  // by way of the host
            device_download(d, run->buffers[0].after, p[1], n_bytes);
            device_upload(d, p[0], run->buffers[0].after, n_bytes);
        }
        break;
    default: fail_msg("no operation");
    }
}

static Device cpu_device(int threads) {
    Device device;
    memset(&device, 0, sizeof(device));
    device.kind = device.real = DEVICE_CPU;
    device.threads = threads;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    return device;
}

// All cases of an operation; every third shape also with buffers that are not aligned.
static void run_operation(Device *device, const Operation *operation) {
    int n_differences = 0;
    for (int s = 0; operation->shapes[s].n[0] > 0; s++) {
        for (int i = 0; i < 4 * DTYPES * MOST_VARIANTS; i++) {
            const Dtype dtype = (Dtype)(i / 4 % DTYPES);
            Case c = {operation, operation->shapes[s], dtype, i / (4 * DTYPES), (i & 1) != 0, (i & 2) != 0};
            if (!operation->variants[c.variant] || (c.unaligned && s % 3 != 1)) continue;
            bool other_way = operation->matmul && (USE_ONEDNN || device->real == DEVICE_CUDA);
            if ((operation->fp32_only && c.dtype != FP32) || (c.other_way && !other_way)) continue;
            // A thread per element is slow on the emulator, and knows no tiles: small shapes show all of it.
            size_t products = c.shape.n[0] * c.shape.n[1] * c.shape.n[2];
            if (device->real == DEVICE_CUDA && c.other_way && products > 1 << 17) continue;
            // Nor do the simple kernels of attention, which are slow too.
            bool simple = operation->test == test_attention_forward || operation->test == test_attention_backward;
            simple = simple && (c.dtype == FP32 || c.variant == ATTENTION_PLAIN || c.unaligned);
            if (device->real == DEVICE_CUDA && simple && c.shape.n[1] * c.shape.n[1] * c.shape.n[3] > 1 << 21) continue;
            run_case(device, &c, &n_differences);
        }
    }
    assert_true(operation->differences == (n_differences > 0));
}

// The device under test: a GPU (or the emulator) where nvcc compiled this, else the CPU.
static Device device_under_test(void) {
    Device device = cpu_device(1);
#ifdef __CUDACC__
    static Cuda *cuda = NULL;
    if (!cuda) cuda = cuda_open(0, 1);
    device.kind = device.real = DEVICE_CUDA;
    device.cuda = cuda;
    device.compute_capability = cuda->compute_capability;
#endif
    #ifdef EMULATED
    device.observer = &EMULATOR_OBSERVER;
#endif
    return device;
}

static void test_operation(void **state) {
    Device device = device_under_test();
    run_operation(&device, (const Operation *)*state);
}

// Positions by token: each once, ascending within a token, tokens ascending, none left out.
static void test_encoder_sort(void **state) {
    (void)state;
    enum { MOST = 1000, V = 700 };
    static const size_t SIZES[][2] = {{1, 1}, {1, V}, {MOST, 1}, {MOST, 2}, {MOST, 60}, {MOST, V}, {64, V}};
    int32_t tokens[MOST], positions[2 * MOST + 2], counts[V];
    for (size_t c = 0; c < sizeof(SIZES) / sizeof(SIZES[0]); c++) {
        const size_t n = SIZES[c][0], n_tokens = SIZES[c][1];
        bool is_there[V] = {false};
        size_t want = 0, k = 0;
        for (size_t i = 0; i < n; i++) {
            tokens[i] = (int32_t)(V - 1 - random_bits(9, c, i) % n_tokens);
            want += !is_there[tokens[i]];
            is_there[tokens[i]] = true;
        }
        memset(counts, 0xee, sizeof(counts));
        memset(positions, 0xee, sizeof(positions));
        assert_int_equal(encoder_sort(positions, counts, tokens, n, V), want);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(positions[i], 0, n - 1);
            const bool begins = i == 0 || tokens[positions[i]] != tokens[positions[i - 1]];
            if (begins) assert_int_equal(positions[n + k++], i);
            if (i > 0 && begins) assert_true(tokens[positions[i - 1]] < tokens[positions[i]]);
            if (i > 0 && !begins) assert_true(positions[i - 1] < positions[i]);
        }
        assert_int_equal(k, want);
        assert_int_equal(positions[n + want], n);
        assert_int_equal((uint32_t)positions[n + want + 1], 0xeeeeeeee);
    }
}

#ifdef __CUDACC__
// Operations whose sums have one order on all devices, or that have none, give the bits of the CPU.
static void test_bits_of_the_cpu(void **state) {
    (void)state;
    static const int SAME[] = {ENCODER_FORWARD, ENCODER_BACKWARD, RESIDUAL_FORWARD, GELU_FORWARD, GELU_BACKWARD,
                               NORM_CHUNKS,     ADAMW};
    Device cpu = cpu_device(1), cuda = device_under_test();
    for (size_t i = 0; i < sizeof(SAME) / sizeof(SAME[0]); i++) {
        const Operation *o = &operations[SAME[i]];
        for (int s = 0; o->shapes[s].n[0] > 0; s++) {
            for (int j = 0; j < DTYPES * MOST_VARIANTS; j++) {
                Case c = {o, o->shapes[s], (Dtype)(j % DTYPES), j / DTYPES, false, false};
                if (!o->variants[c.variant] || (o->fp32_only && c.dtype != FP32)) continue;
                if (run_case(&cpu, &c, NULL) == run_case(&cuda, &c, NULL)) continue;
                fail_msg("%s %s, shape %d: other bits than the CPU's", o->name, o->variants[c.variant], s);
            }
        }
    }
}
#endif

// An operation that does the work of two gives their bits: variants `fused` and `apart` of its test.
static void same_bits(int operation, int fused, int apart) {
    const Operation *o = &operations[operation];
    Device device = device_under_test();
    for (int s = 0; o->shapes[s].n[0] > 0; s++) {
        for (int i = 0; i < 4; i++) {
            Case one = {o, o->shapes[s], i & 1 ? BF16 : FP32, fused, i / 2 != 0, false}, two = one;
            two.variant = apart;
            if (run_case(&device, &one, NULL) == run_case(&device, &two, NULL)) continue;
            fail_msg("%s, shape %d: other bits than the two operations", o->name, s);
        }
    }
}

static void test_fused_bits(void **state) {
    (void)state;
    same_bits(LAYERNORM_RESIDUAL, 0, 1);
    same_bits(GELU_BACKWARD_BIAS, 0, 2);
}

#ifdef __CUDACC__
// Every block of every head is somebody's, once; within a group of heads the longest walks begin first.
static void test_attention_work(void **state) {
    (void)state;
    static const uint32_t HEADS[] = {1, 2, 7, 12, 50}, GROUPS[] = {1, 3, 7, 64}, BLOCKS[] = {1, 2, 9};
    for (int c = 0; c < 5 * 4 * 3; c++) {
        const uint32_t heads = HEADS[c % 5], group = GROUPS[c / 5 % 4], n = BLOCKS[c / 20];
        bool is_taken[50 * 9] = {false};
        for (uint32_t block = 0, head, before = 0; block < heads * n; block++) {
            uint32_t nth = attention_mma_work(heads, group, n, block, &head);
            assert_true(head < heads && nth < n && !is_taken[head * n + nth]);
            assert_true(nth >= before || block % (group * n) == 0);
            is_taken[head * n + nth] = true;
            before = nth;
        }
    }
}
#endif

// The same bits from every number of threads; the math library does not promise that.
static void test_threads(void **state) {
    (void)state;
#ifdef _OPENMP
    static const int THREADS[] = {1, 2, 3, 7};
    for (const Operation *o = operations; o < operations + OPERATIONS; o++) {
        for (int s = 0; o->shapes[s].n[0] > 0; s++) {
            if (s % 6 != 5 && o->shapes[s + 1].n[0] > 0) continue;  // one in six, and the last
            for (int i = 0; i < DTYPES * MOST_VARIANTS; i++) {
                Case c = {o, o->shapes[s], (Dtype)(i % DTYPES), i / DTYPES, false, false};
                if (!o->variants[c.variant] || (o->fp32_only && c.dtype != FP32)) continue;
                uint64_t hashes[4];
                for (int t = 0; t < 4; t++) {
                    Device device = cpu_device(THREADS[t]);
                    hashes[t] = run_case(&device, &c, NULL);
                    if (hashes[t] == hashes[0]) continue;
                    fail_msg("%s %s, shape %d: other bits from %d threads", o->name, o->variants[c.variant], s,
                             THREADS[t]);
                }
            }
        }
    }
    cpu_device(1);
#else
    SKIP_AS("this was built without OpenMP");
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// What operations do with special values

// Five rows whose losses and gradients are known, three that are not a number, and two without a target. Errors: those
// of the sum's logarithm beside the largest logit, in fp32.
static void test_classifier_special(void **state) {
    (void)state;
    enum { ROWS = 10, V = 4, Vp = 5 };
    const float inf = INFINITY, ln2 = 0.693147181f;
    const float logits[ROWS][V] = {{10240, -10240, 0, 5}, {10240, -10240, 0, 5}, {-10240, -10240, -10240, -10240},
                                   {1, -inf, 1, -inf},    {1, -inf, 1, -inf},    {NAN, 0, 0, 0},
                                   {0, 0, 0, NAN},        {inf, 0, 0, 0},        {NAN, 1, 1, 1},
                                   {1, 1, inf, 1}};
    const int32_t targets[ROWS] = {0, 1, 2, 0, 1, 1, 0, 1, -1, -1};
    const float losses_known[ROWS] = {0, 20480, 2 * ln2, ln2, inf, NAN, NAN, NAN, 0, 0};
    const float gradients_known[ROWS][V] = {{0}, {0.5f, -0.5f, 0, 0}, {0.125f, 0.125f, -0.375f, 0.125f},
                                            {-0.25f, 0, 0.25f, 0}, {0.25f, -0.5f, 0.25f, 0}};
    Device device = cpu_device(1);
    for (Dtype dtype = FP32; dtype < DTYPES; dtype = (Dtype)(dtype + 1)) {
        float losses[ROWS], stored[ROWS * Vp];
        for (size_t i = 0; i < ROWS * Vp; i++) {
            element_put((Element)dtype, stored, i, i % Vp == V ? NAN : (double)logits[i / Vp][i % Vp]);
        }
        const Context context = {&device, NULL, dtype};
        const Classifier rows = {losses, stored, targets, ROWS, V, Vp};
        classifier_forward_backward(&context, &rows, 0.5f);
        for (size_t r = 0; r < ROWS; r++) {
            double tolerance = r < 5 ? 4 * U32 : 0, loss = (double)losses_known[r];
            if (isnan(loss)) assert_true(isnan(losses[r]));
            else assert_true((double)losses[r] == loss || fabs((double)losses[r] - loss) <= tolerance);
            for (size_t v = 0; v < V; v++) {
                double d = (double)number_get(dtype, stored, r * Vp + v), known = (double)gradients_known[r][v];
                const double more = dtype == FP32 ? 0 : U16 / 4;
                assert_true(isnan(loss) ? v == 0 || isnan(d) : fabs(d - known) <= tolerance + more);
            }
            assert_true(number_get(dtype, stored, r * Vp + V) == 0);
        }
    }
}

static void test_classifier_sum(void **state) {
    (void)state;
    Device device = cpu_device(1);
    static float losses[10000];
    double sum = 0, got = 0;
    for (size_t i = 0; i < 10000; i++) sum += (double)(losses[i] = (float)random_uniform(1, 2, i) * 11);
    classifier_sum(&device, &got, losses, 10000, false);
    assert_true(fabs(got - sum) <= 1e-12 * sum);  // another order of additions
    classifier_sum(&device, &got, losses, 0, true);
    assert_true(fabs(got - sum) <= 1e-12 * sum);
    classifier_sum(&device, &got, losses + 7, 1, true);
    assert_true(fabs(got - sum - (double)losses[7]) <= 1e-12 * sum);
    classifier_sum(&device, &got, losses, 0, false);
    assert_true(got == 0);
    device.kind = DEVICE_PLAN;
    classifier_sum(&device, NULL, NULL, 10000, false);
    assert_true(device.bytes == 40000);
}

// The forward again, from its own statistics, gives its bits.
static void test_layernorm_recompute(void **state) {
    (void)state;
    enum { ROWS = 3, C = 1030 };
    static float x[ROWS * C], w[C], b[C], y[2][ROWS * C], mean[ROWS], rstd[ROWS];
    Device device = cpu_device(1);
    for (Dtype dtype = FP32; dtype < DTYPES; dtype = (Dtype)(dtype + 1)) {
        for (size_t i = 0; i < ROWS * C; i++) element_put((Element)dtype, x, i, random_uniform(1, 0, i) - 0.3);
        for (size_t c = 0; c < C; c++) {
            element_put((Element)dtype, w, c, random_uniform(2, 0, c));
            element_put((Element)dtype, b, c, random_uniform(3, 0, c));
        }
        const Context context = {&device, NULL, dtype};
        const LayerNorm ln = {w, b, mean, rstd, ROWS, C};
        layernorm_forward(&context, y[0], x, &ln);
        layernorm_recompute(&context, y[1], x, &ln);
        assert_memory_equal(y[0], y[1], ROWS * C * number_size(dtype));
    }
}

// One element by one step, on the CPU.
static float adamw_one(const AdamW *step, float w, float g, float *m, float *v, size_t n_decay) {
    Device device = cpu_device(1);
    const AdamWOperands of = {&w, NULL, m, v, &g, 1, n_decay};
    adamw(&device, step, FP32, &of);
    return w;
}

static void test_adamw_special(void **state) {
    (void)state;
    const AdamW step = adamw_step(0.01f, 0.1f, 1, 1, true), skipped = adamw_step(0.01f, 0.1f, 1, NAN, false);
    float m = 0, v = 0;
    // Without a gradient there is decay and nothing else; without decay not even that.
    assert_true(fabs(adamw_one(&step, 3, 0, &m, &v, 1) - 3 * (1 - 0.01 * 0.1)) <= 3 * 2 * U32);
    assert_true(adamw_one(&step, 3, 0, &m, &v, 0) == 3 && m == 0 && v == 0);
    // The corrections make the first step lr, whatever the gradient.
    assert_true(fabsf(step.correction1 - 10) <= 10 * 0x1p-21f && fabsf(step.correction2 - 20) <= 20 * 0x1p-21f);
    for (float g = 1e-3f; g < 1e4f; g *= 10, m = v = 0) {
        assert_true(fabs(adamw_one(&step, 1, -g, &m, &v, 0) - 1.01) <= 1e-6);
    }
    AdamW late = adamw_step(0.01f, 0, 1000000, 1, true);
    assert_true(late.correction1 == 1 && late.correction2 == 1);
    // Moments that would be subnormal are zero; the smallest normal number is kept.
    const float tiny[] = {FLT_MIN, 1.06f * FLT_MIN, 1.12f * FLT_MIN, FLT_TRUE_MIN, -FLT_MIN, -1.12f * FLT_MIN};
    for (int i = 0; i < 6; i++) {
        m = tiny[i];
        v = fabsf(tiny[i]);
        adamw_one(&step, 1, 0, &m, &v, 0);
        assert_true(m == (i % 3 == 2 ? 0.9f * tiny[i] : 0) && v == (i == 1 || i % 3 == 2 ? 0.95f * fabsf(tiny[i]) : 0));
    }
    // A skipped step moves nothing, and reads no gradient.
    m = 1e-40f;
    v = 1e-41f;
    assert_true(adamw_one(&skipped, 3, NAN, &m, &v, 1) == 3 && m == 1e-40f && v == 1e-41f);
}

// Every length up to 70: whatever is left over by vectors.
static void test_adamw_lengths(void **state) {
    (void)state;
    Device device = cpu_device(1);
    for (size_t i = 0; i < 4 * 70; i++) {
        Shape shape = {{i / 4 + 1, i / 4 * (i % 3) / 2}};
        Case c = {&operations[ADAMW], shape, i % 4 < 2 ? FP32 : BF16, 0, i % 2 == 1, false};
        run_case(&device, &c, NULL);
    }
}

static void test_norm_special(void **state) {
    (void)state;
    static float g[3 * NORM_CHUNK];
    double sums[3];
    Device device = cpu_device(1);
    const struct { float fill, one; double norm; } rows[] = {
        {0, 0, 0}, {1, 1, 110.85125168440814}, {1e20f, 1e20f, (double)1e20f * 110.85125168440814},
        {FLT_MAX, FLT_MAX, (double)FLT_MAX * 110.85125168440814}, {0, FLT_TRUE_MIN, (double)FLT_TRUE_MIN},
        {1, NAN, NAN}, {1, INFINITY, INFINITY}, {1, -INFINITY, INFINITY}};
    for (size_t i = 0; i < 8; i++) {
        for (size_t e = 0; e < 3 * NORM_CHUNK; e++) g[e] = rows[i].fill;
        for (size_t at = 0; at < 3 * NORM_CHUNK; at += 4099) {  // in each chunk
            g[at] = rows[i].one;
            norm_chunks(&device, QUEUE_COMPUTE, sums, g, 3 * NORM_CHUNK);
            double norm = 0;
            norm_total(&device, &norm, sums, 3);
            norm = sqrt(norm);
            g[at] = rows[i].fill;
            if (isnan(rows[i].norm)) assert_true(isnan(norm));
            else assert_true(norm == rows[i].norm || fabs(norm / rows[i].norm - 1) <= 1e-14);
        }
    }
    device.kind = DEVICE_PLAN;
    norm_total(&device, NULL, NULL, 3);
    assert_true(device.bytes == 24);
}

// ---------------------------------------------------------------------------------------------------------------
// number.h

// Every bf16 comes back; between each and the next, to the nearest, ties to the even one. All of them: subnormal,
// infinite (beyond the largest) and NaN, which also stays NaN where it has none of its upper 16 bits. Beside 1, the
// relative error is nearly the unit roundoff, and it's nowhere larger.
static void test_bf16_rounding(void **state) {
    (void)state;
    double worst = 0;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = sign; h < sign + 0x8000; h++) {
            uint16_t back = number_to_bf16(number_from_bf16((uint16_t)h));
            if (h - sign > 0x7f80) {
                assert_true(isnan(number_from_bf16((uint16_t)h)) && back == (h | 0x40));
                assert_int_equal(number_to_bf16(number_of_bits(h << 16 | 0x1234)), h | 0x40);
                continue;
            }
            assert_int_equal(back, h);
            for (int i = 0; i < 5; i++) {
                static const uint32_t LOW[5] = {1, 0x7fff, 0x8000, 0x8001, 0xffff};
                uint16_t rounded = number_to_bf16(number_of_bits(h << 16 | LOW[i]));
                if (h - sign == 0x7f80) assert_true(isnan(number_from_bf16(rounded)));
                else assert_int_equal(rounded, h + (i > 2 || (i == 2 && h & 1)));
                double x = (double)number_of_bits(h << 16 | LOW[i]);
                double error = fabs((double)number_from_bf16(rounded) / x - 1);
                if (h - sign >= 0x80 && h - sign < 0x7f7f) worst = fmax(worst, error);
            }
        }
    }
    assert_true(worst <= U16 && worst > 0.99 * U16);
}

// Every number of fp16, and between neighbours: to the nearest, ties to even, infinity from 65520 on.
static void test_fp16_rounding(void **state) {
    (void)state;
    assert_true(number_from_fp16(0x3c00) == 1 && number_from_fp16(0x7bff) == 65504 && number_from_fp16(1) == 0x1p-24f);
    assert_true(number_from_fp16(0x0400) == 0x1p-14f);
    assert_true(number_from_fp16(0x7c00) == INFINITY);
    assert_true(number_from_fp16(0x8001) < 0);
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = sign; h < sign + 0x8000; h++) {
            float x = number_from_fp16((uint16_t)h);
            if (h - sign > 0x7c00) {
                assert_true(isnan(x) && isnan(number_from_fp16(number_to_fp16(x))));
                continue;
            }
            assert_int_equal(number_to_fp16(x), h);
            if (h - sign >= 0x7bff) continue;
            float next = number_from_fp16((uint16_t)(h + 1)), middle = (x + next) / 2;
            assert_true(fabsf(x) < fabsf(next) && (h == sign || (x < 0) == (sign > 0)));
            assert_int_equal(number_to_fp16(middle), h + (h & 1));
            assert_int_equal(number_to_fp16(nextafterf(middle, x)), h);
            assert_int_equal(number_to_fp16(nextafterf(middle, next)), h + 1);
        }
        float one = sign ? -1.0f : 1.0f;
        assert_int_equal(number_to_fp16(one * 65519.996f), sign | 0x7bff);
        assert_int_equal(number_to_fp16(one * 65520.0f), sign | 0x7c00);
        assert_int_equal(number_to_fp16(one * 1e30f), sign | 0x7c00);
        assert_int_equal(number_to_fp16(one * INFINITY), sign | 0x7c00);
        assert_int_equal(number_to_fp16(one * 1e-30f), sign);
    }
}

// The one order: partial sum i % PARTIALS, one after the other, then halves; cutting a row at a multiple of PARTIALS
// changes nothing.
static void test_lanes(void **state) {
    (void)state;
    float x[200], y[200];
    for (size_t i = 0; i < 200; i++) {
        x[i] = (float)random_uniform(1, 0, i);
        y[i] = (float)random_uniform(1, 1, i);
    }
    for (size_t n = 0; n <= 200; n++) {
        float partials[3][PARTIALS] = {{0}}, wanted[3][PARTIALS] = {{0}};
        size_t cut = n / 2 / PARTIALS * PARTIALS;
        for (size_t i = 0; i < n; i++) {
            float d = x[i] - 0.4f;
            wanted[0][i % PARTIALS] += x[i];
            wanted[1][i % PARTIALS] = fmaf(x[i], y[i], wanted[1][i % PARTIALS]);
            wanted[2][i % PARTIALS] = fmaf(d, d, wanted[2][i % PARTIALS]);
        }
        for (int part = 0; part < 2; part++) {
            size_t at = part ? cut : 0, m = part ? n - cut : cut;
            partials_add(partials[0], x + at, m);
            partials_add_products(partials[1], x + at, y + at, m);
            partials_add_squared_differences(partials[2], x + at, 0.4f, m);
        }
        assert_memory_equal(partials, wanted, sizeof(partials));
        for (int width = PARTIALS / 2; width > 0; width /= 2) {
            for (int l = 0; l < width; l++) wanted[0][l] += wanted[0][l + width];
        }
        assert_true(partials_total(partials[0]) == wanted[0][0]);
    }
}

// Within 1.5 units in the last place, over all of its range; 0 below it, finite above, NaN for NaN.
static void test_exp(void **state) {
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i <= 3000000; i++) {
        float x = -87.33654f + (float)i * (175.70654f / 3e6f);
        if (i % 3 == 0) x *= (float)exp2(-(double)(i % 31));
        double exact = exp((double)x);
        worst = fmax(worst, fabs((double)number_exp(x) - exact) / ldexp(1, ilogb(exact) - 23));
    }
    assert_true(worst <= 1.5);
    assert_true(number_exp(0) == 1 && number_exp(-0.0f) == 1 && number_exp(-FLT_TRUE_MIN) == 1);
    assert_true(number_exp(-87.337f) == 0 && number_exp(-1e30f) == 0 && number_exp(-INFINITY) == 0);
    assert_true(number_exp(89) == number_exp(INFINITY) && number_exp(89) > 2e38f && number_exp(89) <= FLT_MAX);
    assert_true(isnan(number_exp(NAN)) && isnan(number_exp(-NAN)));
}

// Within 3 units in the last place for results above 1e-38, and between 0 and 1 everywhere.
static void test_sigmoid(void **state) {
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i <= 3000000; i++) {
        float x = -87.3f + (float)i * (174.6f / 3e6f);
        if (i % 3 == 0) x *= (float)exp2(-(double)(i % 41));
        double exact = 1.0 / (1.0 + exp(-(double)x)), y = (double)number_sigmoid(x);
        worst = fmax(worst, fabs(y - exact) / ldexp(1, ilogb(exact) - 23));
        assert_true(y >= 0 && y <= 1);
    }
    assert_true(worst <= 3);
    assert_true(number_sigmoid(0) == 0.5f && number_sigmoid(INFINITY) == 1 && number_sigmoid(-INFINITY) < 1e-38f);
    assert_true(isnan(number_sigmoid(NAN)) && isnan(number_sigmoid(-NAN)));
}

// 10^6 pairs: moments within 5 standard deviations of those of independent normal numbers, also of neighbours.
static void test_normal(void **state) {
    (void)state;
    enum { N = 1000000 };
    double sum[4] = {0}, product = 0, neighbours = 0, streams = 0, before = 0, uniform = 0;
    for (uint64_t i = 0; i < N; i++) {
        float pair[2], other[2] = {0};
        random_normal_pair(7, 9, i, pair);
        if (i < N / 4) random_normal_pair(7, 10, i, other);
        for (int k = 0; k < 2; k++) {
            double x = (double)pair[k], power = 1;
            for (int p = 0; p < 4; p++) sum[p] += (power *= x);
        }
        product += (double)pair[0] * (double)pair[1];
        neighbours += (double)pair[0] * before;
        streams += (double)pair[0] * (double)other[0];
        before = (double)pair[1];
        double u = random_uniform(7, 11, i);
        assert_true(u >= 0 && u < 1);
        uniform += u;
    }
    const double moments[4] = {0, 1, 0, 3}, variances[4] = {1, 2, 15, 96};  // of x, x^2, x^3 and x^4
    for (int p = 0; p < 4; p++) {
        assert_true(fabs(sum[p] / (2.0 * N) - moments[p]) <= 5 * sqrt(variances[p] / (2.0 * N)));
    }
    const double deviation = sqrt((double)N);
    assert_true(fabs(product) <= 5 * deviation);
    assert_true(fabs(neighbours) <= 5 * deviation);
    assert_true(fabs(streams) <= 2.5 * deviation);
    assert_true(fabs(uniform / N - 0.5) <= 5 * sqrt(1 / 12.0 / N));
}

// Every index once, in an order that leaves about one where it was.
static void test_permute(void **state) {
    (void)state;
    static const uint64_t MORE[] = {500, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 300000};
    static bool is_taken[300000];
    for (uint64_t k = 1; k < 270; k++) {
        uint64_t n = k <= 257 ? k : MORE[k - 258], fixed = 0;
        memset(is_taken, 0, sizeof(is_taken));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = random_permute(k, 3, n, i);
            assert_true(at < n && !is_taken[at]);
            is_taken[at] = true;
            fixed += at == i;
        }
        assert_true(n < 20 || fixed < 10);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(random_permute(1, 1, (1ull << 40) + 1, i << 30) <= 1ull << 40);
        assert_true(random_permute(1, 1, 1000, i) < 1000);
    }
}

// An argument: the tests to run, such as 'attention_*'.
int main(int argc, char **argv) {
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(test_fused_bits),
        cmocka_unit_test(test_encoder_sort),
#ifdef __CUDACC__
        cmocka_unit_test(test_bits_of_the_cpu),
        cmocka_unit_test(test_attention_work),
#else
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_classifier_special),
        cmocka_unit_test(test_classifier_sum),
        cmocka_unit_test(test_layernorm_recompute),
        cmocka_unit_test(test_adamw_special),
        cmocka_unit_test(test_adamw_lengths),
        cmocka_unit_test(test_norm_special),
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_fp16_rounding),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_permute),
#endif
    };
    enum { OTHERS = sizeof(others) / sizeof(others[0]) };
    struct CMUnitTest tests[OPERATIONS + OTHERS];
    memset(tests, 0, sizeof(tests));
    for (int i = 0; i < OPERATIONS; i++) {
        tests[i].name = operations[i].name;
        tests[i].test_func = test_operation;
        tests[i].initial_state = (void *)(uintptr_t)&operations[i];
    }
    memcpy(tests + OPERATIONS, others, sizeof(others));
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
