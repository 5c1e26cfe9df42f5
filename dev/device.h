// device.h - where the arithmetic happens: the CPU, a GPU (CUDA), or nowhere at all (PLAN).
//
// The set of devices is closed, so operations choose by a visible switch over `kind`. PLAN stands in for another
// device: it runs nothing and touches no memory, but counts what each operation would compute and move, so that one
// pass of the very same training step gives the run's memory (memory.h) and its arithmetic.
//
// On CUDA an operation is only put on the compute queue; operations run in the order in which they were called, and
// the host does not wait. Where it must, the function says so. Three more queues move data beside the arithmetic:
// fetch (in), stash (out), collective (between ranks). On the CPU the calling thread is the compute queue, and the
// others are threads (queue.h); on CUDA all are streams (cuda.h). Events order them, as CUDA's do.
//
// What the host itself does to memory is an operation, too: host.h.
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
#include "queue_cpu.h"

typedef enum { DEVICE_PLAN, DEVICE_CPU, DEVICE_CUDA } DeviceKind;

struct Matmul;  // primitives of the math library, kernels/matmul.h
struct Cuda;    // cuda.h

// A point in a queue that others, or the host, can wait for.
typedef struct {
    QueueEvent cpu;
    size_t cuda;  // index in Cuda's events
} DeviceEvent;

enum { DEVICE_EVENTS = 64, DEVICE_USES = 16 };

// Bytes of the host's memory that a queue reads or writes until `done` happens.
typedef struct {
    const char *begin, *end;
    bool write;
    DeviceEvent done;
} DeviceUse;

// The uses of a queue that may not have happened yet, oldest first, in a ring.
typedef struct {
    DeviceUse uses[DEVICE_USES];
    size_t first, n;
} DeviceUses;

// Somebody who watches what the program does to its memory, such as the emulator of the tests. Queues are CUDA's
// streams.
typedef struct {
    // [pointer, pointer + n_bytes) of the device's memory is a buffer of its own, or (owner NULL) no longer.
    void (*region)(void *pointer, size_t n_bytes, const char *owner, void *stream);
    // The host reads or writes bytes of its own, now; or a function that is called on a queue next will.
    void (*host)(const void *pointer, size_t n_bytes, bool write);
    void (*call)(void *stream, const void *pointer, size_t n_bytes, bool write);
} DeviceObserver;

#ifdef __CUDACC__
static_assert(DEVICE_EVENTS + (int)QUEUES * DEVICE_USES <= CUDA_EVENTS, "every event and every use has one of CUDA's");
#endif

typedef struct Device {
    DeviceKind kind;
    DeviceKind real;         // the device that runs, also while PLAN stands in for it
    const char *name;        // of a GPU
    int threads;             // of OpenMP's team, threads.h; sums do not depend on it, the math library's choices do
    char threads_why[192];   // and why so many, for the banner
    int compute_capability;  // of a GPU, 10 major + minor
    struct Matmul *matmul;   // shared by a device and the PLAN that stands in for it
    struct Cuda *cuda;       // NULL on the CPU, and for the plan of a GPU that is not there
    Queues *queues;          // of the CPU
    DeviceEvent events[DEVICE_EVENTS];
    size_t n_events;  // given out
    const char *host, *host_end;       // the host's memory that queues may use
    DeviceUses uses[QUEUES];           // of it
    const DeviceObserver *observer;    // NULL: nobody watches
    double flops;           // counted by PLAN: floating-point operations (2 per multiply-add) since device_reset_counts
    double bytes;           // counted by PLAN: bytes read and written by operations, each tensor once
} Device;

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

// A PLAN device that stands in for another one; without products of matrices (devices.h).
static inline void device_stand_in(Device *plan, const Device *like) {
    memset(plan, 0, sizeof(*plan));
    plan->kind = DEVICE_PLAN;
    plan->real = like->real;
    plan->name = like->name;
    plan->threads = like->threads;
    plan->compute_capability = like->compute_capability;
}

