// cases.h - how an operation is held against its equation in double precision: what tests/kernels/test_*.c share.
//
// A case is an operation, its sizes, a storage type and a variant; the tables of shapes and of operations in the files
// beside this one make the list. run_case() lets the operation's test draw inputs, rounded to the type they are stored
// in, runs the operation on a device between guards and compares with a naive version, written from the equation, of
// the same inputs:
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
//   u_stored  the unit roundoff of the type that the result is stored in: 2^-24, 2^-11 for fp16, or 2^-8 for bf16,
//             which have 11 and 8 significant bits (tests/test_number.c).
#ifndef CASES_H
#define CASES_H

#include "../test_helpers.h"

#ifdef EMULATED
#include "../../dev/device.h"

#include "observer.h"
#endif

#include "../../dev/context.h"
#include "../../dev/kernels/matmul.h"

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

// An operand of an operation, and what it has to be afterwards.
typedef struct {
    const char *name;  // for messages
    Element element;
    Role role;
    size_t n, n_bytes, first;       // elements; bytes with guards; the byte at which the elements begin
    double *given, *got;            // before and after, as doubles
    double *want, *size, terms;     // see above; nothing to compare with if terms is 0
    char *before, *after, *memory;  // the bytes, and where they are on the device
} Buffer;

typedef struct Run Run;

typedef struct {
    size_t n[MOST_SIZES];
} Shape;

// What is true of an operation, beyond that it makes what it should.
enum {
    FP32_ONLY = 1,
    PRODUCT = 2,      // it multiplies matrices: it may run on the library, and the other way
    DIFFERENCES = 4,  // finite differences check its naive version, in some cases at least
    ONE_ORDER = 8,    // its sums have one order on all devices, or it has none: the bits are the CPU's
};

typedef struct Case Case;

typedef struct {
    const char *name;
    void (*test)(Run *run);               // gives and makes operands, executes, says what is wanted
    const Shape *shapes;                  // the last one is all 0
    const char *variants[MOST_VARIANTS];  // at least one
    int flags;
    bool (*is_slow)(const Case *c);  // on CUDA: cases to leave out, since smaller ones show the same; NULL: none
} Operation;

struct Case {
    const Operation *operation;
    Shape shape;
    Dtype dtype;
    int variant;
    bool unaligned, other_way;  // buffers begin one element late; products the other way: oneDNN, or CUDA's own kernel
};

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
    double *arrays[MOST_ARRAYS];
    int n_buffers, n_arrays, *n_differences;
    uint64_t drawn, hash;  // numbers drawn; hash of all that was made or changed
};

// ---------------------------------------------------------------------------------------------------------------
// Buffers

static inline double element_get(Element element, const void *base, size_t i) {
    if (element == IN_INT32) return ((const int32_t *)base)[i];
    if (element == IN_FP64) return ((const double *)base)[i];
    return (double)number_get((Dtype)element, base, i);
}

static inline void element_put(Element element, void *base, size_t i, double x) {
    if (element == IN_INT32) ((int32_t *)base)[i] = (int32_t)x;
    else if (element == IN_FP64) ((double *)base)[i] = x;
    else number_put((Dtype)element, base, i, (float)x);
}

static inline double element_round(Element element, double x) {
    double stored;
    element_put(element, &stored, 0, x);
    return element_get(element, &stored, 0);
}

// n zeros, until the case ends.
static inline double *array(Run *run, size_t n) {
    assert_true(run->n_arrays < MOST_ARRAYS);
    double *x = (double *)calloc(n, sizeof(double));
    assert_non_null(x);
    return run->arrays[run->n_arrays++] = x;
}

// Nearly normal, standard deviation 1: the sum of four uniform numbers.
static inline double draw(Run *run) {
    uint64_t bits = random_bits(11, 0, run->drawn++), sum = 0;
    for (int i = 0; i < 4; i++) sum += bits >> (16 * i) & 0xffff;
    return ((double)sum / 65536 - 2) * 1.7320508075688772;
}

