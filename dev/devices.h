// devices.h - which device a run uses: its name on the command line, opening it, what it says of itself, its rate.
//
// --device auto takes a GPU if a usable one is there, else the CPU, and says why; plan:NAME plans for a device that
// need not be there: its memory and compute capability come from a table.
#ifndef DEVICES_H
#define DEVICES_H

#include "ranks.h"
#include "flags.h"
#include "kernels/matmul.h"
#include "threads.h"
#ifdef EMULATED
#include "observer.h"
#endif

// Devices to plan for; memory as their owners see it, GiB.
static const struct {
    const char *name;
    int compute_capability;
    double gib;
} DEVICE_PROFILES[] = {{"h200", 90, 139}, {"h100", 90, 79}, {"a100", 80, 79},
                       {"rtx4090", 89, 23.5}, {"rtx3090", 86, 23.5}};

// The device of plan:NAME. *memory, bytes, is set unless it was given.
static inline void device_open_profile(Device *device, const char *name, double *memory) {
    if (strcmp(name, "cpu") == 0) return;
    for (size_t i = 0; i < sizeof(DEVICE_PROFILES) / sizeof(DEVICE_PROFILES[0]); i++) {
        if (strcmp(name, DEVICE_PROFILES[i].name) != 0) continue;
        device->real = DEVICE_CUDA;
        device->name = DEVICE_PROFILES[i].name;
        device->compute_capability = DEVICE_PROFILES[i].compute_capability;
        if (*memory == 0) *memory = DEVICE_PROFILES[i].gib * 1024 * 1024 * 1024;
        return;
    }
    flags_fail("--device plan:%s: the names are cpu, h200, h100, a100, rtx4090, rtx3090", name);
}

// `name`: the value of --device. *memory: bytes of --device-memory, or 0. Of the ranks on this machine each opens the
// GPU of its number, and takes its part of the processors.
static inline void device_open(Device *device, const char *name, double *memory, const Ranks *ranks) {
    bool automatic = strcmp(name, "auto") == 0 || strcmp(name, "plan") == 0, cuda = strcmp(name, "cuda") == 0;
    memset(device, 0, sizeof(*device));
    device->real = DEVICE_CPU;
    device->threads = threads_open(ranks->processors, ranks->local_size, device->threads_why,
                                   sizeof(device->threads_why));
    if (strncmp(name, "plan:", 5) == 0) device_open_profile(device, name + 5, memory);
    else if (!automatic && !cuda && strcmp(name, "cpu") != 0) {
        flags_fail("--device %s: auto, cpu, cuda or plan:NAME", name);
    }
#ifdef __CUDACC__
    const char *absent = automatic || cuda ? cuda_absent() : "not asked for";
    if (cuda && absent) die("--device cuda: %s. --device cpu runs without a GPU", absent);
    if (automatic && absent) printf("note       no GPU is used: %s\n", absent);
    if (!absent) {
        device->real = DEVICE_CUDA;
        device->cuda = cuda_open(ranks->local_rank, ranks->local_size);
#ifdef EMULATED
        device->observer = &EMULATOR_OBSERVER;
#endif
        device->name = device->cuda->name;
        device->compute_capability = device->cuda->compute_capability;
    }
#else
    if (cuda) die("this program was built without CUDA: make train CUDA=1, or use --device cpu");
#endif
    if (device->real == DEVICE_CPU) device->queues = queues_open(QUEUE_THREADS, 0);
    device->kind = device->real;
    device->matmul = matmul_open(device->real == DEVICE_CPU);
}

static inline void device_close(Device *device) {
    matmul_close(device->matmul);
    if (device->queues) queues_close(device->queues);
    if (device->cuda) CUDA_ONLY(cuda_close(device->cuda));
}

// Bytes that the device could give a new program now.
static inline size_t device_available(const Device *device) {
    size_t n_bytes = 0;
    if (device->real == DEVICE_CPU) n_bytes = process_memory_available();
    else CUDA_ONLY(n_bytes = cuda_available());
    return n_bytes;
}

