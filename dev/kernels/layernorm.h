// layernorm.h - every row to mean 0 and variance 1, then scaled and shifted.
//
//     forward    m = mean(x), r = 1 / sqrt(variance(x) + 1e-5),  n = (x - m) r,  y = n w + b
//     backward   dn = dy w,  dx (+)= r (dn - mean(dn) - n mean(dn n)),   dw (+)= sum of dy n,   db (+)= sum of dy
//
// x, y (rows,C), w, b (C) in the storage type; m, r (rows) fp32, kept for the backward; dw, db (C) fp32. The backward
// needs x, m, r. y can be recomputed from x, m, r alone, with the same bits (layernorm_recompute).
// layernorm_forward_residual makes x = a + b first, in the same visit: the bits of residual_forward and then
// layernorm_forward. Cost per element: forward 8 operations, 2 elements moved (4 with the residual, where two visits
// move 5); backward 14, and 3 (4 when dx is added to). On CUDA each tensor crosses the memory bus once: a warp keeps
// its row in registers (forward) or finds it in the first cache (backward).
#ifndef LAYERNORM_H
#define LAYERNORM_H

#include "../memory.h"
#include "residual.h"

#define LAYERNORM_EPSILON 1e-5f
enum { LAYERNORM_SLOTS = 32 };  // rows are summed in this many fixed groups, whatever the number of threads

static inline size_t layernorm_slots(const Device *device, size_t rows) {
    return device->real == DEVICE_CUDA ? columns_slots(rows, VECTOR_WARPS) : (size_t)LAYERNORM_SLOTS;
}

SHARED float layernorm_scalar(float x, float mean, float rstd, float w, float b) {
    return fmaf((x - mean) * rstd, w, b);
}

SHARED float layernorm_gradient(float x, float dy, float w, float mean, float rstd, float dn_mean, float dn_n_mean) {
    return rstd * fmaf(-((x - mean) * rstd), dn_n_mean, dy * w - dn_mean);
}

// y of one row, from its statistics.
static inline void layernorm_row(Number type, void *out, const void *in, size_t row, float mean, float rstd,
                                 const void *w, const void *b, size_t C) {
    float x_block[NUMBER_BLOCK], w_block[NUMBER_BLOCK], b_block[NUMBER_BLOCK], y_block[NUMBER_BLOCK];
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *x = number_load(type, in, row + c, n, x_block);
        const float *weight = number_load(type, w, c, n, w_block), *bias = number_load(type, b, c, n, b_block);
        float *y = number_target(type, out, row + c, y_block);
        for (size_t i = 0; i < n; i++) y[i] = layernorm_scalar(x[i], mean, rstd, weight[i], bias[i]);
        number_store(type, out, row + c, n, y);
    }
}

static inline void layernorm_statistics(Number type, const void *in, size_t row, size_t C, float *mean, float *rstd) {
    float block[NUMBER_BLOCK], sum[LANES] = {0}, squares[LANES] = {0};
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        lanes_add(sum, number_load(type, in, row + c, n, block), n);
    }
    *mean = lanes_total(sum) / (float)C;
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        lanes_add_squared_differences(squares, number_load(type, in, row + c, n, block), *mean, n);
    }
    *rstd = 1.0f / sqrtf(lanes_total(squares) / (float)C + LAYERNORM_EPSILON);
}

static inline void layernorm_forward_cpu(Number type, void *out, float *mean, float *rstd, const void *in,
                                         const void *w, const void *b, size_t rows, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)rows; r++) {
        layernorm_statistics(type, in, (size_t)r * C, C, &mean[r], &rstd[r]);
        layernorm_row(type, out, in, (size_t)r * C, mean[r], rstd[r], w, b, C);
    }
}

