// layernorm.h - every row to mean 0 and variance 1, then scaled and shifted.
//
//     forward    m = mean(x), r = 1 / sqrt(variance(x) + 1e-5),  n = (x - m) r,  y = n w + b
//     backward   dn = dy w,  dx (+)= r (dn - mean(dn) - n mean(dn n)),   dw (+)= sum of dy n,   db (+)= sum of dy
//
// x, y (rows,C), w, b (C) in the storage type; m, r (rows) fp32, kept for the backward; dw, db (C) fp32. The backward
// needs x, m, r. y can be recomputed from x, m, r alone, with the same bits (layernorm_recompute).
// layernorm_forward_residual makes x = a + b first, in the same visit: the bits of residual_forward and then
// layernorm_forward. Cost per element: forward 8 operations, 2 elements moved (4 with the residual, where two visits
// move 5); backward 14, and 3 (4 when dx is added to).
#ifndef LAYERNORM_H
#define LAYERNORM_H

#include "../memory.h"
#include "columns.h"
#include "residual.h"

#define LAYERNORM_EPSILON 1e-5f
enum { LAYERNORM_GROUPS = 32 };  // rows are summed in this many fixed groups, whatever the number of threads

static inline size_t layernorm_groups(const Device *device, size_t rows) {
    return device->real == DEVICE_CUDA ? columns_groups(rows, COLUMNS_WARPS) : (size_t)LAYERNORM_GROUPS;
}

HOST_DEVICE float layernorm_scalar(float x, float mean, float rstd, float w, float b) {
    return fmaf((x - mean) * rstd, w, b);
}

HOST_DEVICE float layernorm_gradient(float x, float dy, float w, float mean, float rstd, float dn_mean,
                                     float dn_n_mean) {
    return rstd * fmaf(-((x - mean) * rstd), dn_n_mean, dy * w - dn_mean);
}

// y of one row, from its statistics.
static inline void layernorm_row(Dtype dtype, void *out, const void *in, size_t row, float mean, float rstd,
                                 const void *w, const void *b, size_t C) {
    float x_block[NUMBER_BLOCK], w_block[NUMBER_BLOCK], b_block[NUMBER_BLOCK], y_block[NUMBER_BLOCK];
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *x = number_load(dtype, in, row + c, n, x_block);
        const float *weight = number_load(dtype, w, c, n, w_block), *bias = number_load(dtype, b, c, n, b_block);
        float *y = number_target(dtype, out, row + c, y_block);
        for (size_t i = 0; i < n; i++) y[i] = layernorm_scalar(x[i], mean, rstd, weight[i], bias[i]);
        number_store(dtype, out, row + c, n, y);
    }
}

static inline void layernorm_statistics(Dtype dtype, const void *in, size_t row, size_t C, float *mean, float *rstd) {
    float block[NUMBER_BLOCK], sum[PARTIALS] = {0}, squares[PARTIALS] = {0};
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        partials_add(sum, number_load(dtype, in, row + c, n, block), n);
    }
    *mean = partials_total(sum) / (float)C;
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        partials_add_squared_differences(squares, number_load(dtype, in, row + c, n, block), *mean, n);
    }
    *rstd = 1.0f / sqrtf(partials_total(squares) / (float)C + LAYERNORM_EPSILON);
}

static inline void layernorm_forward_cpu(Dtype dtype, void *out, float *mean, float *rstd, const void *in,
                                         const void *w, const void *b, size_t rows, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)rows; r++) {
        layernorm_statistics(dtype, in, (size_t)r * C, C, &mean[r], &rstd[r]);
        layernorm_row(dtype, out, in, (size_t)r * C, mean[r], rstd[r], w, b, C);
    }
}

static inline void layernorm_forward_residual_cpu(Dtype dtype, void *out, float *mean, float *rstd, void *sum,
                                                  const void *a, const void *b, const void *w, const void *bias,
                                                  size_t rows, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)rows; r++) {
        const size_t row = (size_t)r * C;
        for (size_t c = 0, n; c < C; c += n) {
            n = size_min(C - c, NUMBER_BLOCK);
            residual_block(dtype, sum, a, b, row + c, n);
        }
        layernorm_statistics(dtype, sum, row, C, &mean[r], &rstd[r]);
        layernorm_row(dtype, out, sum, row, mean[r], rstd[r], w, bias, C);
    }
}

static inline void layernorm_recompute_cpu(Dtype dtype, void *out, const float *mean, const float *rstd,
                                           const void *in, const void *w, const void *b, size_t rows, size_t C) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)rows; r++) {
        layernorm_row(dtype, out, in, (size_t)r * C, mean[r], rstd[r], w, b, C);
    }
}

