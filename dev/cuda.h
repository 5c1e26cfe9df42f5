// cuda.h - one CUDA device: how it is opened, what a failed call says, its queues, and pinned host memory.
//
// Queues are streams. Kernels and products run on the compute queue; the fetch queue brings data in beside them, the
// stash queue takes data out, the collective queue exchanges data with other ranks. An event orders one queue after
// another, or the host after a queue; nothing waits for the whole device within a step. Nothing is allocated after the
// run has reserved its memory (memory.h).
//
// Only nvcc sees this file's contents.
#ifndef CUDA_H
#define CUDA_H

#ifdef __CUDACC__

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "error.h"
#include "number.h"
#include "queue.h"

enum { CUDA_THREADS = 256, WARP = 32, CUDA_EVENTS = 192, CUDA_CALLS = 256 };

// A function that a queue calls on the host, and its argument.
typedef struct {
    void (*run)(void *);
    volatile int pending;
    char argument[QUEUE_ARGUMENT];
} CudaCall;

typedef struct Cuda {
    cudaStream_t queues[QUEUES];
    cudaEvent_t events[CUDA_EVENTS];
    CudaCall calls[CUDA_CALLS];  // a ring
    size_t next_call;
    cublasLtHandle_t blas;
    unsigned long long *word;  // on the device, for a result
    int compute_capability;  // 10 major + minor
    size_t total;            // bytes of memory of the device
    char name[256];
} Cuda;

// ---------------------------------------------------------------------------------------------------------------
// Errors

static inline void cuda_check_status(cudaError_t status, const char *what, const char *file, int line) {
    if (status == cudaSuccess) return;
    size_t available = 0, total = 0;
    if (status == cudaErrorMemoryAllocation && cudaMemGetInfo(&available, &total) == cudaSuccess) {
        die("CUDA: %s (%s:%d): out of memory, %zu of %zu bytes are free. Take a smaller -b or -t, a higher -r, or end "
            "other programs on this GPU", what, file, line, available, total);
    }
    die("CUDA: %s (%s:%d): %s", what, file, line, cudaGetErrorString(status));
}

static inline void cuda_check_blas(cublasStatus_t status, const char *what, const char *file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS) {
        die("cuBLASLt: %s (%s:%d): %s", what, file, line, cublasLtGetStatusString(status));
    }
}

#define CUDA_CHECK(call) cuda_check_status((call), #call, __FILE__, __LINE__)
#define BLAS_CHECK(call) cuda_check_blas((call), #call, __FILE__, __LINE__)

// A grid from counts of any integer type.
static inline dim3 cuda_grid(size_t x, size_t y) { return dim3((unsigned)x, (unsigned)y); }

// kernel<<<grid, threads, shared bytes>>>(...) on the compute queue; a failure names the kernel.
#define CUDA_RUN(device, kernel, blocks, threads, shared, ...) \
    CUDA_RUN_GRID(device, kernel, cuda_grid((size_t)(blocks), 1), threads, shared, __VA_ARGS__)
#define CUDA_RUN_GRID(device, kernel, grid, threads, shared, ...) \
    CUDA_RUN_QUEUE(device, QUEUE_COMPUTE, kernel, grid, threads, shared, __VA_ARGS__)
