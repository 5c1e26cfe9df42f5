// layernorm.cuh - LayerNorm on CUDA: each tensor crosses the memory bus once.
//
// Forward, with or without the residual, and the recomputation: a row a warp. A row of up to HELD vectors a lane stays
// in registers between its three visits (mean; variance; y). A lane adds its own channels in ascending order, then
// lanes are added in warp_sum()'s order. Backward: a row a warp at a time; its second visit finds it in the first
// cache. dw and db: a lane keeps the sums of its channels over its warp's rows; warps, then groups are added in order
// (columns.cuh).
#ifndef LAYERNORM_CUH
#define LAYERNORM_CUH

#include "vector.cuh"

enum { LAYERNORM_ROWS = CUDA_THREADS / WARP };  // of a block: one a warp

// in (with ADD: in + add, which goes to `sum`). A row of up to HELD vectors a lane (4: 1024 channels in bf16) is read
// once; what is longer is read again from the caches.
template <Dtype DTYPE, int N, int HELD, bool ADD>
__global__ static void layernorm_forward_kernel(void *out, float *mean, float *rstd, void *sum, const void *in,
                                                const void *add, const void *w, const void *b, size_t rows, size_t C) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C;
    const size_t own = threadIdx.x % WARP * N, rest = HELD * WARP * N + own;
    if (r >= rows) return;
    Vector<DTYPE, N> held[HELD], x;
    float total = 0.0f, squares = 0.0f;
    const auto read = [&](Vector<DTYPE, N> &to, size_t c) {
        to.load(in, row + c);
        if (ADD) {
            Vector<DTYPE, N> y;
            y.load(add, row + c);
            for (int i = 0; i < N; i++) to.x[i] += y.x[i];
            to.round();
            to.store(sum, row + c);
        }
        for (int i = 0; i < N; i++) total += to.x[i];
    };
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        if (v * WARP * N + own < C) read(held[v], v * WARP * N + own);
    }
    for (size_t c = rest; c < C; c += WARP * N) read(x, c);
    const float m = warp_sum(total) / (float)C;
    const auto deviate = [&](const Vector<DTYPE, N> &from) {
        for (int i = 0; i < N; i++) squares = fmaf(from.x[i] - m, from.x[i] - m, squares);
    };
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        if (v * WARP * N + own < C) deviate(held[v]);
    }
    for (size_t c = rest; c < C; c += WARP * N) {
        x.load(ADD ? sum : in, row + c);
        deviate(x);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)C + LAYERNORM_EPSILON);
    const auto write = [&](Vector<DTYPE, N> &from, size_t c) {
        Vector<DTYPE, N> weight, bias;
        weight.load(w, c);
        bias.load(b, c);
        for (int i = 0; i < N; i++) from.x[i] = layernorm_scalar(from.x[i], m, scale, weight.x[i], bias.x[i]);
        from.store(out, row + c);
    };
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        if (v * WARP * N + own < C) write(held[v], v * WARP * N + own);
    }
    for (size_t c = rest; c < C; c += WARP * N) {
        x.load(ADD ? sum : in, row + c);
        write(x, c);
    }
    if (own > 0) return;
    mean[r] = m;
    rstd[r] = scale;
}

template <Dtype DTYPE, bool ADD> static inline auto layernorm_form(bool wide, bool few) {
    return !wide ? layernorm_forward_kernel<DTYPE, 1, 8, ADD>
           : few ? layernorm_forward_kernel<DTYPE, vector_wide(DTYPE), 4, ADD>
                 : layernorm_forward_kernel<DTYPE, vector_wide(DTYPE), 8, ADD>;
}
template <Dtype DTYPE> static inline auto layernorm_forward_form(bool wide, bool few) {
    return layernorm_form<DTYPE, false>(wide, few);
}
template <Dtype DTYPE> static inline auto layernorm_residual_form(bool wide, bool few) {
    return layernorm_form<DTYPE, true>(wide, few);
}

