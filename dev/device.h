// device.h - where the arithmetic happens: the CPU, a GPU (CUDA), or nowhere at all (PLAN).
//
// The set of devices is closed, so operations choose by a visible switch over `kind`. PLAN stands in for another
// device: it runs nothing and touches no memory, but counts what each operation would compute and move, so that one
// pass of the very same training step gives the run's memory (memory.h) and its arithmetic.
//
// On CUDA an operation is only put on the compute queue; operations run in the order in which they were called, and
// the host does not wait. Where it must, the function says so.
//
// Invariant: nothing that depends on the values of tensors may change what a step does on a device; PLAN has none.
#ifndef DEVICE_H
#define DEVICE_H

#include <fcntl.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "cuda.h"
#include "error.h"
#include "number.h"

typedef enum { DEVICE_PLAN, DEVICE_CPU, DEVICE_CUDA } DeviceKind;

struct Matmul;  // primitives of the math library, kernels/matmul.h
struct Cuda;    // cuda.h

typedef struct Device {
    DeviceKind kind;
    DeviceKind real;         // the device that runs, also while PLAN stands in for it
    const char *name;        // of a GPU
    int threads;             // OpenMP threads; sums do not depend on it, the math library's choices do
    int compute_capability;  // of a GPU, 10 major + minor
    struct Matmul *matmul;   // shared by a device and the PLAN that stands in for it
    struct Cuda *cuda;       // NULL on the CPU, and for the plan of a GPU that is not there
    double flops;           // counted by PLAN: floating-point operations (2 per multiply-add) since device_reset_counts
    double bytes;           // counted by PLAN: bytes read and written by operations, each tensor once
} Device;

static inline int device_threads_available(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Index of the calling thread within a parallel region.
static inline int device_thread(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Seconds of a clock that only runs forward.
static inline double device_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// An operation on the PLAN device: its cost, from the table at the top of each kernel file.
static inline void device_plan(Device *device, double flops, double bytes) {
    device->flops += flops;
    device->bytes += bytes;
}

// What an operation does on CUDA; a program that nvcc has not seen can't get there.
#ifdef __CUDACC__
#define CUDA_ONLY(...) __VA_ARGS__
#else
#define CUDA_ONLY(...) die("this program was built without CUDA; use --device cpu")
#endif

// ---------------------------------------------------------------------------------------------------------------
// Plain operations on memory, used by the store and the loader

// y[0 ... n_bytes) = 0
static inline void device_zero(Device *device, void *y, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 0, (double)n_bytes); return;
    case DEVICE_CPU: memset(y, 0, n_bytes); return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_CHECK(cudaMemsetAsync(y, 0, n_bytes, device->cuda->queues[QUEUE_COMPUTE])));
        return;
    }
}

#ifdef __CUDACC__
static inline void device_copy_cuda(Device *device, void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, n_bytes, kind, device->cuda->queues[QUEUE_COMPUTE]));
    cuda_wait(device->cuda);
}
#endif

// Host memory to device memory; `from` may be changed afterwards (the host waits).
static inline void device_upload(Device *device, void *to, const void *from, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 0, 2.0 * (double)n_bytes); return;
    case DEVICE_CPU: memcpy(to, from, n_bytes); return;
    case DEVICE_CUDA: CUDA_ONLY(device_copy_cuda(device, to, from, n_bytes, cudaMemcpyHostToDevice)); return;
    }
}

// Device memory to host memory, after everything that was called before (the host waits).
static inline void device_download(Device *device, void *to, const void *from, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 0, 2.0 * (double)n_bytes); return;
    case DEVICE_CPU: memcpy(to, from, n_bytes); return;
    case DEVICE_CUDA: CUDA_ONLY(device_copy_cuda(device, to, from, n_bytes, cudaMemcpyDeviceToHost)); return;
    }
}

// The host waits until everything that was called before has run.
static inline void device_wait(Device *device) {
    if (device->kind == DEVICE_CUDA) CUDA_ONLY(cuda_wait(device->cuda));
}

// ---------------------------------------------------------------------------------------------------------------
// Slots: buffers that the fetch queue fills from pinned host memory while the compute queue works
//
//     device_slot_open      the host may write into the slot's host buffer (an earlier fetch from it has ended)
//     device_slot_fetch     host buffer to device buffer, once the compute queue has drained it
//     device_slot_filled    what is called from here on sees the contents
//     device_slot_drained   what was called before was the last to read them

static inline void device_slot_open(Device *device, int slot) {
    (void)slot;
    switch (device->kind) {
    case DEVICE_PLAN: case DEVICE_CPU: return;
    case DEVICE_CUDA: CUDA_ONLY({
        CUDA_CHECK(cudaEventSynchronize(device->cuda->slots[slot].filled));
        CUDA_CHECK(cudaStreamWaitEvent(device->cuda->queues[QUEUE_FETCH], device->cuda->slots[slot].drained, 0));
    });
        return;
    }
}

static inline void device_slot_fetch(Device *device, void *to, const void *from, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 0, 2.0 * (double)n_bytes); return;
    case DEVICE_CPU: memcpy(to, from, n_bytes); return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_CHECK(
            cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyHostToDevice, device->cuda->queues[QUEUE_FETCH])));
        return;
    }
}

static inline void device_slot_filled(Device *device, int slot) {
    (void)slot;
    switch (device->kind) {
    case DEVICE_PLAN: case DEVICE_CPU: return;
    case DEVICE_CUDA: CUDA_ONLY({
        CUDA_CHECK(cudaEventRecord(device->cuda->slots[slot].filled, device->cuda->queues[QUEUE_FETCH]));
        CUDA_CHECK(cudaStreamWaitEvent(device->cuda->queues[QUEUE_COMPUTE], device->cuda->slots[slot].filled, 0));
    });
        return;
    }
}

static inline void device_slot_drained(Device *device, int slot) {
    (void)slot;
    switch (device->kind) {
    case DEVICE_PLAN: case DEVICE_CPU: return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_CHECK(
            cudaEventRecord(device->cuda->slots[slot].drained, device->cuda->queues[QUEUE_COMPUTE])));
        return;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// What the kernel says

// Value in bytes of a "Name:   123 kB" line of a file in /proc, or 0 if there is none. No allocation.
static inline size_t device_proc_bytes(const char *file, const char *name) {
    char text[4096];
    int fd = open(file, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    const char *line = strstr(text, name);
    return line ? (size_t)strtoull(line + strlen(name), NULL, 10) * 1024 : 0;
}

// Anonymous memory of this process that is in RAM now, bytes.
static inline size_t device_rss_anonymous(void) { return device_proc_bytes("/proc/self/status", "RssAnon:"); }

// Memory that a new program could use now without swapping, bytes: of the machine, or of this process's control
// group (version 2) if that allows less.
static inline size_t device_memory_available(void) {
    size_t available = device_proc_bytes("/proc/meminfo", "MemAvailable:");
    char text[64];
    int fd = open("/sys/fs/cgroup/memory.max", O_RDONLY);
    if (fd < 0) return available;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0 || text[0] < '0' || text[0] > '9') return available;
    text[n] = 0;
    return size_min(available, (size_t)strtoull(text, NULL, 10));
}

#endif
