// store.h - where each block of the model lives: weights, gradients, master weights and moments.
//
// The model is a list of blocks: 0 the embeddings, 1 ... L the layers, L+1 the final LayerNorm. A block is one
// contiguous run of elements, its tensors without gaps, matrices and embeddings first (they decay, the rest doesn't),
// padded with zeros to whole chunks of the norm:
//
//     block i    | qkvw attprojw fcw fcprojw | ln1w ln1b qkvb attprojb ln2w ln2b fcb fcprojb | 0 0 0 |
//                `-------- n_decay ---------'                                          n_exact ^     ^ n_elements
//
// The training step asks for a block before it uses it; where the block comes from is the store's affair. Here every
// home is resident on the device.
#ifndef STORE_H
#define STORE_H

#include "kernels/adamw.h"
#include "kernels/norm.h"
#include "memory.h"

typedef struct {
    size_t L, NH, C;  // layers, heads, channels
    size_t V, Vp;     // vocabulary, and padded to a multiple of 128
    size_t maxT;      // rows of wpe
} ModelShape;

enum { TENSOR_WTE, TENSOR_WPE, EMBEDDING_TENSORS };
enum {
    TENSOR_QKVW,
    TENSOR_ATTPROJW,
    TENSOR_FCW,
    TENSOR_FCPROJW,
    TENSOR_LN1W,
    TENSOR_LN1B,
    TENSOR_QKVB,
    TENSOR_ATTPROJB,
    TENSOR_LN2W,
    TENSOR_LN2B,
    TENSOR_FCB,
    TENSOR_FCPROJB,
    LAYER_TENSORS
};
enum { TENSOR_LNFW, TENSOR_LNFB, FINAL_TENSORS };

typedef struct {
    const char *name;
    size_t offset, n_elements;  // within the block
    size_t n_saved;             // without the padded vocabulary: what a checkpoint holds
    bool decay, ones, zeros;    // weight decay; initialised with 1, with 0, otherwise normally distributed
    bool residual;              // a projection onto the residual stream, initialised smaller
} Tensor;

enum { BLOCK_TENSORS = LAYER_TENSORS };

typedef struct {
    size_t n_tensors;
    Tensor tensors[BLOCK_TENSORS];
    size_t n_exact, n_decay, n_elements;
} BlockLayout;

typedef struct {
    Device *device;
    Memory *memory;
    ModelShape shape;
    Number type;
    size_t n_blocks;
    BlockLayout embedding, layer, final_norm;
    size_t n_elements;  // of all blocks, padded
    char *weights;      // homes, block after block
    float *gradients, *master, *m, *v;
} Store;

// ---------------------------------------------------------------------------------------------------------------
// Layout

static inline void layout_add(BlockLayout *layout, const char *name, size_t n, size_t n_saved, const char *how) {
    Tensor *tensor = &layout->tensors[layout->n_tensors++];
    memset(tensor, 0, sizeof(*tensor));
    tensor->name = name;
    tensor->offset = layout->n_exact;
    tensor->n_elements = n;
    tensor->n_saved = n_saved;
    tensor->decay = how[0] == 'm' || how[0] == 'r';
    tensor->residual = how[0] == 'r';
    tensor->ones = how[0] == '1';
    tensor->zeros = how[0] == '0';
    layout->n_exact += n;
    if (tensor->decay) layout->n_decay = layout->n_exact;
    layout->n_elements = round_up(layout->n_exact, NORM_CHUNK);
}

