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

#include "../context.h"
#include "../partials.h"
#include "columns.h"
#include "residual.h"

#define LAYERNORM_EPSILON 1e-5f
enum { LAYERNORM_GROUPS = 32 };  // rows are summed in this many fixed groups, whatever the number of threads

static inline size_t layernorm_groups(const Device *device, size_t rows) {
    return device->real == DEVICE_CUDA ? columns_groups(rows, COLUMNS_WARPS) : (size_t)LAYERNORM_GROUPS;
}

// What a LayerNorm is made of: w, b (C) in the storage type; of each row that it has seen, mean and rstd = 1 / sqrt(its
// variance + epsilon) (rows) fp32, which the forward writes and everything else reads.
typedef struct {
    const void *w, *b;
    float *mean, *rstd;
    size_t rows, C;
} LayerNorm;

// Where the gradients of w and b go: dw, db (C) fp32, replaced, or (add: not the first micro-batch of a step) added to.
typedef struct {
    float *dw, *db;
    bool add;
} LayerNormGradients;

HOST_DEVICE float layernorm_scalar(float x, float mean, float rstd, float w, float b) {
    return fmaf((x - mean) * rstd, w, b);
}

HOST_DEVICE float layernorm_gradient(float x, float dy, float w, float mean, float rstd, float dn_mean,
                                     float dn_n_mean) {
    return rstd * fmaf(-((x - mean) * rstd), dn_n_mean, dy * w - dn_mean);
}

// y of row r, from its statistics.
static inline void layernorm_row(Dtype dtype, void *y, const void *x, size_t r, const LayerNorm *ln) {
    const size_t C = ln->C, row = r * C;
    const float mean = ln->mean[r], rstd = ln->rstd[r];
    float x_block[NUMBER_BLOCK], w_block[NUMBER_BLOCK], b_block[NUMBER_BLOCK], y_block[NUMBER_BLOCK];
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *in = number_load(dtype, x, row + c, n, x_block), *w = number_load(dtype, ln->w, c, n, w_block);
        const float *b = number_load(dtype, ln->b, c, n, b_block);
        float *out = number_target(dtype, y, row + c, y_block);
        for (size_t i = 0; i < n; i++) out[i] = layernorm_scalar(in[i], mean, rstd, w[i], b[i]);
        number_store(dtype, y, row + c, n, out);
    }
}

static inline void layernorm_statistics(Dtype dtype, const void *x, size_t r, const LayerNorm *ln) {
    const size_t C = ln->C, row = r * C;
    float block[NUMBER_BLOCK], sum[PARTIALS] = {0}, squares[PARTIALS] = {0};
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        partials_add(sum, number_load(dtype, x, row + c, n, block), n);
    }
    const float mean = partials_total(sum) / (float)C;
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        partials_add_squared_differences(squares, number_load(dtype, x, row + c, n, block), mean, n);
    }
    ln->mean[r] = mean;
    ln->rstd[r] = 1.0f / sqrtf(partials_total(squares) / (float)C + LAYERNORM_EPSILON);
}

static inline void layernorm_forward_cpu(Dtype dtype, void *y, const void *x, const LayerNorm *ln) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)ln->rows; r++) {
        layernorm_statistics(dtype, x, (size_t)r, ln);
        layernorm_row(dtype, y, x, (size_t)r, ln);
    }
}

static inline void layernorm_forward_residual_cpu(Dtype dtype, void *y, void *x, const void *a, const void *b,
                                                  const LayerNorm *ln) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)ln->rows; r++) {
        for (size_t c = 0, n; c < ln->C; c += n) {
            n = size_min(ln->C - c, NUMBER_BLOCK);
            residual_block(dtype, x, a, b, (size_t)r * ln->C + c, n);
        }
        layernorm_statistics(dtype, x, (size_t)r, ln);
        layernorm_row(dtype, y, x, (size_t)r, ln);
    }
}

static inline void layernorm_recompute_cpu(Dtype dtype, void *y, const void *x, const LayerNorm *ln) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < (int64_t)ln->rows; r++) layernorm_row(dtype, y, x, (size_t)r, ln);
}

