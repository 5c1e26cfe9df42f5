// formulas.h - the sizes of a model and the bytes that a rank sends, written from ZeRO's definition: not the program's
// own arithmetic.
#ifndef FORMULAS_H
#define FORMULAS_H

#include "../ranks_helpers.h"

// Elements of a model's blocks, each in whole chunks of 4,096 for each of N ranks.
typedef struct {
    size_t L, N, embedding, layer, all;
} Sizes;

static inline Sizes model_sizes(const ModelShape *s, size_t N) {
    const size_t unit = 4096 * N, C = s->C;
    Sizes x = {s->L, N, (s->Vp + s->maxT + 2) * C, 12 * C * C + 13 * C, 0};
    x.embedding = (x.embedding + unit - 1) / unit * unit;
    x.layer = (x.layer + unit - 1) / unit * unit;
    x.all = x.embedding + s->L * x.layer;
    return x;
}

// Bytes that a rank sends in a step of A micro-batches.
static inline size_t formula_sent(const Sizes *x, size_t size, int stage, size_t A, bool applied) {
    const size_t scatter = 4 * x->all, gathered = size * x->all;
    size_t bytes = scatter;                   // the gradients are summed
    if (stage == 0) bytes += scatter;         // and gathered
    if (stage >= 2) bytes += (A - 1) * scatter;  // by every micro-batch
    if (stage >= 3) {
        // The embeddings stay in their slot. Of the layers two do, so each way the rest is gathered anew.
        size_t rest = x->L > 2 ? x->L - 2 : 0;
        bytes += size * (x->embedding + x->layer * (x->L + rest + (A - 1) * 2 * rest));
    } else if (stage >= 1 && applied) {
        bytes += gathered;
    }
    return bytes / x->N * (x->N - 1);
}

#endif