// How a tensor starts: "m" matrix, normal(0, 0.02); "r" the same over sqrt(2 L); "1" ones; "0" zeros. m and r decay.
static inline void layout_blocks(const ModelShape *s, BlockLayout *embedding, BlockLayout *layer, BlockLayout *last) {
    size_t C = s->C;
    memset(embedding, 0, sizeof(*embedding));
    memset(layer, 0, sizeof(*layer));
    memset(last, 0, sizeof(*last));
    layout_add(embedding, "wte", s->Vp * C, s->V * C, "m");
    layout_add(embedding, "wpe", s->maxT * C, s->maxT * C, "m");
    layout_add(layer, "qkvw", 3 * C * C, 3 * C * C, "m");
    layout_add(layer, "attprojw", C * C, C * C, "r");
    layout_add(layer, "fcw", 4 * C * C, 4 * C * C, "m");
    layout_add(layer, "fcprojw", 4 * C * C, 4 * C * C, "r");
    layout_add(layer, "ln1w", C, C, "1");
    layout_add(layer, "ln1b", C, C, "0");
    layout_add(layer, "qkvb", 3 * C, 3 * C, "0");
    layout_add(layer, "attprojb", C, C, "0");
    layout_add(layer, "ln2w", C, C, "1");
    layout_add(layer, "ln2b", C, C, "0");
    layout_add(layer, "fcb", 4 * C, 4 * C, "0");
    layout_add(layer, "fcprojb", C, C, "0");
    layout_add(last, "lnfw", C, C, "1");
    layout_add(last, "lnfb", C, C, "0");
}

static inline const BlockLayout *store_layout(const Store *store, size_t block) {
    return block == 0 ? &store->embedding : block <= store->shape.L ? &store->layer : &store->final_norm;
}

// First element of a block within every home.
static inline size_t store_offset(const Store *store, size_t block) {
    return block == 0 ? 0 : store->embedding.n_elements + (block - 1) * store->layer.n_elements;
}

// Parameters as everybody counts them: the head is tied, the vocabulary not padded.
static inline size_t store_parameters(const ModelShape *s) {
    return s->V * s->C + s->maxT * s->C + s->L * (12 * s->C * s->C + 13 * s->C) + 2 * s->C;
}

// ---------------------------------------------------------------------------------------------------------------
// Homes

static inline void store_open(Store *store, Device *device, Memory *memory, ModelShape shape, Number type) {
    memset(store, 0, sizeof(*store));
    store->device = device;
    store->memory = memory;
    store->shape = shape;
    store->type = type;
    store->n_blocks = shape.L + 2;
    layout_blocks(&shape, &store->embedding, &store->layer, &store->final_norm);
    store->n_elements = store_offset(store, store->n_blocks - 1) + store->final_norm.n_elements;
    size_t n = store->n_elements;
    store->weights = (char *)memory_keep(memory, TIER_DEVICE, KIND_WEIGHTS, n * number_size(type), "weights");
    store->gradients = (float *)memory_keep(memory, TIER_DEVICE, KIND_GRADIENTS, n * sizeof(float), "gradients");
    store->master = (float *)store->weights;
    if (type != FP32) {
        store->master = (float *)memory_keep(memory, TIER_DEVICE, KIND_MASTER, n * sizeof(float), "master weights");
    }
    store->m = (float *)memory_keep(memory, TIER_DEVICE, KIND_MOMENTS, n * sizeof(float), "m");
    store->v = (float *)memory_keep(memory, TIER_DEVICE, KIND_MOMENTS, n * sizeof(float), "v");
}

// Everything zero: paddings, moments and gradients start so.
static inline void store_zero(Store *store) {
    device_zero(store->device, store->weights, store->n_elements * number_size(store->type));
    device_zero(store->device, store->gradients, store->n_elements * sizeof(float));
    if (store->type != FP32) device_zero(store->device, store->master, store->n_elements * sizeof(float));
    device_zero(store->device, store->m, store->n_elements * sizeof(float));
    device_zero(store->device, store->v, store->n_elements * sizeof(float));
}

#ifdef __CUDACC__
__global__ static void store_round_kernel(Number type, void *weights, const float *master, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        number_put(type, weights, i, master[i]);
    }
}
#endif

// Compute weights from master weights, one block.
static inline void store_round_master(Store *store, size_t block) {
    size_t at = store_offset(store, block), n = store_layout(store, block)->n_elements;
    if (store->type == FP32) return;
    switch (store->device->kind) {
    case DEVICE_PLAN: device_plan(store->device, (double)n, (double)n * 6); return;
    case DEVICE_CPU: number_store(store->type, store->weights, at, n, store->master + at); return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_RUN(store->device, store_round_kernel, cuda_blocks(n), CUDA_THREADS, 0, store->type,
                           number_at(store->type, store->weights, at), store->master + at, n));
        return;
    }
}

