// tensor.h - the model's parameters by name: where the store has them and their gradients now.
//
// Pointers are good from store_weights_begin() or store_gradients_begin() of their block to the matching done. Block 0
// is the embedding with the final LayerNorm, block l + 1 is layer l.
#ifndef TENSOR_H
#define TENSOR_H

#include "store.h"

// A tensor of a block in the storage type, where the store has it now.
static inline const void *tensor_weights(const Store *store, size_t block, int tensor) {
    const size_t offset = store_layout(store, block)->tensors[tensor].offset;
    return number_pointer_const(store->dtype, store_weights(store, block), offset);
}

// And its gradient.
static inline float *tensor_gradients(Store *store, size_t block, int tensor) {
    return store_gradients(store, block) + store_layout(store, block)->tensors[tensor].offset;
}

// All of a layer's weights in the storage type; shapes: layout.h.
typedef struct {
    const void *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb;
} LayerWeights;

// Their gradients, fp32.
typedef struct {
    float *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb;
} LayerGradients;

// Of layer l.
static inline LayerWeights tensor_layer_weights(const Store *store, size_t l) {
    LayerWeights w;
    w.ln1w = tensor_weights(store, l + 1, TENSOR_LN1W);
    w.ln1b = tensor_weights(store, l + 1, TENSOR_LN1B);
    w.qkvw = tensor_weights(store, l + 1, TENSOR_QKVW);
    w.qkvb = tensor_weights(store, l + 1, TENSOR_QKVB);
    w.attprojw = tensor_weights(store, l + 1, TENSOR_ATTPROJW);
    w.attprojb = tensor_weights(store, l + 1, TENSOR_ATTPROJB);
    w.ln2w = tensor_weights(store, l + 1, TENSOR_LN2W);
    w.ln2b = tensor_weights(store, l + 1, TENSOR_LN2B);
    w.fcw = tensor_weights(store, l + 1, TENSOR_FCW);
    w.fcb = tensor_weights(store, l + 1, TENSOR_FCB);
    w.fcprojw = tensor_weights(store, l + 1, TENSOR_FCPROJW);
    w.fcprojb = tensor_weights(store, l + 1, TENSOR_FCPROJB);
    return w;
}

// Of layer l.
static inline LayerGradients tensor_layer_gradients(Store *store, size_t l) {
    LayerGradients g;
    g.ln1w = tensor_gradients(store, l + 1, TENSOR_LN1W);
    g.ln1b = tensor_gradients(store, l + 1, TENSOR_LN1B);
    g.qkvw = tensor_gradients(store, l + 1, TENSOR_QKVW);
    g.qkvb = tensor_gradients(store, l + 1, TENSOR_QKVB);
    g.attprojw = tensor_gradients(store, l + 1, TENSOR_ATTPROJW);
    g.attprojb = tensor_gradients(store, l + 1, TENSOR_ATTPROJB);
    g.ln2w = tensor_gradients(store, l + 1, TENSOR_LN2W);
    g.ln2b = tensor_gradients(store, l + 1, TENSOR_LN2B);
    g.fcw = tensor_gradients(store, l + 1, TENSOR_FCW);
    g.fcb = tensor_gradients(store, l + 1, TENSOR_FCB);
    g.fcprojw = tensor_gradients(store, l + 1, TENSOR_FCPROJW);
    g.fcprojb = tensor_gradients(store, l + 1, TENSOR_FCPROJB);
    return g;
}

#endif
