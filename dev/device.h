// device.h - where the arithmetic happens: the CPU, or nowhere at all (PLAN).
//
// The set of devices is closed, so operations choose by a visible switch over `kind`. PLAN stands in for another
// device: it runs nothing and touches no memory, but counts what each operation would compute and move, so that one
// pass of the very same training step gives the run's memory (memory.h) and its arithmetic.
//
// Invariant: nothing that depends on the values of tensors may change what a step does on a device; PLAN has none.
#ifndef DEVICE_H
#define DEVICE_H

#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "error.h"
#include "number.h"

typedef enum { DEVICE_PLAN, DEVICE_CPU } DeviceKind;

struct Matmul;  // primitives of the math library, kernels/matmul.h

typedef struct Device {
    DeviceKind kind;
    int threads;            // OpenMP threads; sums do not depend on it, the math library's choices do
    struct Matmul *matmul;  // shared by a CPU device and the PLAN that stands in for it
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

// An operation on the PLAN device: its cost, from the table at the top of each kernel file.
static inline void device_plan(Device *device, double flops, double bytes) {
    device->flops += flops;
    device->bytes += bytes;
}

// ---------------------------------------------------------------------------------------------------------------
// Plain operations on memory, used by the store and the loader

// y[0 ... n_bytes) = 0
static inline void device_zero(Device *device, void *y, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 0, (double)n_bytes); return;
    case DEVICE_CPU: memset(y, 0, n_bytes); return;
    }
}

// Host memory to device memory.
static inline void device_upload(Device *device, void *to, const void *from, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 0, 2.0 * (double)n_bytes); return;
    case DEVICE_CPU: memcpy(to, from, n_bytes); return;
    }
}

// Device memory to host memory.
static inline void device_download(Device *device, void *to, const void *from, size_t n_bytes) {
    device_upload(device, to, from, n_bytes);
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