// One line: what runs, and in which arithmetic.
static inline void device_describe(const Device *device, Dtype dtype, char *text, size_t size) {
    if (device->real == DEVICE_CUDA) {
        snprintf(text, size, "%s%s, compute capability %.1f; %s", device->name, device->cuda ? "" : " (not here)",
                 device->compute_capability / 10.0, number_name(dtype));
        return;
    }
    bool converted = dtype == FP16 || (dtype == BF16 && !device->matmul->native_bf16);
    snprintf(text, size, "CPU, %d thread%s, %s; %s%s", device->threads, device->threads > 1 ? "s" : "",
             device->matmul->isa, number_name(dtype),
             converted ? " storage, fp32 arithmetic" : "");
}

// Whether products in bf16 are the device's own arithmetic, not fp32's on converted values.
static inline bool device_multiplies_bf16(const Device *device) {
    return device->real == DEVICE_CUDA || device->matmul->native_bf16;
}

// ---------------------------------------------------------------------------------------------------------------
// Planning

// A PLAN device that stands in for another one. matmul: that device's, so that the products which the plan finds can be
// made for the run; NULL: its own.
static inline void device_open_plan(Device *plan, const Device *like, struct Matmul *matmul) {
    device_stand_in(plan, like);
    plan->matmul = matmul ? matmul : matmul_open(like->real == DEVICE_CPU);
}

static inline void device_close_plan(Device *plan, const struct Matmul *matmul) {
    if (plan->matmul != matmul) matmul_close(plan->matmul);
}

// ---------------------------------------------------------------------------------------------------------------
// The rate of products

// One product of square matrices, in memory taken for it: operations per second.
static inline double device_product_rate(const Context *context, size_t size) {
    Device *device = context->device;
    Memory *memory = context->memory;
    size_t n_bytes = size * size * number_size(context->dtype), mark = memory_mark(memory, TIER_DEVICE);
    memory_begin(memory, PHASE_SETUP);
    void *c = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, n_bytes, "c");
    void *a = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, n_bytes, "a");
    void *b = memory_push(memory, TIER_DEVICE, KIND_SCRATCH, n_bytes, "b");
    device_zero(device, a, n_bytes);
    device_zero(device, b, n_bytes);
    device_wait(device);
    double start = device_seconds();
    matmul_forward(context, c, a, b, NULL, size, size, size);
    device_wait(device);
    double rate = 2.0 * pow((double)size, 3) / (device_seconds() - start);
    memory_release(memory, TIER_DEVICE, mark);
    memory_end(memory);
    return rate;
}

// The best of some products of this size, in memory of its own, which is given back.
static inline double device_best_rate(Device *device, Dtype dtype, size_t size) {
    enum { TRIALS = 10 };
    const double enough = 0.1;  // seconds of one product
    Memory planned, memory;
    Device plan;
    double best = 0;
    device_open_plan(&plan, device, device->matmul);
    memory_open_plan(&planned, &plan);
    const Context planning = {&plan, &planned, dtype}, running = {device, &memory, dtype};
    device_product_rate(&planning, size);
    matmul_create(device);
    memory_reserve(&memory, device, &planned.ledger, ".", 0);
    for (int trial = 0; trial < TRIALS && (trial == 0 || 2.0 * pow((double)size, 3) / best < enough); trial++) {
        best = fmax(best, device_product_rate(&running, size));
    }
    memory_close(&memory);
    memory_close(&planned);
    return best;
}

// Rate of a product of large matrices, operations per second: what MFU is a share of. A GPU that takes less than a
// millisecond is given larger matrices.
static inline double device_matmul_rate(Device *device, Dtype dtype) {
    enum { SIZE_CPU = 1024, SIZE_LEAST = 256, SIZE_MOST = 8192 };
    const double least = 1e-3;  // seconds of one product
    if (device->real == DEVICE_CPU) return device_best_rate(device, dtype, SIZE_CPU);
    double best = 0;
    for (size_t size = SIZE_LEAST; size <= SIZE_MOST; size *= 2) {
        const double rate = device_best_rate(device, dtype, size);
        best = fmax(best, rate);
        if (2.0 * pow((double)size, 3) / best >= least) break;
    }
    return best;
}

#endif