static inline Buffer *buffer(Run *run, const char *name, Role role, Element element, size_t n, double spread) {
    assert_true(run->n_buffers < MOST_BUFFERS);
    Buffer *x = &run->buffers[run->n_buffers++];
    memset(x, 0, sizeof(*x));
    x->name = name;
    x->role = role;
    x->element = element;
    x->n = n;
    x->given = array(run, n);
    x->got = array(run, n);
    for (size_t i = 0; i < n && spread != 0; i++) x->given[i] = element_round(element, spread * draw(run));
    return x;
}

// An operand that is only read. The values in ->given may be changed, to ones that the type has.
static inline Buffer *given(Run *run, const char *name, Element element, size_t n, double spread) {
    return buffer(run, name, GIVEN, element, n, spread);
}

// One that the operation makes (MADE) or adds to (CHANGED); each element is the sum of this many terms.
static inline Buffer *made(Run *run, const char *name, Role role, Element element, size_t n, size_t terms) {
    Buffer *x = buffer(run, name, role, element, n, role == MADE ? 0 : 1);
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
static inline void term(Buffer *x, size_t i, double value, double size) {
    x->want[i] += value;
    x->size[i] += size;
}

static inline void want(Buffer *x, size_t i, double value, double size) {
    x->want[i] = value;
    x->size[i] = size;
}

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

// Where an operand is on the device.
static inline Any data(const Buffer *x) { return ANY(x->memory + x->first); }

static inline void fill_words(char *to, size_t n_bytes, uint16_t word) {
    for (size_t i = 0; i + 2 <= n_bytes; i += 2) memcpy(to + i, &word, 2);
}

static inline char *device_bytes(Device *device, size_t n_bytes) {
    void *bytes = NULL;
    if (device->real == DEVICE_CPU) bytes = aligned_alloc(64, n_bytes);
    else CUDA_ONLY(CUDA_CHECK(cudaMalloc(&bytes, n_bytes)));
    return (char *)bytes;
}

static inline void device_bytes_free(Device *device, char *bytes) {
    if (device->real == DEVICE_CPU) free(bytes);
    else CUDA_ONLY(CUDA_CHECK(cudaFree(bytes)));
}

static inline void buffer_build(Run *run, Buffer *x) {
    size_t size = ELEMENT_BYTES[x->element];
    x->first = GUARD_BYTES + (run->c.unaligned ? size : 0);
    x->n_bytes = size_round_up(x->first + x->n * size + GUARD_BYTES, 64);
    x->before = (char *)malloc(x->n_bytes);
    x->after = (char *)malloc(x->n_bytes);
    x->memory = device_bytes(run->device, x->n_bytes);
    assert_non_null(x->before);
    assert_non_null(x->after);
    assert_non_null(x->memory);
    fill_words(x->before, x->n_bytes, GUARD_WORD);
    if (x->role == MADE) fill_words(x->before + x->first, x->n * size, MADE_WORD);
    for (size_t i = 0; i < x->n && x->role != MADE; i++) element_put(x->element, x->before + x->first, i, x->given[i]);
}

// Guards are out of bounds for the address sanitizer too, while the operation runs.
static inline void buffer_upload(Run *run, Buffer *x) {
    size_t end = x->first + x->n * ELEMENT_BYTES[x->element];
    device_upload(run->device, x->memory, x->before, x->n_bytes);
    __asan_poison_memory_region(x->memory, x->first);
    __asan_poison_memory_region(x->memory + end, x->n_bytes - end);
}

// Fetches what is there now; guards, inputs and (if nothing ran) all the rest must be as they were.
static inline void buffer_download(Run *run, Buffer *x, bool ran) {
    size_t n_bytes = x->n * ELEMENT_BYTES[x->element], end = x->first + n_bytes;
    __asan_unpoison_memory_region(x->memory, x->n_bytes);
    device_download(run->device, x->after, x->memory, x->n_bytes);
    if (memcmp(x->before, x->after, x->first) != 0) fail_msg("%s: written before %s", run->name, x->name);
    if (memcmp(x->before + end, x->after + end, x->n_bytes - end) != 0) {
        fail_msg("%s: written after %s", run->name, x->name);
    }
    if ((x->role == GIVEN || !ran) && memcmp(x->before + x->first, x->after + x->first, n_bytes) != 0) {
        fail_msg("%s: %s was changed", run->name, x->name);
    }
    for (size_t i = 0; i < x->n; i++) x->got[i] = element_get(x->element, x->after + x->first, i);
    for (size_t b = x->first; b < end && x->role != GIVEN; b += 2) {
        uint16_t word;
        memcpy(&word, x->after + b, 2);
        run->hash = (run->hash ^ word) * 0x100000001b3ull;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// One operation on a device

// On CUDA the other way of making products is our own kernel, which serves where cuBLASLt has none.
static inline void products_by_own_kernel(Device *device) {
    (void)device;
#ifdef __CUDACC__
    for (size_t i = 0; i < device->matmul->n_entries; i++) device->matmul->entries[i].cuda.own_kernel = true;
#endif
}

// Calls an operation on a test's operands: a structure of the test's own, in which the buffers have names.
typedef void (*Call)(const Run *run, const Context *context, const void *operands);

// Plans the operation, which must not touch anything, then runs it twice between guards in the slab; the results are in
// the buffers' `got`.
static inline void execute(Run *run, Call call, const void *operands) {
    Device *device = run->device;
    DeviceKind kind = device->kind;
    char pattern[2 * GUARD_BYTES], now[2 * GUARD_BYTES] = {0}, *kept = NULL, *guard = NULL;
    uint64_t hash = 0;
    fill_words(pattern, sizeof(pattern), GUARD_WORD);
    for (int i = 0; i < run->n_buffers; i++) buffer_build(run, &run->buffers[i]);
    for (int pass = -1; pass < 2; pass++) {
        bool planned = pass < 0;
        for (int i = 0; i < run->n_buffers; i++) buffer_upload(run, &run->buffers[i]);
        device->kind = planned ? DEVICE_PLAN : kind;
        if (planned) memory_open_plan(&run->memory, device);
        if (pass == 0) {
            run->ledger = run->memory.ledger;
            memory_close(&run->memory);
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
        const Context context = {device, &run->memory, run->c.dtype};
        call(run, &context, operands);
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

static inline void check_number(const Run *run, const char *what, size_t i, double got, double wanted,
                                double tolerance) {
    if (isnan(wanted) ? isnan(got) : isinf(wanted) ? got == wanted : fabs(got - wanted) <= tolerance) return;
    fail_msg("%s: %s [%zu] is %.9g instead of %.9g, tolerance %.3g", run->name, what, i, got, wanted, tolerance);
}

// Where nothing was added up (size 0), nothing but the rounding is allowed.
static inline double tolerance_of(const Buffer *x, size_t i) {
    if (x->size[i] == EXACT) return 0;
    double error = x->size[i] == 0 ? 0 : GROWTH * U32 * (x->size[i] + sqrt(x->terms) * fabs(x->want[i])) + UNDERFLOW;
    // Half of fp16's smallest number, of the result, and of every term that was stored on the way.
    if (x->element == IN_FP16) error += 0x1p-25 * sqrt(1 + x->terms);
    const double stored = x->element == IN_BF16 ? U16 : x->element == IN_FP16 ? U_FP16 : U32;
    return error + stored * (fabs(x->want[i]) + error);
}

static inline void check(const Run *run, const Buffer *x) {
    for (size_t i = 0; i < x->n && x->terms > 0; i++) {
        check_number(run, x->name, i, x->got[i], x->want[i], tolerance_of(x, i));
    }
}

// A naive forward, for finite differences: it makes `out` from inputs that it finds in a structure of its own.
typedef struct {
    void (*make)(const size_t *n, double *out, const void *inputs);
    const void *inputs;
    const double *dout;  // the gradient of out, n_out elements
    size_t n_out;
    double cost;  // operations
} Forward;

// Differences of the sum of out times dout, by each element of `input`, against the naive backward and what the
// operation made of the gradient. Only in fp32 and where it takes some 10^7 operations.
static inline void differences(Run *run, const Forward *forward, double *input, const Buffer *gradient) {
    static const double OFFSETS[4] = {-2, -1, 1, 2}, WEIGHTS[4] = {1, -8, 8, -1};
    if (!run->n_differences || run->dtype != IN_FP32 || run->c.unaligned) return;
    if ((double)gradient->n * forward->cost > 2e6) return;
    double *out = array(run, forward->n_out);
    for (size_t i = 0; i < gradient->n; i++) {
        const double before = input[i];
        double difference = 0, tolerance = 1e-6 * (1 + gradient->size[i]);
        for (int k = 0; k < 4; k++) {
            input[i] = before + OFFSETS[k] * DIFFERENCE;
            forward->make(run->n, out, forward->inputs);
            for (size_t o = 0; o < forward->n_out; o++) {
                difference += WEIGHTS[k] / (12 * DIFFERENCE) * out[o] * forward->dout[o];
            }
        }
        input[i] = before;
        if (gradient->role == CHANGED) difference += gradient->given[i];
        check_number(run, "naive against finite differences", i, gradient->want[i], difference, tolerance);
        tolerance += tolerance_of(gradient, i);
        check_number(run, "finite differences", i, gradient->got[i], difference, tolerance);
        ++*run->n_differences;
    }
}

// Runs a case; returns the hash of all that the operation wrote. n_differences: to be counted up, or NULL for none.
static inline uint64_t run_case(Device *device, const Case *c, int *n_differences) {
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
    device->matmul = c->operation->flags & PRODUCT ? matmul_open(c->other_way && device->real == DEVICE_CPU) : NULL;
    c->operation->test(&run);
    for (int i = 0; i < run.n_buffers; i++) check(&run, &run.buffers[i]);
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
// Cases

static inline Device cpu_device(int threads) {
    Device device;
    memset(&device, 0, sizeof(device));
    device.kind = device.real = DEVICE_CPU;
    device.threads = threads;
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    return device;
}

// Whether an operation has such a case.
static inline bool is_case(const Case *c, bool other_way) {
    return c->operation->variants[c->variant] && !((c->operation->flags & FP32_ONLY) && c->dtype != FP32) &&
           (!c->other_way || other_way);
}

// All cases of an operation; every third shape also with buffers that are not aligned.
static inline void run_operation(Device *device, const Operation *operation) {
    const bool other_way = operation->flags & PRODUCT && (USE_ONEDNN || device->real == DEVICE_CUDA);
    int n_differences = 0;
    for (int s = 0; operation->shapes[s].n[0] > 0; s++) {
        for (int i = 0; i < 4 * DTYPES * MOST_VARIANTS; i++) {
            const Dtype dtype = (Dtype)(i / 4 % DTYPES);
            Case c = {operation, operation->shapes[s], dtype, i / (4 * DTYPES), (i & 1) != 0, (i & 2) != 0};
            if (!is_case(&c, other_way) || (c.unaligned && s % 3 != 1)) continue;
            if (device->real == DEVICE_CUDA && operation->is_slow && operation->is_slow(&c)) continue;
            run_case(device, &c, &n_differences);
        }
    }
    assert_true(((operation->flags & DIFFERENCES) != 0) == (n_differences > 0));
}

// The device under test: a GPU (or the emulator) where nvcc compiled this, else the CPU.
static inline Device device_under_test(void) {
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

static inline void test_operation(void **state) {
    Device device = device_under_test();
    run_operation(&device, (const Operation *)*state);
}

// An operation that does the work of two gives their bits: variants `fused` and `apart` of its test.
static inline void same_bits(const Operation *operation, int fused, int apart) {
    Device device = device_under_test();
    for (int s = 0; operation->shapes[s].n[0] > 0; s++) {
        for (int i = 0; i < 4; i++) {
            Case one = {operation, operation->shapes[s], i & 1 ? BF16 : FP32, fused, i / 2 != 0, false}, two = one;
            two.variant = apart;
            if (run_case(&device, &one, NULL) == run_case(&device, &two, NULL)) continue;
            fail_msg("%s, shape %d: other bits than the two operations", operation->name, s);
        }
    }
}

#ifdef __CUDACC__
// An operation whose sums have one order on all devices, or that has none, gives the bits of the CPU.
static inline void test_bits_of_the_cpu(void **state) {
    const Operation *o = (const Operation *)*state;
    Device cpu = cpu_device(1), cuda = device_under_test();
    for (int s = 0; o->shapes[s].n[0] > 0; s++) {
        for (int i = 0; i < DTYPES * MOST_VARIANTS; i++) {
            Case c = {o, o->shapes[s], (Dtype)(i % DTYPES), i / DTYPES, false, false};
            if (!is_case(&c, false)) continue;
            if (run_case(&cpu, &c, NULL) == run_case(&cuda, &c, NULL)) continue;
            fail_msg("%s %s, shape %d: other bits than the CPU's", o->name, o->variants[c.variant], s);
        }
    }
}
#else
// The same bits from every number of threads; the math library does not promise that.
static inline void test_threads(void **state) {
    (void)state;
#ifdef _OPENMP
    static const int THREADS[] = {1, 2, 3, 7};
    const Operation *o = (const Operation *)*state;
    for (int s = 0; o->shapes[s].n[0] > 0; s++) {
        if (s % 6 != 5 && o->shapes[s + 1].n[0] > 0) continue;  // one in six, and the last
        for (int i = 0; i < DTYPES * MOST_VARIANTS; i++) {
            Case c = {o, o->shapes[s], (Dtype)(i % DTYPES), i / DTYPES, false, false};
            if (!is_case(&c, false)) continue;
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
    cpu_device(1);
#else
    SKIP_AS("this was built without OpenMP");
#endif
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// Programs

// The tests of a kernel's file: its operations, and what else is to be tested. Both lists end with NULL for a name.
typedef struct {
    const Operation *operations;
    const struct CMUnitTest *tests;
} Group;

#define NO_MORE_OPERATIONS {NULL, NULL, NULL, {NULL}, 0, NULL}
#define NO_MORE_TESTS {NULL, NULL, NULL, NULL, NULL}

enum { MOST_TESTS = 100 };

typedef struct {
    struct CMUnitTest tests[MOST_TESTS];
    char names[MOST_TESTS][80];
    size_t n;
} TestList;

static inline struct CMUnitTest *list_add(TestList *list) {
    if (list->n == MOST_TESTS) {
        fprintf(stderr, "cases.h: more than %d tests\n", MOST_TESTS);
        exit(1);
    }
    return &list->tests[list->n++];
}

// Adds a test of an operation, called by its name and a suffix.
static inline void list_add_operation(TestList *list, const Operation *operation, const char *suffix,
                                      void (*function)(void **state)) {
    struct CMUnitTest *test = list_add(list);
    char *name = list->names[test - list->tests];
    snprintf(name, sizeof(list->names[0]), "%s%s", operation->name, suffix);
    test->name = name;
    test->test_func = function;
    test->initial_state = (void *)(uintptr_t)operation;
}

// Runs the tests of all groups: every operation's cases, its bits on the CPU (CUDA) or from every number of threads,
// and the other tests. An argument: the tests to run, such as 'attention_*'.
static inline int group_main(const Group *groups, size_t n_groups, int argc, char **argv) {
    static TestList list;  // cmocka passes over the rest, which has no names
    for (const Group *g = groups; g < groups + n_groups; g++) {
        for (const Operation *o = g->operations; o->name; o++) {
            list_add_operation(&list, o, "", test_operation);
#ifdef __CUDACC__
            if (o->flags & ONE_ORDER) list_add_operation(&list, o, "_bits_of_the_cpu", test_bits_of_the_cpu);
#else
            list_add_operation(&list, o, "_threads", test_threads);
#endif
        }
        for (const struct CMUnitTest *test = g->tests; test->name; test++) *list_add(&list) = *test;
    }
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(list.tests, NULL, NULL);
}

// A kernel's file is a program of its own, unless test_kernels.c has all of them.
#ifdef ALL_KERNELS
#define KERNEL_MAIN(group)
#else
#define KERNEL_MAIN(group) \
    int main(int argc, char **argv) { return group_main(&group, 1, argc, argv); }
#endif

#endif