// One row of the backward: dx, and the row's part of dw and db into the group's sums.
static inline void layernorm_backward_row(Dtype dtype, void *dx, const void *dy, const void *in, const void *w,
                                          size_t row, size_t C, float mean, float rstd, bool add, float *dw_sum,
                                          float *db_sum) {
    float x_block[NUMBER_BLOCK], w_block[NUMBER_BLOCK], dy_block[NUMBER_BLOCK], dx_block[NUMBER_BLOCK];
    float dn_block[NUMBER_BLOCK], n_block[NUMBER_BLOCK];
    float dn_lanes[PARTIALS] = {0}, dn_n_lanes[PARTIALS] = {0};
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *x = number_load(dtype, in, row + c, n, x_block);
        const float *weight = number_load(dtype, w, c, n, w_block), *d = number_load(dtype, dy, row + c, n, dy_block);
        for (size_t i = 0; i < n; i++) {
            n_block[i] = (x[i] - mean) * rstd;
            dn_block[i] = d[i] * weight[i];
            dw_sum[c + i] = fmaf(d[i], n_block[i], dw_sum[c + i]);
            db_sum[c + i] += d[i];
        }
        partials_add(dn_lanes, dn_block, n);
        partials_add_products(dn_n_lanes, dn_block, n_block, n);
    }
    float dn_mean = partials_total(dn_lanes) / (float)C, dn_n_mean = partials_total(dn_n_lanes) / (float)C;
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *x = number_load(dtype, in, row + c, n, x_block);
        const float *weight = number_load(dtype, w, c, n, w_block), *d = number_load(dtype, dy, row + c, n, dy_block);
        const float *before = add ? number_load(dtype, dx, row + c, n, dx_block) : NULL;
        float *to = number_target(dtype, dx, row + c, dx_block);
        for (size_t i = 0; i < n; i++) {
            float gradient = layernorm_gradient(x[i], d[i], weight[i], mean, rstd, dn_mean, dn_n_mean);
            to[i] = before ? before[i] + gradient : gradient;
        }
        number_store(dtype, dx, row + c, n, to);
    }
}

static inline void layernorm_backward_cpu(Dtype dtype, void *dx, float *dw, float *db, const void *dy,
                                          const void *in, const float *mean, const float *rstd, const void *w,
                                          size_t rows, size_t C, bool add_dx, bool add_dw, float *sums) {
    size_t per_group = ceil_div(rows, LAYERNORM_GROUPS);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int group = 0; group < LAYERNORM_GROUPS; group++) {
            float *dw_sum = sums + (size_t)group * 2 * C, *db_sum = dw_sum + C;
            memset(dw_sum, 0, 2 * C * sizeof(float));
            for (size_t r = (size_t)group * per_group; r < size_min(rows, ((size_t)group + 1) * per_group); r++) {
                layernorm_backward_row(dtype, dx, dy, in, w, r * C, C, mean[r], rstd[r], add_dx, dw_sum, db_sum);
            }
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < (int64_t)C; c++) {
            float dw_total = 0.0f, db_total = 0.0f;
            for (size_t group = 0; group < LAYERNORM_GROUPS; group++) {
                dw_total += sums[group * 2 * C + (size_t)c];
                db_total += sums[group * 2 * C + C + (size_t)c];
            }
            dw[c] = add_dw ? dw[c] + dw_total : dw_total;
            db[c] = add_dw ? db[c] + db_total : db_total;
        }
    }
}

#ifdef __CUDACC__
#include "layernorm.cuh"
#endif

static inline void layernorm_forward(Device *device, Dtype dtype, void *out, float *mean, float *rstd,
                                     const void *in, const void *w, const void *b, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 8 * n, 2 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: layernorm_forward_cpu(dtype, out, mean, rstd, in, w, b, rows, C); return;
    case DEVICE_CUDA:
        CUDA_ONLY(layernorm_forward_run<false>(device, dtype, out, mean, rstd, NULL, in, NULL, w, b, rows, C));
        return;
    }
}

// sum = a + b, out = LayerNorm of sum; sum may be a or b.
static inline void layernorm_forward_residual(Device *device, Dtype dtype, void *out, float *mean, float *rstd,
                                              void *sum, const void *a, const void *b, const void *w,
                                              const void *bias, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 9 * n, 4 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: layernorm_forward_residual_cpu(dtype, out, mean, rstd, sum, a, b, w, bias, rows, C); return;
    case DEVICE_CUDA:
        CUDA_ONLY(layernorm_forward_run<true>(device, dtype, out, mean, rstd, sum, a, b, w, bias, rows, C));
        return;
    }
}

// The forward's y again, from the mean and rstd that it left.
static inline void layernorm_recompute(Device *device, Dtype dtype, void *out, const float *mean, const float *rstd,
                                       const void *in, const void *w, const void *b, size_t rows, size_t C) {
    double n = (double)(rows * C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 3 * n, 2 * n * (double)number_size(dtype)); return;
    case DEVICE_CPU: layernorm_recompute_cpu(dtype, out, mean, rstd, in, w, b, rows, C); return;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_recompute_cuda(device, dtype, out, mean, rstd, in, w, b, rows, C)); return;
    }
}

// add_dx: dx holds another path's gradient already (the residual stream); add_dw: not the first micro-batch of a step.
static inline void layernorm_backward(Device *device, Memory *memory, Dtype dtype, void *dx, float *dw, float *db,
                                      const void *dy, const void *in, const float *mean, const float *rstd,
                                      const void *w, size_t rows, size_t C, bool add_dx, bool add_dw) {
    double n = (double)(rows * C);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       layernorm_groups(device, rows) * 2 * C * sizeof(float),
                                       "layernorm gradient sums");
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 14 * n, (add_dx ? 4 : 3) * n * (double)number_size(dtype)); break;
    case DEVICE_CPU:
        layernorm_backward_cpu(dtype, dx, dw, db, dy, in, mean, rstd, w, rows, C, add_dx, add_dw, sums);
        break;
    case DEVICE_CUDA:
        CUDA_ONLY(layernorm_backward_cuda(device, dtype, dx, dw, db, dy, in, mean, rstd, w, rows, C, add_dx, add_dw,
                                          sums));
        break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
