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
#include "warp.cuh"

enum { LAYERNORM_ROWS = CUDA_THREADS / WARP };  // of a block: one a warp

// y = LayerNorm of x; with ADD, of a + b, which goes to x. A row of up to HELD vectors a lane (4: 1024 channels in
// bf16) is read once; what is longer is read again from the caches.
template <Dtype DTYPE, int N, int HELD, bool ADD>
__global__ static void layernorm_forward_kernel(LayerNorm ln, void *y, void *x, const void *a, const void *b) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, C = ln.C, row = r * C;
    const size_t own = threadIdx.x % WARP * N, rest = HELD * WARP * N + own;
    if (r >= ln.rows) return;
    Vector<DTYPE, N> held[HELD], more;
    float total = 0.0f, squares = 0.0f;
    const auto read = [&](Vector<DTYPE, N> &to, size_t c) {
        to.load(ADD ? a : x, row + c);
        if (ADD) {
            Vector<DTYPE, N> other;
            other.load(b, row + c);
            for (int i = 0; i < N; i++) to.x[i] += other.x[i];
            to.round();
            to.store(x, row + c);
        }
        for (int i = 0; i < N; i++) total += to.x[i];
    };
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        if (v * WARP * N + own < C) read(held[v], v * WARP * N + own);
    }
    for (size_t c = rest; c < C; c += WARP * N) read(more, c);
    const float m = warp_sum(total) / (float)C;
    const auto deviate = [&](const Vector<DTYPE, N> &from) {
        for (int i = 0; i < N; i++) squares = fmaf(from.x[i] - m, from.x[i] - m, squares);
    };
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        if (v * WARP * N + own < C) deviate(held[v]);
    }
    for (size_t c = rest; c < C; c += WARP * N) {
        more.load(x, row + c);
        deviate(more);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)C + LAYERNORM_EPSILON);
    const auto write = [&](Vector<DTYPE, N> &from, size_t c) {
        Vector<DTYPE, N> weight, bias;
        weight.load(ln.w, c);
        bias.load(ln.b, c);
        for (int i = 0; i < N; i++) from.x[i] = layernorm_scalar(from.x[i], m, scale, weight.x[i], bias.x[i]);
        from.store(y, row + c);
    };
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        if (v * WARP * N + own < C) write(held[v], v * WARP * N + own);
    }
    for (size_t c = rest; c < C; c += WARP * N) {
        more.load(x, row + c);
        write(more, c);
    }
    if (own > 0) return;
    ln.mean[r] = m;
    ln.rstd[r] = scale;
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

// a, b: NULL where nothing is added.
static inline void layernorm_forward_residual_cuda(const Context *context, void *y, void *x, const void *a,
                                                   const void *b, const LayerNorm *ln) {
    const size_t row_bytes = ln->C * number_size(context->dtype);
    const bool wide = vector_is_wide(row_bytes, y, x, ln->w, ln->b) && vector_is_wide(0, a, b, NULL, NULL);
    const bool few = row_bytes <= 4 * 16 * WARP;
    auto run = a ? VECTOR_FORM(context->dtype, layernorm_residual_form, wide, few)
                 : VECTOR_FORM(context->dtype, layernorm_forward_form, wide, few);
    CUDA_RUN(context->device, run, size_ceil_div(ln->rows, LAYERNORM_ROWS), CUDA_THREADS, 0, *ln, y, x, a, b);
}

static inline void layernorm_forward_cuda(const Context *context, void *y, const void *x, const LayerNorm *ln) {
    layernorm_forward_residual_cuda(context, y, (void *)(uintptr_t)x, NULL, NULL, ln);  // x is only read
}

template <Dtype DTYPE, int N>
__global__ static void layernorm_recompute_kernel(LayerNorm ln, void *y, const void *x) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, C = ln.C, row = r * C;
    if (r >= ln.rows) return;
    const float m = ln.mean[r], scale = ln.rstd[r];
#pragma unroll 4
    for (size_t c = threadIdx.x % WARP * N; c < C; c += WARP * N) {
        Vector<DTYPE, N> in, weight, bias;
        in.load(x, row + c);
        weight.load(ln.w, c);
        bias.load(ln.b, c);
        for (int i = 0; i < N; i++) in.x[i] = layernorm_scalar(in.x[i], m, scale, weight.x[i], bias.x[i]);
        in.store(y, row + c);
    }
}

static inline void layernorm_recompute_cuda(const Context *context, void *y, const void *x, const LayerNorm *ln) {
    const bool wide = vector_is_wide(ln->C * number_size(context->dtype), y, x, ln->w, ln->b);
    auto run = VECTOR_SELECT(context->dtype, wide, layernorm_recompute_kernel);
    CUDA_RUN(context->device, run, size_ceil_div(ln->rows, LAYERNORM_ROWS), CUDA_THREADS, 0, *ln, y, x);
}

