// bias.cuh - the sums of columns on CUDA: dout is read once, 16 bytes a lane at a time.
//
// Blocks in y are groups, blocks in x are WARP vectors of columns. A warp takes every COLUMNS_WARPS-th row of its
// group, in ascending order; warps, then groups are added in order (columns.cuh).
#ifndef BIAS_CUH
#define BIAS_CUH

#include "vector.cuh"

// Sums over a group's rows; lanes have N columns each.
template <Dtype DTYPE, int N>
__global__ static void bias_backward_kernel(float *sums, const void *dout, size_t rows, size_t OC) {
    __shared__ float shared[COLUMNS_WARPS * WARP * N];
    const size_t c0 = (size_t)blockIdx.x * WARP * N, c = c0 + threadIdx.x % WARP * N;
    const size_t per_group = size_ceil_div(rows, gridDim.y), first = blockIdx.y * per_group;
    const size_t last = size_min(rows, first + per_group);
    float own[N] = {};
#pragma unroll 4
    for (size_t r = first + threadIdx.x / WARP; r < last && c < OC; r += COLUMNS_WARPS) {
        Vector<DTYPE, N> x;
        x.load(dout, r * OC + c);
#pragma unroll
        for (int i = 0; i < N; i++) own[i] += x.x[i];
    }
    columns_store<N>(sums + blockIdx.y * OC + c0, OC - c0, own, shared);
}

static inline void bias_backward_cuda(const Context *context, float *dbias, const void *dout, size_t rows, size_t OC,
                                      bool add, float *sums) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    const size_t groups = bias_groups(device, rows);
    const bool wide = vector_is_wide(OC * number_size(dtype), dout, NULL, NULL, NULL);
    auto run = VECTOR_SELECT(dtype, wide, bias_backward_kernel);
    const size_t across = size_ceil_div(OC, WARP * (wide ? vector_wide(dtype) : 1));
    CUDA_RUN_GRID(device, run, cuda_grid(across, groups), CUDA_THREADS, 0, sums, dout, rows, OC);
    columns_total(device, dbias, NULL, OC, sums, groups, OC, add);
}

#endif
