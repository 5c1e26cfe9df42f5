// matmul.h - the products of matrices: nearly all of the arithmetic.
//
//     forward          out (rows, OC)  = in (rows, IC) . weight (OC, IC)^T + bias (OC)
//     backward input   din (rows, IC)  = dout (rows, OC) . weight (OC, IC)
//     backward weight  dweight (OC, IC) (+)= dout (rows, OC)^T . in (rows, IC)
//
// Activations and weights are in the storage type; sums are fp32 and rounded once, after the bias. Gradients of weights
// are fp32: a product is summed completely, then added once to what is there (or, the first time in a step, replaces
// it); those of biases are in bias.h. Cost: 2 rows IC OC operations each.
//
// Which half makes a product is a fixed rule. On CUDA cuBLASLt does (matmul.cuh). On the CPU oneDNN does where it has
// an implementation whose memory can be planned, in a type that the processor multiplies natively (matmul_onednn.h);
// everything else, and a machine without the library, runs on our own tiles (matmul_tiles.h).
//
// What the libraries keep for a product is looked up by the planning pass, made before the first step and kept.
// Scratchpads and workspaces, like the packing buffers, are taken from the stack. A product that replaces in one
// micro-batch and adds in the next takes the same bytes both times: the larger scratchpad.
#ifndef MATMUL_H
#define MATMUL_H

#include "../context.h"
#include "matmul_onednn.h"
#include "matmul_shape.h"
#include "matmul_tiles.h"

// Bytes of the explicit workspace on CUDA: what NVIDIA recommends for cuBLASLt. It must begin at a multiple of
// MATMUL_WORKSPACE_ALIGN bytes, for which the take has room.
enum { MATMUL_WORKSPACE_ALIGN = 256 };

static inline size_t matmul_workspace(int compute_capability) {
    return (size_t)(compute_capability >= 90 ? 32 : 4) << 20;
}

#ifdef __CUDACC__
#include "matmul.cuh"
#endif

typedef struct {
    MatmulShape shape;
    bool tiled;         // our own tiles instead of a primitive
    size_t scratchpad;  // bytes
#if USE_ONEDNN
    MatmulPrimitive onednn;
#endif
#ifdef __CUDACC__
    MatmulCuda cuda;
#endif
} MatmulEntry;

enum { MATMUL_ENTRIES = 512 };

typedef struct Matmul {
    bool use_library;  // oneDNN is there, on AVX-512
    bool native_bf16;  // and multiplies bf16 natively
    const char *isa;   // what the products run on, for the log
    size_t n_entries, last;
    MatmulEntry entries[MATMUL_ENTRIES];
#if USE_ONEDNN
    MatmulLibrary library;
#endif
} Matmul;

// `use_library` false: our own tiles for everything, also where oneDNN is there.
static inline Matmul *matmul_open(bool use_library) {
    Matmul *matmul = (Matmul *)calloc(1, sizeof(Matmul));
    if (!matmul) die("out of memory at the start");
#if defined(__AVX512F__)
    matmul->isa = "own tiles, AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    matmul->isa = "own tiles, AVX2";
#else
    matmul->isa = "own tiles, no vector instructions assumed";
#endif
#if USE_ONEDNN
    if (!use_library) return matmul;
    matmul_onednn_open(&matmul->library);
    const char *isa = matmul_onednn_isa(&matmul->native_bf16);
    matmul->use_library = isa != NULL;
    if (isa) matmul->isa = isa;
#else
    (void)use_library;
#endif
    return matmul;
}

static inline void matmul_close(Matmul *matmul) {
#ifdef __CUDACC__
    for (size_t i = 0; i < matmul->n_entries; i++) matmul_cuda_destroy(&matmul->entries[i].cuda);
#endif
#if USE_ONEDNN
    for (size_t i = 0; i < matmul->n_entries; i++) matmul_onednn_destroy(&matmul->entries[i].onednn);
    matmul_onednn_close(&matmul->library);
#endif
    free(matmul);
}

// ---------------------------------------------------------------------------------------------------------------
// Choice, by fixed rules

// Our own tiles instead of the library's product, if it has been described.
static inline void matmul_use_tiles(const Device *device, MatmulEntry *entry) {
#if USE_ONEDNN
    matmul_onednn_forget(&entry->onednn);
#endif
    entry->tiled = true;
    entry->scratchpad = matmul_tiled_floats(&entry->shape, device->threads) * sizeof(float);
}

static inline MatmulEntry *matmul_lookup(Matmul *matmul, const MatmulShape *shape) {
    for (size_t i = 0, index = matmul->last; i < matmul->n_entries; i++, index++) {
        if (index >= matmul->n_entries) index = 0;
        if (memcmp(&matmul->entries[index].shape, shape, sizeof(*shape)) != 0) continue;
        matmul->last = index;
        return &matmul->entries[index];
    }
    return NULL;
}

// A new entry; on the CPU the library's, where it has one for the shape.
static inline MatmulEntry *matmul_add(Device *device, const MatmulShape *shape) {
    Matmul *matmul = device->matmul;
    if (matmul->n_entries == MATMUL_ENTRIES) die("more than %d shapes of matrix products", MATMUL_ENTRIES);
    MatmulEntry *entry = &matmul->entries[matmul->n_entries++];
    memcpy(&entry->shape, shape, sizeof(*shape));
    if (device->real == DEVICE_CUDA) {
        entry->scratchpad = matmul_workspace(device->compute_capability) + MATMUL_WORKSPACE_ALIGN;
        return entry;
    }
    entry->tiled = !matmul->use_library || shape->a_dtype == FP16 || (shape->a_dtype == BF16 && !matmul->native_bf16);
#if USE_ONEDNN
    if (!entry->tiled) {
        entry->tiled = !matmul_onednn_describe(&matmul->library, &entry->onednn, &entry->shape, &entry->scratchpad);
    }
#endif
    return entry;
}