// Elements [first, first + n) of a tensor into `to`; first is even.
static inline void store_initial_values(float *to, const Tensor *tensor, uint64_t seed, uint64_t stream, size_t L,
                                        size_t first, size_t n) {
    float scale = tensor->residual ? 0.02f / sqrtf(2.0f * (float)L) : 0.02f;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (int64_t)n; i += 2) {
        float pair[2] = {1.0f, 1.0f};
        if (!tensor->ones) random_normal_pair(seed, stream, (first + (uint64_t)i) / 2, pair);
        to[i] = tensor->ones ? 1.0f : scale * pair[0];
        if (i + 1 < (int64_t)n) to[i + 1] = tensor->ones ? 1.0f : scale * pair[1];
    }
}

enum { STORE_STAGED = 1 << 20 };  // elements on their way to another memory

// GPT-2's initialisation: a function of the seed alone, made by the host for every device; padding stays zero.
static inline void store_initialise(Store *store, uint64_t seed) {
    Device *device = store->device;
    size_t mark = memory_mark(store->memory, TIER_HOST);
    size_t staged = device->real == DEVICE_CPU ? 0 : size_min(STORE_STAGED, store->n_elements);
    float *stage =
        (float *)memory_push(store->memory, TIER_HOST, KIND_WEIGHTS, staged * sizeof(float), "first weights");
    store_zero(store);
    for (size_t block = 0; block < store->n_blocks; block++) {
        const BlockLayout *layout = store_layout(store, block);
        for (size_t i = 0; i < layout->n_tensors; i++) {
            const Tensor *tensor = &layout->tensors[i];
            float *to = store->master + store_offset(store, block) + tensor->offset;
            const uint64_t stream = block * BLOCK_TENSORS + i;
            if (tensor->zeros) continue;
            if (device->kind == DEVICE_CPU) {
                store_initial_values(to, tensor, seed, stream, store->shape.L, 0, tensor->n_saved);
                continue;
            }
            for (size_t at = 0, n; at < tensor->n_saved; at += n) {
                n = size_min(tensor->n_saved - at, STORE_STAGED);
                if (device->kind != DEVICE_PLAN) {
                    store_initial_values(stage, tensor, seed, stream, store->shape.L, at, n);
                }
                device_upload(device, to + at, stage, n * sizeof(float));
            }
        }
        store_round_master(store, block);
    }
    memory_release(store->memory, TIER_HOST, mark);
}

// ---------------------------------------------------------------------------------------------------------------
// What the training step calls

// The compute weights of a block, ready to be read.
static inline const char *store_weights(Store *store, size_t block) {
    return store->weights + store_offset(store, block) * number_size(store->type);
}

// The fp32 gradients of a block, ready to be written or added to.
static inline float *store_gradients(Store *store, size_t block) {
    return store->gradients + store_offset(store, block);
}

// *square (fp64, on the device) = the square of the norm of all gradients.
static inline void store_norm(Store *store, double *square) {
    Memory *memory = store->memory;
    size_t mark = memory_mark(memory, TIER_DEVICE), n_chunks = store->n_elements / NORM_CHUNK;
    double *sums =
        (double *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, n_chunks * sizeof(double), "norm of each chunk");
    norm_chunks(store->device, sums, store->gradients, store->n_elements);
    norm_total(store->device, square, sums, n_chunks);
    memory_release(memory, TIER_DEVICE, mark);
}

// AdamW on every block.
static inline void store_update(Store *store, const AdamW *step) {
    for (size_t block = 0; block < store->n_blocks; block++) {
        const BlockLayout *layout = store_layout(store, block);
        size_t at = store_offset(store, block);
        adamw(store->device, step, store->type, store->weights + at * number_size(store->type),
              store->type == FP32 ? NULL : store->master + at, store->m + at, store->v + at, store->gradients + at,
              layout->n_elements, layout->n_decay);
    }
}

#endif