// A group's rows, one a warp at a time: dx, and the group's sums for dw and db (groups, 2, C), which a lane keeps for
// the HELD vectors of channels that are its own. The second visit to a row finds it in the first cache.
template <Dtype DTYPE, int N, int HELD>
__global__ static void __launch_bounds__(CUDA_THREADS)
    layernorm_backward_kernel(LayerNorm ln, void *dx, float *sums, const void *dy, const void *x, bool add) {
    __shared__ float shared[COLUMNS_WARPS * WARP * N];
    const size_t per_group = size_ceil_div(ln.rows, gridDim.x), first = blockIdx.x * per_group, C = ln.C;
    const size_t last = size_min(ln.rows, first + per_group), own = threadIdx.x % WARP * N;
    float dw[HELD][N] = {}, db[HELD][N] = {};
    for (size_t r = first + threadIdx.x / WARP; r < last; r += COLUMNS_WARPS) {
        const float m = ln.mean[r], scale = ln.rstd[r];
        float dn_sum = 0.0f, dn_n_sum = 0.0f;
#pragma unroll
        for (int v = 0; v < HELD; v++) {
            const size_t c = v * WARP * N + own;
            if (c >= C) continue;
            Vector<DTYPE, N> in, d, weight;
            in.load(x, r * C + c);
            d.load(dy, r * C + c);
            weight.load(ln.w, c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float normal = (in.x[i] - m) * scale, dn = d.x[i] * weight.x[i];
                dw[v][i] = fmaf(d.x[i], normal, dw[v][i]);
                db[v][i] += d.x[i];
                dn_sum += dn;
                dn_n_sum = fmaf(dn, normal, dn_n_sum);
            }
        }
        const float dn_mean = warp_sum(dn_sum) / (float)C, dn_n_mean = warp_sum(dn_n_sum) / (float)C;
#pragma unroll 2
        for (size_t c = own; c < C; c += WARP * N) {
            Vector<DTYPE, N> in, d, weight, to;
            in.load(x, r * C + c);
            d.load(dy, r * C + c);
            weight.load(ln.w, c);
            if (add) to.load(dx, r * C + c);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float gradient = layernorm_gradient(in.x[i], d.x[i], weight.x[i], m, scale, dn_mean, dn_n_mean);
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
__global__ static void layernorm_backward_rows_kernel(Dtype dtype, LayerNorm ln, void *dx, const void *dy,
                                                      const void *x, bool add) {
    const size_t r = (size_t)blockIdx.x * LAYERNORM_ROWS + threadIdx.x / WARP, C = ln.C, row = r * C;
    const size_t lane = threadIdx.x % WARP;
    if (r >= ln.rows) return;
    const float m = ln.mean[r], scale = ln.rstd[r];
    float dn_sum = 0.0f, dn_n_sum = 0.0f;
    for (size_t c = lane; c < C; c += WARP) {
        float normal = (number_get(dtype, x, row + c) - m) * scale;
        float dn = number_get(dtype, dy, row + c) * number_get(dtype, ln.w, c);
        dn_sum += dn;
        dn_n_sum = fmaf(dn, normal, dn_n_sum);
    }
    const float dn_mean = warp_sum(dn_sum) / (float)C, dn_n_mean = warp_sum(dn_n_sum) / (float)C;
    for (size_t c = lane; c < C; c += WARP) {
        const float gradient = layernorm_gradient(number_get(dtype, x, row + c), number_get(dtype, dy, row + c),
                                                  number_get(dtype, ln.w, c), m, scale, dn_mean, dn_n_mean);
        number_put(dtype, dx, row + c, add ? number_get(dtype, dx, row + c) + gradient : gradient);
    }
}

__global__ static void layernorm_backward_groups_kernel(Dtype dtype, LayerNorm ln, float *sums, const void *dy,
                                                        const void *x) {
    const size_t c = (size_t)blockIdx.x * CUDA_THREADS + threadIdx.x, per_group = size_ceil_div(ln.rows, gridDim.y);
    const size_t first = blockIdx.y * per_group, last = size_min(ln.rows, first + per_group), C = ln.C;
    float dw = 0.0f, db = 0.0f;
    if (c >= C) return;
    for (size_t r = first; r < last; r++) {
        float d = number_get(dtype, dy, r * C + c);
        dw = fmaf(d, (number_get(dtype, x, r * C + c) - ln.mean[r]) * ln.rstd[r], dw);
        db += d;
    }
    sums[blockIdx.y * 2 * C + c] = dw;
    sums[blockIdx.y * 2 * C + C + c] = db;
}

template <Dtype DTYPE> static inline auto layernorm_backward_form(bool few) {
    return few ? layernorm_backward_kernel<DTYPE, vector_wide(DTYPE), 4>
               : layernorm_backward_kernel<DTYPE, vector_wide(DTYPE), 8>;
}

static inline void layernorm_backward_cuda(const Context *context, void *dx, const LayerNormGradients *gradients,
                                           const void *dy, const void *x, const LayerNorm *ln, bool add_dx,
                                           float *sums) {
    Device *device = context->device;
    const Dtype dtype = context->dtype;
    const size_t groups = layernorm_groups(device, ln->rows), row_bytes = ln->C * number_size(dtype);
    const size_t vectors = size_ceil_div(row_bytes, 16 * WARP);
    if (vector_is_wide(row_bytes, dx, dy, x, ln->w) && vectors <= 8) {
        auto run = VECTOR_FORM(dtype, layernorm_backward_form, vectors <= 4);
        CUDA_RUN(device, run, groups, CUDA_THREADS, 0, *ln, dx, sums, dy, x, add_dx);
    } else {
        CUDA_RUN(device, layernorm_backward_rows_kernel, size_ceil_div(ln->rows, LAYERNORM_ROWS), CUDA_THREADS, 0,
                 dtype, *ln, dx, dy, x, add_dx);
        CUDA_RUN_GRID(device, layernorm_backward_groups_kernel, cuda_grid(size_ceil_div(ln->C, CUDA_THREADS), groups),
                      CUDA_THREADS, 0, dtype, *ln, sums, dy, x);
    }
    columns_total(device, gradients->dw, gradients->db, ln->C, sums, groups, 2 * ln->C, gradients->add);
}

#endif
