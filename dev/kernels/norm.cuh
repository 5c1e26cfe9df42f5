// norm.cuh - the sums of squares on CUDA: a block a chunk, a thread a partial sum, then the CPU's own tree.
//
// Gradients are read once. Chunk sums are brought in by one block and added by one thread, in the order of their index.
#ifndef NORM_CUH
#define NORM_CUH

#include "../device.h"

// A block per chunk, a thread per lane.
__global__ static void norm_chunks_kernel(double *sums, const float *g) {
    __shared__ double lanes[NORM_PARTIALS];
    const float *chunk = g + (size_t)blockIdx.x * NORM_CHUNK;
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < NORM_CHUNK; i += NORM_PARTIALS) sum = fma((double)chunk[i], (double)chunk[i], sum);
    lanes[threadIdx.x] = sum;
    __syncthreads();
    for (size_t width = NORM_PARTIALS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) lanes[threadIdx.x] += lanes[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = lanes[0];
}

// One block brings the sums in, NORM_PARTIALS at a time; one thread adds them in the order of their index.
__global__ static void norm_total_kernel(double *total, const double *sums, size_t n_chunks) {
    __shared__ double part[NORM_PARTIALS];
    double sum = 0.0;
    for (size_t i0 = 0; i0 < n_chunks; i0 += NORM_PARTIALS) {
        const size_t n = size_min(NORM_PARTIALS, n_chunks - i0);
        if (threadIdx.x < n) part[threadIdx.x] = sums[i0 + threadIdx.x];
        __syncthreads();
        for (size_t i = 0; i < n && threadIdx.x == 0; i++) sum += part[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) *total = sum;
}

static inline void norm_chunks_cuda(Device *device, Queue queue, double *sums, const float *g, size_t n_chunks) {
    CUDA_RUN_QUEUE(device, queue, norm_chunks_kernel, cuda_grid(n_chunks, 1), NORM_PARTIALS, 0, sums, g);
}

static inline void norm_total_cuda(Device *device, double *total, const double *sums, size_t n_chunks) {
    CUDA_RUN(device, norm_total_kernel, 1, NORM_PARTIALS, 0, total, sums, n_chunks);
}

#endif
