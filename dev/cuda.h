// cuda.h - one CUDA device: how it is opened, what a failed call says, its queues, and pinned host memory.
//
// Queues are streams. Kernels and products run on the compute queue; the fetch queue brings data in beside them. An
// event orders one queue after another, or the host after a queue; nothing waits for the whole device within a step.
// Nothing is allocated after the run has reserved its memory (memory.h).
//
// Only nvcc sees this file's contents.
#ifndef CUDA_H
#define CUDA_H

#ifdef __CUDACC__

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "error.h"
#include "number.h"

typedef enum { QUEUE_COMPUTE, QUEUE_FETCH, QUEUES } Queue;

// A buffer that two queues share: `filled` when the one has brought its contents, `drained` when the other is done.
typedef struct {
    cudaEvent_t filled, drained;
} CudaSlot;

enum { CUDA_SLOTS = 4, CUDA_THREADS = 256, WARP = 32 };

typedef struct Cuda {
    cudaStream_t queues[QUEUES];
    CudaSlot slots[CUDA_SLOTS];
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
#define CUDA_RUN_GRID(device, kernel, grid, threads, shared, ...)                                             \
    do {                                                                                                      \
        kernel<<<(grid), (unsigned)(threads), (shared), (device)->cuda->queues[QUEUE_COMPUTE]>>>( \
            __VA_ARGS__);                                                                                     \
        cuda_check_status(cudaGetLastError(), "launching " #kernel, __FILE__, __LINE__);                      \
    } while (0)

// Blocks for one thread per element; kernels take strides of the whole grid, so that fewer blocks do as well.
static inline size_t cuda_blocks(size_t n_elements) {
    return size_min(ceil_div(size_max(n_elements, 1), CUDA_THREADS), 1 << 20);
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

// Opens the device that is current.
static inline Cuda *cuda_open(void) {
    Cuda *cuda = (Cuda *)calloc(1, sizeof(Cuda));
    cudaDeviceProp properties;
    int device = 0, least = 0, greatest = 0;
    if (!cuda) die("out of memory at the start");
    CUDA_CHECK(cudaGetDevice(&device));
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
    for (int i = 0; i < CUDA_SLOTS; i++) {
        CUDA_CHECK(cudaEventCreateWithFlags(&cuda->slots[i].filled, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&cuda->slots[i].drained, cudaEventDisableTiming));
    }
    BLAS_CHECK(cublasLtCreate(&cuda->blas));
    CUDA_CHECK(cudaMalloc((void **)&cuda->word, sizeof(*cuda->word)));
    return cuda;
}

static inline void cuda_close(Cuda *cuda) {
    BLAS_CHECK(cublasLtDestroy(cuda->blas));
    CUDA_CHECK(cudaFree(cuda->word));
    for (int i = 0; i < CUDA_SLOTS; i++) {
        CUDA_CHECK(cudaEventDestroy(cuda->slots[i].filled));
        CUDA_CHECK(cudaEventDestroy(cuda->slots[i].drained));
    }
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

// 2^x by one instruction, within 2 units in the last place; 0 below 2^-126. For softmax, where number_exp() would cost
// more than the memory does; its results are compared with other devices' within a tolerance, not bit by bit.
__device__ __forceinline__ float cuda_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define CUDA_LOG2_E 1.44269504f  // exp(x) = 2^(x log2 e)

// ---------------------------------------------------------------------------------------------------------------
// Sums in a warp: fixed orders

__device__ static inline float warp_sum(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

__device__ static inline float warp_maximum(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = other > x ? other : x;
    }
    return x;
}

#endif
#endif
