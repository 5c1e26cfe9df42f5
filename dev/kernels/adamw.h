// adamw.h - the optimizer: AdamW with decoupled weight decay, in one pass.
//
//     g = gradient * gradient_scale (clipping, loss scale)
//     m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//     w = w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay w)
//
// gradients, m, v, master (n) fp32; weights (n) in the compute type, the master rounded. Where the compute type is
// fp32 there is no master: the weights are it. Decay applies to the first n_decay elements (matrices and embeddings;
// blocks put them first). m and v below the smallest normal number are set to zero, since arithmetic on subnormals is
// slow on CPUs; v stays finite, since a weight whose v is infinite would never move again. The scalar arithmetic is
// shared by all devices: same bits everywhere.
// Cost per element: 15 operations; 28 bytes, and the compute copy.
#ifndef ADAMW_H
#define ADAMW_H

#include "../device.h"

typedef struct {
    float beta1, beta2, epsilon, lr, decay;
    float gradient_scale;
    float correction1, correction2;  // 1 / (1 - beta^t)
    bool apply;                      // false: a skipped step, nothing moves
} AdamW;

// What is updated: n_elements of each, the first n_decay of them with weight decay.
typedef struct {
    void *weights;           // in the compute type
    float *master;           // fp32 weights; unused where the compute type is fp32
    float *m, *v;            // Adam's moments
    const float *gradients;
    size_t n_elements, n_decay;
} AdamWOperands;

// t: number of this update, from 1.
static inline AdamW adamw_step(float lr, float decay, int64_t t, float gradient_scale, bool apply) {
    AdamW a;
    a.beta1 = 0.9f;
    a.beta2 = 0.95f;
    a.epsilon = 1e-8f;
    a.lr = lr;
    a.decay = decay;
    a.gradient_scale = gradient_scale;
    a.correction1 = (float)(1.0 / (1.0 - pow((double)a.beta1, (double)t)));
    a.correction2 = (float)(1.0 / (1.0 - pow((double)a.beta2, (double)t)));
    a.apply = apply;
    return a;
}

HOST_DEVICE float adamw_flush(float x) { return fabsf(x) < FLT_MIN ? 0.0f : x; }

HOST_DEVICE float adamw_scalar(const AdamW *a, float w, float g, float *m, float *v, float decay) {
    g *= a->gradient_scale;
    float new_m = adamw_flush(fmaf(a->beta1, *m, (1.0f - a->beta1) * g));
    float new_v = adamw_flush(fmaf(a->beta2, *v, (1.0f - a->beta2) * g * g));
    new_v = new_v > FLT_MAX ? FLT_MAX : new_v;
    float update = new_m * a->correction1 / (sqrtf(new_v * a->correction2) + a->epsilon);
    *m = new_m;
    *v = new_v;
    return fmaf(-a->lr, fmaf(decay, w, update), w);
}

static inline void adamw_cpu(const AdamW *step, Dtype dtype, const AdamWOperands *of) {
    const size_t n_elements = of->n_elements, n_decay = of->n_decay;
    if (!step->apply) return;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < (int64_t)n_elements; first += NUMBER_BLOCK) {
        const AdamW a = *step;
        size_t i0 = (size_t)first, n = size_min(n_elements - i0, NUMBER_BLOCK);
        float *w = (dtype == FP32 ? (float *)of->weights : of->master) + i0, *m = of->m + i0, *v = of->v + i0;
        const float *g = of->gradients + i0;
        size_t split = n_decay > i0 ? size_min(n_decay - i0, n) : 0;
        for (size_t i = 0; i < split; i++) w[i] = adamw_scalar(&a, w[i], g[i], &m[i], &v[i], a.decay);
        for (size_t i = split; i < n; i++) w[i] = adamw_scalar(&a, w[i], g[i], &m[i], &v[i], 0.0f);
        if (dtype != FP32) number_store(dtype, of->weights, i0, n, w);
    }
}

#ifdef __CUDACC__
#include "adamw.cuh"
#endif

// One update of the operands, which are on the device.
static inline void adamw(Device *device, const AdamW *step, Dtype dtype, const AdamWOperands *of) {
    double n = (double)of->n_elements;
    switch (device->kind) {
    case DEVICE_PLAN:
        device_count(device, 15 * n, 28 * n + (dtype == FP32 ? 0 : n * (double)number_size(dtype)));
        return;
    case DEVICE_CPU: adamw_cpu(step, dtype, of); return;
    case DEVICE_CUDA: CUDA_ONLY(adamw_cuda(device, step, dtype, of)); return;
    }
}

#endif
