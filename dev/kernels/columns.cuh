// columns.cuh - sums over the rows of a matrix on CUDA: a block's warps, then groups, each in order.
//
// columns_store() ends a kernel that has walked over a group's rows: what its warps have kept in registers becomes the
// group's partial sums. columns_total() reads these, 4 bytes a group and column, and adds them up: warp w those of
// groups w, w + COLUMNS_WARPS, ..., then the warps in order.
#ifndef COLUMNS_CUH
#define COLUMNS_CUH

#include "../device.h"

// The sum over a block's warps of `own`, N columns a lane, in their order; to[32 N columns], fewer than `left` of them,
// are replaced or (ADD) added to. `shared` holds COLUMNS_WARPS * WARP * N floats.
template <int N, bool ADD = false>
__device__ __forceinline__ void columns_store(float *to, size_t left, const float *own, float *shared) {
    __syncthreads();
    for (int i = 0; i < N; i++) shared[i * CUDA_THREADS + threadIdx.x] = own[i];  // (N, warps, lanes): no conflicts
    __syncthreads();
    for (int c = (int)threadIdx.x; c < WARP * N; c += CUDA_THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < COLUMNS_WARPS; w++) sum += shared[c % N * CUDA_THREADS + w * WARP + c / N];
        if ((size_t)c < left) to[c] = ADD ? to[c] + sum : sum;
    }
}

// to[c] (+)= sum over groups of sums[group][c], n columns; those from n_first on go to `rest`.
__global__ static void columns_total_kernel(float *to, float *rest, size_t n_first, const float *sums, size_t groups,
                                            size_t n, bool add) {
    __shared__ float partial[COLUMNS_WARPS][WARP];
    const size_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = (size_t)blockIdx.x * WARP + lane;
    float sum = 0.0f;
#pragma unroll 4
    for (size_t group = warp; group < groups && c < n; group += COLUMNS_WARPS) sum += sums[group * n + c];
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= n) return;
    for (int w = 1; w < COLUMNS_WARPS; w++) sum += partial[w][lane];
    float *target = c < n_first ? to + c : rest + (c - n_first);
    *target = add ? *target + sum : sum;
}

static inline void columns_total(Device *device, float *to, float *rest, size_t n_first, const float *sums,
                                 size_t groups, size_t n, bool add) {
    CUDA_RUN(device, columns_total_kernel, size_ceil_div(n, WARP), CUDA_THREADS, 0, to, rest, n_first, sums, groups, n,
             add);
}

#endif