static inline void layernorm_forward_residual_cpu(Number type, void *out, float *mean, float *rstd, void *sum,
                                                  const void *a, const void *b, const void *w, const void *bias,
                                                  size_t rows, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)rows; r++) {
        const size_t row = (size_t)r * C;
        for (size_t c = 0, n; c < C; c += n) {
            n = size_min(C - c, NUMBER_BLOCK);
            residual_block(type, sum, a, b, row + c, n);
        }
        layernorm_statistics(type, sum, row, C, &mean[r], &rstd[r]);
        layernorm_row(type, out, sum, row, mean[r], rstd[r], w, bias, C);
    }
}

#ifdef __CUDACC__
enum { LAYERNORM_ROWS = CUDA_THREADS / WARP };  // of a block: one a warp

// in (with ADD: in + add, which goes to `sum`). A row of up to HELD vectors a lane (4: 1024 channels in bf16) is read
// once; what is longer is read again from the caches.
template <Number TYPE, int N, int HELD, bool ADD>
__global__ static void layernorm_forward_kernel(void *out, float *mean, float *rstd, void *sum, const void *in,
                                                const void *add, const void *w, const void *b, size_t rows, size_t C) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C;
    const size_t own = threadIdx.x % WARP * N, rest = HELD * WARP * N + own;
    if (r >= rows) return;
    Vector<TYPE, N> held[HELD], x;
    float total = 0.0f, squares = 0.0f;
    const auto read = [&](Vector<TYPE, N> &to, size_t c) {
        to.load(in, row + c);
        if (ADD) {
            Vector<TYPE, N> y;
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
    const auto deviate = [&](const Vector<TYPE, N> &from) {
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
    const auto write = [&](Vector<TYPE, N> &from, size_t c) {
        Vector<TYPE, N> weight, bias;
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

template <Number TYPE, bool ADD> static inline auto layernorm_form(bool wide, bool few) {
    return !wide ? layernorm_forward_kernel<TYPE, 1, 8, ADD>
           : few ? layernorm_forward_kernel<TYPE, vector_wide(TYPE), 4, ADD>
                 : layernorm_forward_kernel<TYPE, vector_wide(TYPE), 8, ADD>;
}
template <Number TYPE> static inline auto layernorm_forward_form(bool wide, bool few) {
    return layernorm_form<TYPE, false>(wide, few);
}
template <Number TYPE> static inline auto layernorm_residual_form(bool wide, bool few) {
    return layernorm_form<TYPE, true>(wide, few);
}

template <bool ADD>
static inline void layernorm_forward_run(Device *device, Number type, void *out, float *mean, float *rstd, void *sum,
                                         const void *in, const void *add, const void *w, const void *b, size_t rows,
                                         size_t C) {
    const size_t row_bytes = C * number_size(type);
    const bool wide = vector_is_wide(row_bytes, out, in, w, b) && vector_is_wide(0, add, sum, NULL, NULL);
    const bool few = row_bytes <= 4 * 16 * WARP;
    auto run = ADD ? VECTOR_FORM(type, layernorm_residual_form, wide, few)
                   : VECTOR_FORM(type, layernorm_forward_form, wide, few);
    CUDA_RUN(device, run, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, out, mean, rstd, sum, in, add, w, b, rows,
             C);
}
#endif

static inline void layernorm_forward(Device *device, Number type, void *out, float *mean, float *rstd,
                                     const void *in, const void *w, const void *b, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 8 * n, 2 * n * (double)number_size(type)); return;
    case DEVICE_CPU: layernorm_forward_cpu(type, out, mean, rstd, in, w, b, rows, C); return;
    case DEVICE_CUDA:
        CUDA_ONLY(layernorm_forward_run<false>(device, type, out, mean, rstd, NULL, in, NULL, w, b, rows, C));
        return;
    }
}

// sum = a + b, out = LayerNorm of sum; sum may be a or b.
static inline void layernorm_forward_residual(Device *device, Number type, void *out, float *mean, float *rstd,
                                              void *sum, const void *a, const void *b, const void *w,
                                              const void *bias, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 9 * n, 4 * n * (double)number_size(type)); return;
    case DEVICE_CPU: layernorm_forward_residual_cpu(type, out, mean, rstd, sum, a, b, w, bias, rows, C); return;
    case DEVICE_CUDA:
        CUDA_ONLY(layernorm_forward_run<true>(device, type, out, mean, rstd, sum, a, b, w, bias, rows, C));
        return;
    }
}