// An operation on the PLAN device: its cost, from the table at the top of each kernel file.
static inline void device_count(Device *device, double flops, double bytes) {
    device->flops += flops;
    device->bytes += bytes;
}

// What an operation does on CUDA; a program that nvcc has not seen can't get there.
#ifdef __CUDACC__
#define CUDA_ONLY(...) __VA_ARGS__
#else
#define CUDA_ONLY(...) die("this program was built without CUDA; use --device cpu")
#endif

// CUDA's stream of a queue, for those who watch.
static inline void *device_stream(const Device *device, Queue queue) {
#ifdef __CUDACC__
    if (device->cuda) return device->cuda->queues[queue];
#else
    (void)device;
    (void)queue;
#endif
    return NULL;
}

// Who watches is told that bytes of the device's memory are a buffer of their own, or (owner NULL) no longer.
static inline void device_region(const Device *device, void *pointer, size_t n_bytes, const char *owner) {
    if (!device->observer || device->kind == DEVICE_PLAN || n_bytes == 0) return;
    device->observer->region(pointer, n_bytes, owner, device_stream(device, QUEUE_COMPUTE));
}

// ---------------------------------------------------------------------------------------------------------------
// Plain operations on memory, used by the store and the loader

// y[0 ... n_bytes) = 0
static inline void device_zero(Device *device, void *y, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 0, (double)n_bytes); return;
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
    case DEVICE_PLAN: device_count(device, 0, 2.0 * (double)n_bytes); return;
    case DEVICE_CPU: memcpy(to, from, n_bytes); return;
    case DEVICE_CUDA: CUDA_ONLY(device_copy_cuda(device, to, from, n_bytes, cudaMemcpyHostToDevice)); return;
    }
}

// Device memory to host memory, after everything that was called before (the host waits).
static inline void device_download(Device *device, void *to, const void *from, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 0, 2.0 * (double)n_bytes); return;
    case DEVICE_CPU: memcpy(to, from, n_bytes); return;
    case DEVICE_CUDA: CUDA_ONLY(device_copy_cuda(device, to, from, n_bytes, cudaMemcpyDeviceToHost)); return;
    }
}

// The host waits until everything that was called before on the compute queue has run.
static inline void device_wait(Device *device) {
    if (device->kind == DEVICE_CUDA) CUDA_ONLY(cuda_wait(device->cuda));
}

// The same for all queues.
static inline void device_wait_for_queues(Device *device) {
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU:
        if (device->queues) queues_wait(device->queues);
        return;
    case DEVICE_CUDA:
        CUDA_ONLY(for (int q = 0; q < QUEUES; q++) CUDA_CHECK(cudaStreamSynchronize(device->cuda->queues[q])));
        return;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Queues and events

// Gives out an event; device_events_reset() takes all of them back.
static inline DeviceEvent *device_event(Device *device) {
    if (device->n_events == DEVICE_EVENTS) die("more than %d events. This is a bug, please report it", DEVICE_EVENTS);
    DeviceEvent *event = &device->events[device->n_events];
    event->cuda = device->n_events++;
    return event;
}

static inline void device_events_reset(Device *device) { device->n_events = 0; }

// The event happens once everything that was called on the queue before has run.
static inline void device_record(Device *device, Queue queue, DeviceEvent *event) {
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: queue_record(device->queues, queue, &event->cpu); return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_CHECK(cudaEventRecord(device->cuda->events[event->cuda], device->cuda->queues[queue])));
        return;
    }
}

// What is called on the queue from here on runs after the event as it was recorded last.
static inline void device_await(Device *device, Queue queue, DeviceEvent *event) {
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: queue_await(device->queues, queue, &event->cpu); return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_CHECK(cudaStreamWaitEvent(device->cuda->queues[queue], device->cuda->events[event->cuda], 0)));
        return;
    }
}