// Row r of the backward: dx, and the row's part of dw and db into the group's sums (2, C).
static inline void layernorm_backward_row(Dtype dtype, void *dx, float *sums, const void *dy, const void *x, size_t r,
                                          const LayerNorm *ln, bool add_dx) {
    const size_t C = ln->C, row = r * C;
    const float mean = ln->mean[r], rstd = ln->rstd[r];
    float *dw = sums, *db = sums + C;
    float x_block[NUMBER_BLOCK], w_block[NUMBER_BLOCK], dy_block[NUMBER_BLOCK], dx_block[NUMBER_BLOCK];
    float dn_block[NUMBER_BLOCK], n_block[NUMBER_BLOCK];
    float dn_sum[PARTIALS] = {0}, dn_n_sum[PARTIALS] = {0};
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *in = number_load(dtype, x, row + c, n, x_block), *w = number_load(dtype, ln->w, c, n, w_block);
        const float *d = number_load(dtype, dy, row + c, n, dy_block);
        for (size_t i = 0; i < n; i++) {
            n_block[i] = (in[i] - mean) * rstd;
            dn_block[i] = d[i] * w[i];
            dw[c + i] = fmaf(d[i], n_block[i], dw[c + i]);
            db[c + i] += d[i];
        }
        partials_add(dn_sum, dn_block, n);
        partials_add_products(dn_n_sum, dn_block, n_block, n);
    }
    const float dn_mean = partials_total(dn_sum) / (float)C, dn_n_mean = partials_total(dn_n_sum) / (float)C;
    for (size_t c = 0, n; c < C; c += n) {
        n = size_min(C - c, NUMBER_BLOCK);
        const float *in = number_load(dtype, x, row + c, n, x_block), *w = number_load(dtype, ln->w, c, n, w_block);
        const float *d = number_load(dtype, dy, row + c, n, dy_block);
        const float *before = add_dx ? number_load(dtype, dx, row + c, n, dx_block) : NULL;
        float *to = number_target(dtype, dx, row + c, dx_block);
        for (size_t i = 0; i < n; i++) {
            float gradient = layernorm_gradient(in[i], d[i], w[i], mean, rstd, dn_mean, dn_n_mean);
            to[i] = before ? before[i] + gradient : gradient;
        }
        number_store(dtype, dx, row + c, n, to);
    }
}

// sums: scratch (LAYERNORM_GROUPS, 2, C).
static inline void layernorm_backward_cpu(Dtype dtype, void *dx, const LayerNormGradients *gradients, const void *dy,
                                          const void *x, const LayerNorm *ln, bool add_dx, float *sums) {
    const size_t C = ln->C, per_group = size_ceil_div(ln->rows, LAYERNORM_GROUPS);
    const bool add = gradients->add;
    float *dw = gradients->dw, *db = gradients->db;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int group = 0; group < LAYERNORM_GROUPS; group++) {
            const size_t first = (size_t)group * per_group, end = size_min(ln->rows, first + per_group);
            float *of_group = sums + (size_t)group * 2 * C;
            memset(of_group, 0, 2 * C * sizeof(float));
            for (size_t r = first; r < end; r++) layernorm_backward_row(dtype, dx, of_group, dy, x, r, ln, add_dx);
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < (int64_t)C; c++) {
            float dw_total = 0.0f, db_total = 0.0f;
            for (size_t group = 0; group < LAYERNORM_GROUPS; group++) {
                dw_total += sums[group * 2 * C + (size_t)c];
                db_total += sums[group * 2 * C + C + (size_t)c];
            }
            dw[c] = add ? dw[c] + dw_total : dw_total;
            db[c] = add ? db[c] + db_total : db_total;
        }
    }
}

#ifdef __CUDACC__
#include "layernorm.cuh"
#endif

// y (rows,C) = LayerNorm of x (rows,C); leaves the statistics in ln->mean and ln->rstd.
static inline void layernorm_forward(const Context *context, void *y, const void *x, const LayerNorm *ln) {
    Device *device = context->device;
    double n = (double)(ln->rows * ln->C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 8 * n, 2 * n * (double)number_size(context->dtype)); return;
    case DEVICE_CPU: layernorm_forward_cpu(context->dtype, y, x, ln); return;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_forward_cuda(context, y, x, ln)); return;
    }
}

// x = a + b, y = LayerNorm of x, all (rows,C); x may be a or b.
static inline void layernorm_forward_residual(const Context *context, void *y, void *x, const void *a, const void *b,
                                              const LayerNorm *ln) {
    Device *device = context->device;
    double n = (double)(ln->rows * ln->C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 9 * n, 4 * n * (double)number_size(context->dtype)); return;
    case DEVICE_CPU: layernorm_forward_residual_cpu(context->dtype, y, x, a, b, ln); return;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_forward_residual_cuda(context, y, x, a, b, ln)); return;
    }
}

// The forward's y again, from x and the statistics that it left.
static inline void layernorm_recompute(const Context *context, void *y, const void *x, const LayerNorm *ln) {
    Device *device = context->device;
    double n = (double)(ln->rows * ln->C);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 3 * n, 2 * n * (double)number_size(context->dtype)); return;
    case DEVICE_CPU: layernorm_recompute_cpu(context->dtype, y, x, ln); return;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_recompute_cuda(context, y, x, ln)); return;
    }
}

// dx (rows,C) and the parameters' gradients, from dy, and the forward's x and statistics. add_dx: dx holds another
// path's gradient already (the residual stream's).
static inline void layernorm_backward(const Context *context, void *dx, const LayerNormGradients *gradients,
                                      const void *dy, const void *x, const LayerNorm *ln, bool add_dx) {
    Device *device = context->device;
    Memory *memory = context->memory;
    const Dtype dtype = context->dtype;
    double n = (double)(ln->rows * ln->C);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    float *sums = (float *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH,
                                       layernorm_groups(device, ln->rows) * 2 * ln->C * sizeof(float),
                                       "layernorm gradient sums");
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 14 * n, (add_dx ? 4 : 3) * n * (double)number_size(dtype)); break;
    case DEVICE_CPU: layernorm_backward_cpu(dtype, dx, gradients, dy, x, ln, add_dx, sums); break;
    case DEVICE_CUDA: CUDA_ONLY(layernorm_backward_cuda(context, dx, gradients, dy, x, ln, add_dx, sums)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

#endif