static inline void layernorm_recompute_cpu(Number type, void *out, const float *mean, const float *rstd,
                                           const void *in, const void *w, const void *b, size_t rows, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)rows; r++) {
        layernorm_row(type, out, in, (size_t)r * C, mean[r], rstd[r], w, b, C);
    }
}

#ifdef __CUDACC__
template <Number TYPE, int N>
__global__ static void layernorm_recompute_kernel(void *out, const float *mean, const float *rstd, const void *in,
                                                  const void *w, const void *b, size_t rows, size_t C) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C;
    if (r >= rows) return;
    const float m = mean[r], scale = rstd[r];
#pragma unroll 4
    for (size_t c = threadIdx.x % WARP * N; c < C; c += WARP * N) {
        Vector<TYPE, N> x, weight, bias;
        x.load(in, row + c);
        weight.load(w, c);
        bias.load(b, c);
        for (int i = 0; i < N; i++) x.x[i] = layernorm_scalar(x.x[i], m, scale, weight.x[i], bias.x[i]);
        x.store(out, row + c);
    }
}

static inline void layernorm_recompute_cuda(Device *device, Number type, void *out, const float *mean,
                                            const float *rstd, const void *in, const void *w, const void *b,
                                            size_t rows, size_t C) {
    auto run = VECTOR_SELECT(type, vector_is_wide(C * number_size(type), out, in, w, b), layernorm_recompute_kernel);
    CUDA_RUN(device, run, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, out, mean, rstd, in, w, b, rows, C);
}
#endif

// The forward's y again, from the mean and rstd that it left.
static inline void layernorm_recompute(Device *device, Number type, void *out, const float *mean, const float *rstd,
                                       const void *in, const void *w, const void *b, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 3 * n, 2 * n * (double)number_size(type)); return;
    case DEVICE_CPU: layernorm_recompute_cpu(type, out, mean, rstd, in, w, b, rows, C); return;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_recompute_cuda(device, type, out, mean, rstd, in, w, b, rows, C)); return;
    }
}

// One row of the backward: dx, and the row's part of dw and db into the slot's sums.
static inline void layernorm_backward_row(Number type, void *dx, const void *dy, const void *in, const void *w,
                                          size_t row, size_t C, float mean, float rstd, bool add, float *dw_sum,
                                          float *db_sum) {
    float x_block[NUMBER_BLOCK], w_block[NUMBER_BLOCK], dy_block[NUMBER_BLOCK], dx_block[NUMBER_BLOCK];
    float dn_block[NUMBER_BLOCK], n_block[NUMBER_BLOCK];
    float dn_lanes[LANES] = {0}, dn_n_lanes[LANES] = {0};
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *x = number_load(type, in, row + c, n, x_block);
        const float *weight = number_load(type, w, c, n, w_block), *d = number_load(type, dy, row + c, n, dy_block);
        for (size_t i = 0; i < n; i++) {
            n_block[i] = (x[i] - mean) * rstd;
            dn_block[i] = d[i] * weight[i];
            dw_sum[c + i] = fmaf(d[i], n_block[i], dw_sum[c + i]);
            db_sum[c + i] += d[i];
        }
        lanes_add(dn_lanes, dn_block, n);
        lanes_add_products(dn_n_lanes, dn_block, n_block, n);
    }
    float dn_mean = lanes_total(dn_lanes) / (float)C, dn_n_mean = lanes_total(dn_n_lanes) / (float)C;
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *x = number_load(type, in, row + c, n, x_block);
        const float *weight = number_load(type, w, c, n, w_block), *d = number_load(type, dy, row + c, n, dy_block);
        const float *before = add ? number_load(type, dx, row + c, n, dx_block) : NULL;
        float *to = number_target(type, dx, row + c, dx_block);
        for (size_t i = 0; i < n; i++) {
            float gradient = layernorm_gradient(x[i], d[i], weight[i], mean, rstd, dn_mean, dn_n_mean);
            to[i] = before ? before[i] + gradient : gradient;
        }
        number_store(type, dx, row + c, n, to);
    }
}