template <bool ADD>
static inline void layernorm_forward_run(Device *device, Dtype dtype, void *out, float *mean, float *rstd, void *sum,
                                         const void *in, const void *add, const void *w, const void *b, size_t rows,
                                         size_t C) {
    const size_t row_bytes = C * number_size(dtype);
    const bool wide = vector_is_wide(row_bytes, out, in, w, b) && vector_is_wide(0, add, sum, NULL, NULL);
    const bool few = row_bytes <= 4 * 16 * WARP;
    auto run = ADD ? VECTOR_FORM(dtype, layernorm_residual_form, wide, few)
                   : VECTOR_FORM(dtype, layernorm_forward_form, wide, few);
    CUDA_RUN(device, run, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, out, mean, rstd, sum, in, add, w, b, rows,
             C);
}

template <Dtype DTYPE, int N>
__global__ static void layernorm_recompute_kernel(void *out, const float *mean, const float *rstd, const void *in,
                                                  const void *w, const void *b, size_t rows, size_t C) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C;
    if (r >= rows) return;
    const float m = mean[r], scale = rstd[r];
#pragma unroll 4
    for (size_t c = threadIdx.x % WARP * N; c < C; c += WARP * N) {
        Vector<DTYPE, N> x, weight, bias;
        x.load(in, row + c);
        weight.load(w, c);
        bias.load(b, c);
        for (int i = 0; i < N; i++) x.x[i] = layernorm_scalar(x.x[i], m, scale, weight.x[i], bias.x[i]);
        x.store(out, row + c);
    }
}

static inline void layernorm_recompute_cuda(Device *device, Dtype dtype, void *out, const float *mean,
                                            const float *rstd, const void *in, const void *w, const void *b,
                                            size_t rows, size_t C) {
    auto run = VECTOR_SELECT(dtype, vector_is_wide(C * number_size(dtype), out, in, w, b), layernorm_recompute_kernel);
    CUDA_RUN(device, run, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, out, mean, rstd, in, w, b, rows, C);
}

// A group's rows, one a warp at a time: dx, and the group's sums for dw and db (groups, 2, C), which a lane keeps for
// the HELD vectors of channels that are its own. The second visit to a row finds it in the first cache.
template <Dtype DTYPE, int N, int HELD>
__global__ static void __launch_bounds__(CUDA_THREADS)
    layernorm_backward_kernel(void *dx, float *sums, const void *dy, const void *in, const float *mean,
                              const float *rstd, const void *w, size_t rows, size_t C, bool add) {
    __shared__ float shared[COLUMNS_WARPS * WARP * N];
    const size_t per_group = ceil_div(rows, gridDim.x), first = blockIdx.x * per_group;
    const size_t last = size_min(rows, first + per_group), own = threadIdx.x % WARP * N;
    float dw[HELD][N] = {}, db[HELD][N] = {};
    for (size_t r = first + threadIdx.x / WARP; r < last; r += COLUMNS_WARPS) {
        const float m = mean[r], scale = rstd[r];
        float dn_sum = 0.0f, dn_n_sum = 0.0f;
#pragma unroll
        for (int v = 0; v < HELD; v++) {
            const size_t c = v * WARP * N + own;
            if (c >= C) continue;
            Vector<DTYPE, N> x, d, weight;
            x.load(in, r * C + c);
            d.load(dy, r * C + c);
            weight.load(w, c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float normal = (x.x[i] - m) * scale, dn = d.x[i] * weight.x[i];
                dw[v][i] = fmaf(d.x[i], normal, dw[v][i]);
                db[v][i] += d.x[i];
                dn_sum += dn;
                dn_n_sum = fmaf(dn, normal, dn_n_sum);
            }
        }
        const float dn_mean = warp_sum(dn_sum) / (float)C, dn_n_mean = warp_sum(dn_n_sum) / (float)C;
#pragma unroll 2
        for (size_t c = own; c < C; c += WARP * N) {
            Vector<DTYPE, N> x, d, weight, to;
            x.load(in, r * C + c);
            d.load(dy, r * C + c);
            weight.load(w, c);
            if (add) to.load(dx, r * C + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float gradient = layernorm_gradient(x.x[i], d.x[i], weight.x[i], m, scale, dn_mean, dn_n_mean);
                to.x[i] = add ? to.x[i] + gradient : gradient;
            }
            to.store(dx, r * C + c);
        }
    }
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const size_t c = (size_t)v * WARP * N;
        if (c >= C) break;
        columns_store<N>(sums + blockIdx.x * 2 * C + c, C - c, dw[v], shared);
        columns_store<N>(sums + blockIdx.x * 2 * C + C + c, C - c, db[v], shared);
    }
}