#define CUDA_RUN_QUEUE(device, queue, kernel, grid, threads, shared, ...)                                     \
    do {                                                                                                      \
        kernel<<<(grid), (unsigned)(threads), (shared), (device)->cuda->queues[queue]>>>(__VA_ARGS__);        \
        cuda_check_status(cudaGetLastError(), "launching " #kernel, __FILE__, __LINE__);                      \
    } while (0)

// Blocks for one thread per element; kernels take strides of the whole grid, so that fewer blocks do as well.
static inline size_t cuda_blocks(size_t n_elements) {
    return size_min(size_ceil_div(size_max(n_elements, 1), CUDA_THREADS), 1 << 20);
}

// ---------------------------------------------------------------------------------------------------------------
// Opening

// NULL if a usable GPU is there, else why not. Before the driver starts it is told to load all kernels at once, so that
// none takes memory later.
static inline const char *cuda_absent(void) {
    int n = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    return n > 0 ? NULL : "no GPU";
}

// Opens the GPU of a rank, by its number among the ranks of this machine.
static inline Cuda *cuda_open(int local_rank, int local_size) {
    Cuda *cuda = (Cuda *)calloc(1, sizeof(Cuda));
    cudaDeviceProp properties;
    int device = local_rank, n_devices = 0, least = 0, greatest = 0;
    if (!cuda) die("out of memory at the start");
    CUDA_CHECK(cudaGetDeviceCount(&n_devices));
    if (local_size > n_devices) {
        die("%d ranks on this machine, but %d GPU%s: start as many ranks as there are GPUs, or use --device cpu",
            local_size, n_devices, n_devices == 1 ? "" : "s");
    }
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    cuda->compute_capability = 10 * properties.major + properties.minor;
    cuda->total = properties.totalGlobalMem;
    snprintf(cuda->name, sizeof(cuda->name), "%s", properties.name);
    if (cuda->compute_capability < 80) {
        die("the GPU (%s, compute capability %d.%d) is too old: 8.0 or newer is needed. --device cpu runs without it",
            cuda->name, properties.major, properties.minor);
    }
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int q = 0; q < QUEUES; q++) {
        CUDA_CHECK(cudaStreamCreateWithPriority(&cuda->queues[q], cudaStreamNonBlocking,
                                                q == QUEUE_COMPUTE ? least : greatest));
    }
    for (int i = 0; i < CUDA_EVENTS; i++) {
        CUDA_CHECK(cudaEventCreateWithFlags(&cuda->events[i], cudaEventDisableTiming));
    }
    BLAS_CHECK(cublasLtCreate(&cuda->blas));
    CUDA_CHECK(cudaMalloc((void **)&cuda->word, sizeof(*cuda->word)));
    return cuda;
}

static inline void cuda_close(Cuda *cuda) {
    BLAS_CHECK(cublasLtDestroy(cuda->blas));
    CUDA_CHECK(cudaFree(cuda->word));
    for (int i = 0; i < CUDA_EVENTS; i++) CUDA_CHECK(cudaEventDestroy(cuda->events[i]));
    for (int q = 0; q < QUEUES; q++) CUDA_CHECK(cudaStreamDestroy(cuda->queues[q]));
    free(cuda);
}

// Free bytes of the device's memory now.
static inline size_t cuda_available(void) {
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    return available;
}

// The host waits for everything on the compute queue.
static inline void cuda_wait(const Cuda *cuda) { CUDA_CHECK(cudaStreamSynchronize(cuda->queues[QUEUE_COMPUTE])); }

// Called on a thread of the driver, in the order of a queue.
static inline void CUDART_CB cuda_call_run(void *argument) {
    CudaCall *call = (CudaCall *)argument;
    call->run(call->argument);
    __atomic_store_n(&call->pending, 0, __ATOMIC_RELEASE);
}

// run(a copy of argument) on the host, in the order of the queue; it may not call CUDA.
static inline void cuda_call(Cuda *cuda, Queue queue, void (*run)(void *), const void *argument, size_t n_bytes) {
    CudaCall *call = &cuda->calls[cuda->next_call++ % CUDA_CALLS];
    while (__atomic_load_n(&call->pending, __ATOMIC_ACQUIRE)) {  // a whole ring ago, and still not run: wait for all
        for (int q = 0; q < QUEUES; q++) CUDA_CHECK(cudaStreamSynchronize(cuda->queues[q]));
    }
    if (n_bytes > QUEUE_ARGUMENT) die("a call on a queue has %zu bytes of argument. This is a bug", n_bytes);
    call->run = run;
    call->pending = 1;
    memcpy(call->argument, argument, n_bytes);
    CUDA_CHECK(cudaLaunchHostFunc(cuda->queues[queue], cuda_call_run, call));
}

// 2^x by one instruction, within 2 units in the last place; 0 below 2^-126. For softmax, where number_exp() would cost
// more than the memory does; its results are compared with other devices' within a tolerance, not bit by bit.
__device__ __forceinline__ float cuda_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define CUDA_LOG2_E 1.44269504f  // exp(x) = 2^(x log2 e)

#endif
#endif