static inline void layernorm_backward_cpu(Number type, void *dx, float *dw, float *db, const void *dy,
                                          const void *in, const float *mean, const float *rstd, const void *w,
                                          size_t rows, size_t C, bool add_dx, bool add_dw, float *sums) {
    size_t per_slot = ceil_div(rows, LAYERNORM_SLOTS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int slot = 0; slot < LAYERNORM_SLOTS; slot++) {
            float *dw_sum = sums + (size_t)slot * 2 * C, *db_sum = dw_sum + C;
            memset(dw_sum, 0, 2 * C * sizeof(float));
            for (size_t r = (size_t)slot * per_slot; r < size_min(rows, ((size_t)slot + 1) * per_slot); r++) {
                layernorm_backward_row(type, dx, dy, in, w, r * C, C, mean[r], rstd[r], add_dx, dw_sum, db_sum);
            }
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < (int64_t)C; c++) {
            float dw_total = 0.0f, db_total = 0.0f;
            for (size_t slot = 0; slot < LAYERNORM_SLOTS; slot++) {
                dw_total += sums[slot * 2 * C + (size_t)c];
                db_total += sums[slot * 2 * C + C + (size_t)c];
            }
            dw[c] = add_dw ? dw[c] + dw_total : dw_total;
            db[c] = add_dw ? db[c] + db_total : db_total;
        }
    }
}

