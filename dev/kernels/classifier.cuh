// classifier.cuh - softmax, loss and gradient on CUDA: a block a row of logits.
//
// The row is read twice, once for maximum and sum together and once for the gradient, the second time from the L2
// cache, and written once. A thread adds its own part in ascending order, rescaling it when its maximum grows; then
// lanes and warps are added in warp_sum()'s order. The sum of all losses has the CPU's order, a thread a partial sum.
#ifndef CLASSIFIER_CUH
#define CLASSIFIER_CUH

#include "vector.cuh"
#include "warp.cuh"

enum { CLASSIFIER_THREADS = 1024 };  // a block per row: few rows at a time, so that the second visit finds it in the L2

// What a thread has seen: the largest logit, and the sum of exp(logit - largest), rescaled when that grows.
template <int N> __device__ __forceinline__ void classifier_add(const float (&x)[N], float *top, float *sum) {
    float largest = *top;
    for (int i = 0; i < N; i++) largest = x[i] > largest ? x[i] : largest;
    if (largest > *top) {
        *sum *= cuda_exp2(CUDA_LOG2_E * (*top - largest));
        *top = largest;
    }
    for (int i = 0; i < N; i++) *sum += cuda_exp2(CUDA_LOG2_E * (x[i] - largest));
}

// One block per row. The row is read twice, once for maximum and sum together, once for the gradient.
template <Dtype DTYPE, int N>
__global__ static void __launch_bounds__(CLASSIFIER_THREADS)
    classifier_kernel(float *losses, void *logits, const int32_t *targets, size_t V, size_t Vp, float scale,
                      bool gradient) {
    __shared__ float tops[CLASSIFIER_THREADS / WARP], sums[CLASSIFIER_THREADS / WARP];
    const size_t row = (size_t)blockIdx.x * Vp, tail = V / N * N;
    const int32_t target = targets[blockIdx.x];
    Vector<DTYPE, N> x;
    Vector<DTYPE, 1> one;
    float top = -FLT_MAX, sum = 0.0f, log_sum = 0.0f;
    if (target >= 0) {
#pragma unroll 2
        for (size_t v = threadIdx.x * N; v < tail; v += CLASSIFIER_THREADS * N) {
            x.load(logits, row + v);
            classifier_add(x.x, &top, &sum);
        }
        if (tail + threadIdx.x < V) {
            one.load(logits, row + tail + threadIdx.x);
            classifier_add(one.x, &top, &sum);
        }
        const float warp_top = warp_maximum(top);
        sum = warp_sum(sum * cuda_exp2(CUDA_LOG2_E * (top - warp_top)));
        if (threadIdx.x % WARP == 0) {
            tops[threadIdx.x / WARP] = warp_top;
            sums[threadIdx.x / WARP] = sum;
        }
        __syncthreads();
        top = warp_maximum(tops[threadIdx.x % WARP]);
        log_sum = logf(warp_sum(sums[threadIdx.x % WARP] * cuda_exp2(CUDA_LOG2_E * (tops[threadIdx.x % WARP] - top))));
    }
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = target < 0 ? 0.0f : (top - number_get(DTYPE, logits, row + (size_t)target)) + log_sum;
    }
    if (!gradient) return;
    __syncthreads();  // the loss has read its logit
#pragma unroll 2
    for (size_t v = threadIdx.x * N; v < Vp; v += CLASSIFIER_THREADS * N) {
        const bool whole = target >= 0 && v + N <= V;
        if (whole) x.load(logits, row + v);
        for (int i = 0; i < N; i++) {
            float d = 0.0f;
            if (target >= 0 && v + i < V) {
                const float logit = whole ? x.x[i] : number_get(DTYPE, logits, row + v + i);
                d = scale * cuda_exp2(CUDA_LOG2_E * ((logit - top) - log_sum));
            }
            x.x[i] = target >= 0 && v + i == (size_t)target ? d - scale : d;
        }
        x.store(logits, row + v);
    }
}

static inline void classifier_cuda(const Context *context, const Classifier *c, float scale, bool gradient) {
    const bool wide = vector_is_wide(c->Vp * number_size(context->dtype), c->logits, NULL, NULL, NULL);
    auto run = VECTOR_SELECT(context->dtype, wide, classifier_kernel);
    CUDA_RUN(context->device, run, c->rows, CLASSIFIER_THREADS, 0, c->losses, c->logits, c->targets, c->V, c->Vp, scale,
             gradient);
}

__global__ static void classifier_sum_kernel(double *sum, const float *losses, size_t n, bool add) {
    __shared__ double partials[CLASSIFIER_PARTIALS];
    double own = 0.0;
    for (size_t i = threadIdx.x; i < n; i += CLASSIFIER_PARTIALS) own += (double)losses[i];
    partials[threadIdx.x] = own;
    __syncthreads();
    for (size_t width = CLASSIFIER_PARTIALS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) partials[threadIdx.x] += partials[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) *sum = add ? *sum + partials[0] : partials[0];
}

static inline void classifier_sum_cuda(Device *device, double *sum, const float *losses, size_t n, bool add) {
    CUDA_RUN(device, classifier_sum_kernel, 1, CLASSIFIER_PARTIALS, 0, sum, losses, n, add);
}

#endif
