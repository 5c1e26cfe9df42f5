// layernorm.h - every row to mean 0 and variance 1, then scaled and shifted.
//
//     forward    m = mean(x), r = 1 / sqrt(variance(x) + 1e-5),  n = (x - m) r,  y = n w + b
//     backward   dn = dy w,  dx (+)= r (dn - mean(dn) - n mean(dn n)),   dw (+)= sum of dy n,   db (+)= sum of dy
//
// x, y (rows,C), w, b (C) in the storage type; m, r (rows) fp32, kept for the backward; dw, db (C) fp32. The backward
// needs x, m, r. y can be recomputed from x, m, r alone, with the same bits (layernorm_recompute).
// Cost per element: forward 8 operations, 2 elements moved; backward 14, and 3 (4 when dx is added to).
#ifndef LAYERNORM_H
#define LAYERNORM_H

#include "../memory.h"

#define LAYERNORM_EPSILON 1e-5f
enum { LAYERNORM_SLOTS = 32 };  // rows are summed in this many fixed groups, whatever the number of threads

SHARED float layernorm_scalar(float x, float mean, float rstd, float w, float b) {
    return fmaf((x - mean) * rstd, w, b);
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

#ifdef __CUDACC__
enum { LAYERNORM_ROWS = CUDA_THREADS / WARP };  // per block: a row per warp

__global__ static void layernorm_forward_kernel(Number type, void *out, float *mean, float *rstd, const void *in,
                                                const void *w, const void *b, size_t rows, size_t C) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, row = r * C, lane = threadIdx.x % WARP;
    if (r >= rows) return;
    float sum = 0.0f, squares = 0.0f;
    for (size_t c = lane; c < C; c += WARP) sum += number_get(type, in, row + c);
    const float m = warp_sum(sum) / (float)C;
    for (size_t c = lane; c < C; c += WARP) {
        float d = number_get(type, in, row + c) - m;
        squares = fmaf(d, d, squares);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)C + LAYERNORM_EPSILON);
    for (size_t c = lane; c < C; c += WARP) {
        number_put(type, out, row + c, layernorm_scalar(number_get(type, in, row + c), m, scale, number_get(type, w, c),
                                                        number_get(type, b, c)));
    }
    if (lane == 0) {
        mean[r] = m;
        rstd[r] = scale;
    }
}

static inline void layernorm_forward_cuda(Device *device, Number type, void *out, float *mean, float *rstd,
                                          const void *in, const void *w, const void *b, size_t rows, size_t C) {
    CUDA_RUN(device, layernorm_forward_kernel, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, type, out, mean, rstd,
             in, w, b, rows, C);
}
#endif

static inline void layernorm_forward(Device *device, Number type, void *out, float *mean, float *rstd,
                                     const void *in, const void *w, const void *b, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_plan(device, 8 * n, 2 * n * (double)number_size(type)); return;
    case DEVICE_CPU: layernorm_forward_cpu(type, out, mean, rstd, in, w, b, rows, C); return;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_forward_cuda(device, type, out, mean, rstd, in, w, b, rows, C)); return;
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
__global__ static void layernorm_recompute_kernel(Number type, void *out, const float *mean, const float *rstd,
                                                  const void *in, const void *w, const void *b, size_t C, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        size_t r = i / C, c = i % C;
        number_put(type, out, i, layernorm_scalar(number_get(type, in, i), mean[r], rstd[r], number_get(type, w, c),
                                                  number_get(type, b, c)));
    }
}

static inline void layernorm_recompute_cuda(Device *device, Number type, void *out, const float *mean,
                                            const float *rstd, const void *in, const void *w, const void *b,
                                            size_t rows, size_t C) {
    CUDA_RUN(device, layernorm_recompute_kernel, cuda_blocks(rows * C), CUDA_THREADS, 0, type, out, mean, rstd, in, w,
             b, C, rows * C);
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
            float dn = d[i] * weight[i], normal = (x[i] - mean) * rstd;
            float gradient = rstd * fmaf(-normal, dn_n_mean, dn - dn_mean);
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
// The row's own part: a row per warp.
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
        float normal = (number_get(type, in, row + c) - m) * scale;
        float dn = number_get(type, dy, row + c) * number_get(type, w, c);
        float gradient = scale * fmaf(-normal, dn_n_mean, dn - dn_mean);
        number_put(type, dx, row + c, add ? number_get(type, dx, row + c) + gradient : gradient);
    }
}

// Sums over a slot's rows: blocks in y are slots, threads channels.
__global__ static void layernorm_backward_slots_kernel(Number type, float *sums, const void *dy, const void *in,
                                                       const float *mean, const float *rstd, size_t rows, size_t C) {
    const size_t c = (size_t)blockIdx.x * CUDA_THREADS + threadIdx.x, per_slot = ceil_div(rows, LAYERNORM_SLOTS);
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

__global__ static void layernorm_backward_total_kernel(float *dw, float *db, const float *sums, size_t C, bool add) {
    const size_t c = (size_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    float dw_total = 0.0f, db_total = 0.0f;
    if (c >= C) return;
    for (size_t slot = 0; slot < LAYERNORM_SLOTS; slot++) {
        dw_total += sums[slot * 2 * C + c];
        db_total += sums[slot * 2 * C + C + c];
    }
    dw[c] = add ? dw[c] + dw_total : dw_total;
    db[c] = add ? db[c] + db_total : db_total;
}

static inline void layernorm_backward_cuda(Device *device, Number type, void *dx, float *dw, float *db, const void *dy,
                                           const void *in, const float *mean, const float *rstd, const void *w,
                                           size_t rows, size_t C, bool add_dx, bool add_dw, float *sums) {
    const size_t across = ceil_div(C, CUDA_THREADS);
    CUDA_RUN(device, layernorm_backward_rows_kernel, ceil_div(rows, LAYERNORM_ROWS), CUDA_THREADS, 0, type, dx, dy, in,
             mean, rstd, w, rows, C, add_dx);
    CUDA_RUN_GRID(device, layernorm_backward_slots_kernel, cuda_grid(across, LAYERNORM_SLOTS), CUDA_THREADS, 0, type,
                  sums, dy, in, mean, rstd, rows, C);
    CUDA_RUN(device, layernorm_backward_total_kernel, across, CUDA_THREADS, 0, dw, db, sums, C, add_dw);
}
#endif

// add_dx: dx holds another path's gradient already (the residual stream); add_dw: not the first micro-batch of a step.
static inline void layernorm_backward(Device *device, Memory *memory, Number type, void *dx, float *dw, float *db,
                                      const void *dy, const void *in, const float *mean, const float *rstd,
                                      const void *w, size_t rows, size_t C, bool add_dx, bool add_dw) {
    double n = (double)(rows * C);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, LAYERNORM_SLOTS * 2 * C * sizeof(float),
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