// The host waits for the event as it was recorded last.
static inline void device_wait_event(Device *device, DeviceEvent *event) {
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: queue_wait_event(device->queues, &event->cpu); return;
    case DEVICE_CUDA: CUDA_ONLY(CUDA_CHECK(cudaEventSynchronize(device->cuda->events[event->cuda]))); return;
    }
}

// Whether the event has happened as it was recorded last; false may come late.
static inline bool device_event_passed(const Device *device, const DeviceEvent *event) {
#ifdef __CUDACC__
    if (device->kind == DEVICE_CUDA) return cudaEventQuery(device->cuda->events[event->cuda]) == cudaSuccess;
#else
    (void)device;
#endif
    return queue_event_passed(&event->cpu);
}

// What was called last on a queue reads or writes these bytes, if they are the host's.
static inline void device_note_use(Device *device, Queue queue, const void *pointer, size_t n_bytes, bool write) {
    const char *begin = (const char *)pointer;
    DeviceUses *uses = &device->uses[queue];
    if (device->kind == DEVICE_PLAN || n_bytes == 0 || begin < device->host || begin >= device->host_end) return;
    if (device->kind == DEVICE_CPU && queue == QUEUE_COMPUTE) return;  // it has happened
    while (uses->n > 0 && device_event_passed(device, &uses->uses[uses->first].done)) {
        uses->first = (uses->first + 1) % DEVICE_USES;
        uses->n--;
    }
    if (uses->n == DEVICE_USES) {  // the two oldest become one: of all bytes between, until the later
        const DeviceUse *oldest = &uses->uses[uses->first];
        DeviceUse *next = &uses->uses[(uses->first + 1) % DEVICE_USES];
        next->begin = oldest->begin < next->begin ? oldest->begin : next->begin;
        next->end = oldest->end > next->end ? oldest->end : next->end;
        next->write = oldest->write || next->write;
        uses->first = (uses->first + 1) % DEVICE_USES;
        uses->n--;
    }
    const size_t place = (uses->first + uses->n++) % DEVICE_USES;
    DeviceUse *use = &uses->uses[place];
    use->begin = begin;
    use->end = begin + n_bytes;
    use->write = write;
    use->done.cuda = DEVICE_EVENTS + (size_t)queue * DEVICE_USES + place;
    device_record(device, queue, &use->done);
}

// Device or (pinned) host memory to device or host memory, on a queue.
static inline void device_copy(Device *device, Queue queue, void *to, const void *from, size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 0, 2.0 * (double)n_bytes); break;
    case DEVICE_CPU: queue_copy(device->queues, queue, to, from, n_bytes); break;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_CHECK(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, device->cuda->queues[queue])));
        break;
    }
    device_note_use(device, queue, to, n_bytes, true);
    device_note_use(device, queue, from, n_bytes, false);
}

// run(a copy of argument) on the host in the order of the queue; at most QUEUE_ARGUMENT bytes. It may not use the
// device. What it reads or writes of the host's memory its caller says: device_note_use() after it.
static inline void device_call(Device *device, Queue queue, void (*run)(void *), const void *argument,
                               size_t n_bytes) {
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: queue_call(device->queues, queue, run, argument, n_bytes); return;
    case DEVICE_CUDA: CUDA_ONLY(cuda_call(device->cuda, queue, run, argument, n_bytes)); return;
    }
}

// Everything called before on any queue runs before anything that is called from here on. The host does not wait, but
// on the CPU, where it is the compute queue. joins: QUEUES events.
static inline void device_join(Device *device, DeviceEvent *const *joins) {
    for (int q = 0; q < QUEUES; q++) device_record(device, (Queue)q, joins[q]);
    for (int q = 0; q < QUEUES; q++) {
        for (int other = 0; other < QUEUES; other++) {
            if (other != q) device_await(device, (Queue)q, joins[other]);
        }
    }
}

#endif