#ifdef __CUDACC__
// A slot's rows, one a warp at a time: dx, and the slot's sums for dw and db (slots, 2, C), which a lane keeps for the
// HELD vectors of channels that are its own. The second visit to a row finds it in the first cache.
template <Number TYPE, int N, int HELD>
__global__ static void __launch_bounds__(CUDA_THREADS)
    layernorm_backward_kernel(void *dx, float *sums, const void *dy, const void *in, const float *mean,
                              const float *rstd, const void *w, size_t rows, size_t C, bool add) {
    __shared__ float shared[VECTOR_WARPS * WARP * N];
    const size_t per_slot = ceil_div(rows, gridDim.x), first = blockIdx.x * per_slot;
    const size_t last = size_min(rows, first + per_slot), own = threadIdx.x % WARP * N;
    float dw[HELD][N] = {}, db[HELD][N] = {};
    for (size_t r = first + threadIdx.x / WARP; r < last; r += VECTOR_WARPS) {
        const float m = mean[r], scale = rstd[r];
        float dn_sum = 0.0f, dn_n_sum = 0.0f;
#pragma unroll
        for (int v = 0; v < HELD; v++) {
            const size_t c = v * WARP * N + own;
            if (c >= C) continue;
            Vector<TYPE, N> x, d, weight;
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
            Vector<TYPE, N> x, d, weight, to;
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
__global__ static void layernorm_backward_rows_kernel(Number type, void *dx, const void *dy, const void *in,
                                                      const float *mean, const float *rstd, const void *w, size_t rows,
                                                      size_t C, bool add) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C, lane = threadIdx.x % WARP;
    if (r >= rows) return;
    const float m = mean[r], scale = rstd[r];
    float dn_sum = 0.0f, dn_n_sum = 0.0f;
    for (size_t c = lane; c < C; c += WARP) {
        float normal = (number_get(type, in, row + c) - m) * scale;
        float dn = number_get(type, dy, row + c) * number_get(type, w, c);
        dn_sum += dn;
        dn_n_sum = fmaf(dn, normal, dn_n_sum);
    }
    const float dn_mean = warp_sum(dn_sum) / (float)C, dn_n_mean = warp_sum(dn_n_sum) / (float)C;
    for (size_t c = lane; c < C; c += WARP) {
        const float gradient = layernorm_gradient(number_get(type, in, row + c), number_get(type, dy, row + c),
                                                  number_get(type, w, c), m, scale, dn_mean, dn_n_mean);
        number_put(type, dx, row + c, add ? number_get(type, dx, row + c) + gradient : gradient);
    }
}

__global__ static void layernorm_backward_slots_kernel(Number type, float *sums, const void *dy, const void *in,
                                                       const float *mean, const float *rstd, size_t rows, size_t C) {
    const size_t c = (size_t)blockIdx.x * CUDA_THREADS + threadIdx.x, per_slot = ceil_div(rows, gridDim.y);
    const size_t first = blockIdx.y * per_slot, last = size_min(rows, first + per_slot);
    float dw = 0.0f, db = 0.0f;
    if (c >= C) return;
    for (size_t r = first; r < last; r++) {
        float d = number_get(type, dy, r * C + c);
        dw = fmaf(d, (number_get(type, in, r * C + c) - mean[r]) * rstd[r], dw);
        db += d;
    }
    sums[blockIdx.y * 2 * C + c] = dw;
    sums[blockIdx.y * 2 * C + C + c] = db;
}

template <Number TYPE> static inline auto layernorm_backward_form(bool few) {
    return few ? layernorm_backward_kernel<TYPE, vector_wide(TYPE), 4>
               : layernorm_backward_kernel<TYPE, vector_wide(TYPE), 8>;
}

static inline void layernorm_backward_cuda(Device *device, Number type, void *dx, float *dw, float *db, const void *dy,
                                           const void *in, const float *mean, const float *rstd, const void *w,
                                           size_t rows, size_t C, bool add_dx, bool add_dw, float *sums) {
    const size_t slots = layernorm_slots(device, rows), size = number_size(type);
    const size_t vectors = ceil_div(C * size, 16 * WARP);
    if (vector_is_wide(C * size, dx, dy, in, w) && vectors <= 8) {
        auto run = VECTOR_FORM(type, layernorm_backward_form, vectors <= 4);
        CUDA_RUN(device, run, slots, CUDA_THREADS, 0, dx, sums, dy, in, mean, rstd, w, rows, C, add_dx);
    } else {
        CUDA_RUN(device, layernorm_backward_rows_kernel, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, type, dx, dy,
                 in, mean, rstd, w, rows, C, add_dx);
        CUDA_RUN_GRID(device, layernorm_backward_slots_kernel, cuda_grid(ceil_div(C, CUDA_THREADS), slots),
                      CUDA_THREADS, 0, type, sums, dy, in, mean, rstd, rows, C);
    }
    columns_total(device, dw, db, C, sums, slots, 2 * C, add_dw);
}
#endif

// add_dx: dx holds another path's gradient already (the residual stream); add_dw: not the first micro-batch of a step.
static inline void layernorm_backward(Device *device, Memory *memory, Number type, void *dx, float *dw, float *db,
                                      const void *dy, const void *in, const float *mean, const float *rstd,
                                      const void *w, size_t rows, size_t C, bool add_dx, bool add_dw) {
    double n = (double)(rows * C);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       layernorm_slots(device, rows) * 2 * C * sizeof(float),
                                       "layernorm gradient sums");
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 14 * n, (add_dx ? 4 : 3) * n * (double)number_size(type)); break;
    case DEVICE_CPU:
        layernorm_backward_cpu(type, dx, dw, db, dy, in, mean, rstd, w, rows, C, add_dx, add_dw, sums);
        break;
    case DEVICE_CUDA:
        CUDA_ONLY(layernorm_backward_cuda(device, type, dx, dw, db, dy, in, mean, rstd, w, rows, C, add_dx, add_dw,
                                          sums));
        break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