// The entry for a shape; the planning pass adds what is missing, of a gradient both forms: the library is used for both
// or for neither, and both take the larger scratchpad.
static inline MatmulEntry *matmul_find(Device *device, const MatmulShape *shape) {
    MatmulEntry *entry = matmul_lookup(device->matmul, shape), *other = NULL;
    if (entry) return entry;
    entry = matmul_add(device, shape);
    if (device->real == DEVICE_CUDA) return entry;  // one workspace for all
    if (shape->gradient) {
        MatmulShape form;
        memcpy(&form, shape, sizeof(form));
        form.add = !form.add;
        other = matmul_add(device, &form);
    }
    if (entry->tiled || (other && other->tiled)) {
        matmul_use_tiles(device, entry);
        if (other) matmul_use_tiles(device, other);
    }
    if (other) entry->scratchpad = other->scratchpad = size_max(entry->scratchpad, other->scratchpad);
    return entry;
}

// Makes every primitive that the planning pass found; nothing is created afterwards.
static inline void matmul_create(Device *device) {
    Matmul *matmul = device->matmul;
#ifdef __CUDACC__
    for (size_t i = 0; i < matmul->n_entries && device->real == DEVICE_CUDA; i++) {
        MatmulEntry *entry = &matmul->entries[i];
        if (!entry->cuda.operation) matmul_cuda_create(device, &entry->shape, &entry->cuda);
    }
#endif
    if (device->real != DEVICE_CPU) return;
#if USE_ONEDNN
    for (size_t i = 0; i < matmul->n_entries; i++) {
        MatmulEntry *entry = &matmul->entries[i];
        if (!entry->tiled && !entry->onednn.primitive) matmul_onednn_create(&matmul->library, &entry->onednn);
    }
#else
    (void)matmul;
#endif
}

// c = a . b, as the shape says (matmul_shape.h); bias NULL where there is none.
static inline void matmul_run(const Context *context, MatmulShape *shape, void *c, const void *a, const void *b,
                              const void *bias) {
    Device *device = context->device;
    Memory *memory = context->memory;
#ifdef __CUDACC__
    if (device->real == DEVICE_CUDA) shape->alignment = matmul_cuda_alignment(c, a, b, bias);
#endif
    MatmulEntry *entry = matmul_find(device, shape);
    size_t mark = memory_mark(memory, TIER_DEVICE);
    void *scratchpad = memory_push(memory, TIER_DEVICE, KIND_WORKSPACE, entry->scratchpad, "matmul scratchpad");
    double size = (double)number_size(shape->a_dtype);
    switch (device->kind) {
    case DEVICE_PLAN:
        device_count(device, 2.0 * (double)shape->M * (double)shape->N * (double)shape->K,
                    size * ((double)(shape->M * shape->K) + (double)(shape->K * shape->N)) +
                        (double)number_size(shape->c_dtype) * (double)(shape->M * shape->N) * (shape->add ? 2 : 1));
        break;
    case DEVICE_CPU:
        if (entry->tiled) matmul_tiled_cpu(shape, c, a, b, bias, (float *)scratchpad, device->threads);
#if USE_ONEDNN
        else matmul_onednn_cpu(&device->matmul->library, &entry->onednn, shape->bias, c, a, b, bias, scratchpad);
#endif
        break;
    case DEVICE_CUDA: CUDA_ONLY(matmul_cuda(device, shape, &entry->cuda, c, a, b, bias, scratchpad)); break;
    }
    memory_release(memory, TIER_DEVICE, mark);
}

// ---------------------------------------------------------------------------------------------------------------
// What the model calls

// out (rows, OC) = in (rows, IC) . weight (OC, IC)^T + bias (OC, or NULL)
static inline void matmul_forward(const Context *context, void *out, const void *in, const void *weight,
                                  const void *bias, size_t rows, size_t IC, size_t OC) {
    MatmulShape shape = matmul_shape(context->dtype, context->dtype, rows, OC, IC);
    shape.b_transposed = true;
    shape.bias = bias != NULL;
    matmul_run(context, &shape, out, in, weight, bias);
}

// din (rows, IC) = dout (rows, OC) . weight (OC, IC)
static inline void matmul_backward_input(const Context *context, void *din, const void *dout, const void *weight,
                                         size_t rows, size_t IC, size_t OC) {
    MatmulShape shape = matmul_shape(context->dtype, context->dtype, rows, IC, OC);
    matmul_run(context, &shape, din, dout, weight, NULL);
}

// dweight (OC, IC) fp32 (+)= dout (rows, OC)^T . in (rows, IC); replaces unless `add`
static inline void matmul_backward_weight(const Context *context, float *dweight, const void *dout, const void *in,
                                          size_t rows, size_t IC, size_t OC, bool add) {
    MatmulShape shape = matmul_shape(context->dtype, FP32, OC, IC, rows);
    shape.a_transposed = true;
    shape.gradient = true;
    shape.add = add;
    matmul_run(context, &shape, dweight, dout, in, NULL);
}

#endif
