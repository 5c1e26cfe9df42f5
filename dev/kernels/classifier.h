// classifier.h - softmax over the vocabulary, cross-entropy and its gradient in one visit.
//
//     loss[r]      = log(sum over v < V of exp(logits[r,v])) - logits[r,target[r]]
//     dlogits[r,v] = scale (softmax(logits[r,:])[v] - [v == target[r]])
//
// logits (rows,Vp) in the storage type, replaced by dlogits if asked to; losses (rows) fp32; targets (rows), -1 where
// there is none: such a row has loss 0 and gradient 0. Columns V ... Vp-1 are padding: never read, gradient 0.
// Cost per element: about 25 operations, 2 elements moved (1 without gradient).
#ifndef CLASSIFIER_H
#define CLASSIFIER_H

#include "../context.h"
#include "../partials.h"

// What the classifier works on: `rows` rows of logits, of which V columns count.
typedef struct {
    float *losses;           // (rows)
    void *logits;            // (rows,Vp)
    const int32_t *targets;  // (rows)
    size_t rows, V, Vp;
} Classifier;

// Of the first V elements of a row: their maximum, and the log of the sum of exp(element - maximum).
static inline float classifier_log_sum(Dtype dtype, const void *logits, size_t row, size_t V, float *maximum) {
    float block[NUMBER_BLOCK], sum[PARTIALS] = {0}, top = -FLT_MAX;
    for (size_t v = 0, n; v < V; v += n) {
        n = size_min(V - v, NUMBER_BLOCK);
        top = partials_maximum(top, number_load(dtype, logits, row + v, n, block), n);
    }
    for (size_t v = 0, n; v < V; v += n) {
        float exponentials[NUMBER_BLOCK];
        n = size_min(V - v, NUMBER_BLOCK);
        const float *x = number_load(dtype, logits, row + v, n, block);
        for (size_t i = 0; i < n; i++) exponentials[i] = number_exp(x[i] - top);
        partials_add(sum, exponentials, n);
    }
    *maximum = top;
    return logf(partials_total(sum));
}

// The loss of row r and, if asked for, its gradient.
static inline void classifier_row(Dtype dtype, const Classifier *c, size_t r, float scale, bool gradient) {
    const size_t V = c->V, Vp = c->Vp, row = r * Vp;
    const int32_t target = c->targets[r];
    void *logits = c->logits;
    float block[NUMBER_BLOCK], maximum;
    if (target < 0) {
        c->losses[r] = 0.0f;
        if (gradient) memset(number_pointer(dtype, logits, row), 0, Vp * number_size(dtype));
        return;
    }
    float log_sum = classifier_log_sum(dtype, logits, row, V, &maximum);  // differences first: logits may be large
    c->losses[r] = (maximum - number_get(dtype, logits, row + (size_t)target)) + log_sum;
    if (!gradient) return;
    for (size_t v = 0, n; v < V; v += n) {
        n = size_min(V - v, NUMBER_BLOCK);
        const float *x = number_load(dtype, logits, row + v, n, block);
        float *d = number_target(dtype, logits, row + v, block);
        for (size_t i = 0; i < n; i++) d[i] = scale * number_exp((x[i] - maximum) - log_sum);
        if ((size_t)target >= v && (size_t)target < v + n) d[(size_t)target - v] -= scale;
        number_store(dtype, logits, row + v, n, d);
    }
    if (Vp > V) memset(number_pointer(dtype, logits, row + V), 0, (Vp - V) * number_size(dtype));
}

static inline void classifier_cpu(Dtype dtype, const Classifier *c, float scale, bool gradient) {
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t r = 0; r < (int64_t)c->rows; r++) classifier_row(dtype, c, (size_t)r, scale, gradient);
}

enum { CLASSIFIER_PARTIALS = 256 };  // partial sums, element i going to sum i % CLASSIFIER_PARTIALS; then a binary tree

static inline void classifier_sum_cpu(double *sum, const float *losses, size_t n, bool add) {
    double partials[CLASSIFIER_PARTIALS] = {0};
    for (size_t i = 0; i < n; i++) partials[i % CLASSIFIER_PARTIALS] += (double)losses[i];
    for (size_t width = CLASSIFIER_PARTIALS / 2; width > 0; width /= 2) {
        for (size_t l = 0; l < width; l++) partials[l] += partials[l + width];
    }
    *sum = add ? *sum + partials[0] : partials[0];
}

#ifdef __CUDACC__
#include "classifier.cuh"
#endif

// The losses; the logits stay.
static inline void classifier_forward(const Context *context, const Classifier *c) {
    Device *device = context->device;
    double n = (double)(c->rows * c->Vp);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 25 * n, n * (double)number_size(context->dtype)); return;
    case DEVICE_CPU: classifier_cpu(context->dtype, c, 0.0f, false); return;
    case DEVICE_CUDA: CUDA_ONLY(classifier_cuda(context, c, 0.0f, false)); return;
    }
}

// The losses, and in place of the logits their gradients, times `scale`: one over the number of valid targets of the
// whole step, and the loss scale.
static inline void classifier_forward_backward(const Context *context, const Classifier *c, float scale) {
    Device *device = context->device;
    double n = (double)(c->rows * c->Vp);
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, 25 * n, 2 * n * (double)number_size(context->dtype)); return;
    case DEVICE_CPU: classifier_cpu(context->dtype, c, scale, true); return;
    case DEVICE_CUDA: CUDA_ONLY(classifier_cuda(context, c, scale, true)); return;
    }
}

// *sum (fp64, on the device) (+)= sum of n losses, in one order on all devices.
static inline void classifier_sum(Device *device, double *sum, const float *losses, size_t n, bool add) {
    switch (device->kind) {
    case DEVICE_PLAN: device_count(device, (double)n, 4 * (double)n); return;
    case DEVICE_CPU: classifier_sum_cpu(sum, losses, n, add); return;
    case DEVICE_CUDA: CUDA_ONLY(classifier_sum_cuda(device, sum, losses, n, add)); return;
    }
}

#endif