// Where rows are too long for that, or odd: the row's own part, a row a warp; then the sums, a channel a thread.
__global__ static void layernorm_backward_rows_kernel(Dtype dtype, void *dx, const void *dy, const void *in,
                                                      const float *mean, const float *rstd, const void *w, size_t rows,
                                                      size_t C, bool add) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C, lane = threadIdx.x % WARP;
    if (r >= rows) return;
    const float m = mean[r], scale = rstd[r];
    float dn_sum = 0.0f, dn_n_sum = 0.0f;
    for (size_t c = lane; c < C; c += WARP) {
        float normal = (number_get(dtype, in, row + c) - m) * scale;
        float dn = number_get(dtype, dy, row + c) * number_get(dtype, w, c);
        dn_sum += dn;
        dn_n_sum = fmaf(dn, normal, dn_n_sum);
    }
    const float dn_mean = warp_sum(dn_sum) / (float)C, dn_n_mean = warp_sum(dn_n_sum) / (float)C;
    for (size_t c = lane; c < C; c += WARP) {
        const float gradient = layernorm_gradient(number_get(dtype, in, row + c), number_get(dtype, dy, row + c),
                                                  number_get(dtype, w, c), m, scale, dn_mean, dn_n_mean);
        number_put(dtype, dx, row + c, add ? number_get(dtype, dx, row + c) + gradient : gradient);
    }
}

__global__ static void layernorm_backward_groups_kernel(Dtype dtype, float *sums, const void *dy, const void *in,
                                                       const float *mean, const float *rstd, size_t rows, size_t C) {
    const size_t c = (size_t)blockIdx.x * CUDA_THREADS + threadIdx.x, per_group = ceil_div(rows, gridDim.y);
    const size_t first = blockIdx.y * per_group, last = size_min(rows, first + per_group);
    float dw = 0.0f, db = 0.0f;
    if (c >= C) return;
    for (size_t r = first; r < last; r++) {
        float d = number_get(dtype, dy, r * C + c);
        dw = fmaf(d, (number_get(dtype, in, r * C + c) - mean[r]) * rstd[r], dw);
        db += d;
    }
    sums[blockIdx.y * 2 * C + c] = dw;
    sums[blockIdx.y * 2 * C + C + c] = db;
}

template <Dtype DTYPE> static inline auto layernorm_backward_form(bool few) {
    return few ? layernorm_backward_kernel<DTYPE, vector_wide(DTYPE), 4>
               : layernorm_backward_kernel<DTYPE, vector_wide(DTYPE), 8>;
}

static inline void layernorm_backward_cuda(Device *device, Dtype dtype, void *dx, float *dw, float *db, const void *dy,
                                           const void *in, const float *mean, const float *rstd, const void *w,
                                           size_t rows, size_t C, bool add_dx, bool add_dw, float *sums) {
    const size_t groups = layernorm_groups(device, rows), size = number_size(dtype);
    const size_t vectors = ceil_div(C * size, 16 * WARP);
    if (vector_is_wide(C * size, dx, dy, in, w) && vectors <= 8) {
        auto run = VECTOR_FORM(dtype, layernorm_backward_form, vectors <= 4);
        CUDA_RUN(device, run, groups, CUDA_THREADS, 0, dx, sums, dy, in, mean, rstd, w, rows, C, add_dx);
    } else {
        CUDA_RUN(device, layernorm_backward_rows_kernel, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, dtype, dx, dy,
                 in, mean, rstd, w, rows, C, add_dx);
        CUDA_RUN_GRID(device, layernorm_backward_groups_kernel, cuda_grid(ceil_div(C, CUDA_THREADS), groups),
                      CUDA_THREADS, 0, dtype, sums, dy, in, mean, rstd, rows, C);
    }
    columns_total(device, dw, db, C, sums, groups, 2 * C, add_dw);
}

#endif
