// layout.h - the shape of the model, its blocks, and the place of every tensor within its block.
//
// The model is a list of blocks: 0 the embeddings and the final LayerNorm, which are used first and last, then 1 ... L
// the layers. A block is one contiguous run of elements, its tensors without gaps, matrices and embeddings first (they
// decay, the rest doesn't), padded with zeros to whole chunks of the norm for each of N ranks:
//
//     layer      | qkvw attprojw fcw fcprojw | ln1w ln1b qkvb attprojb ln2w ln2b fcb fcprojb | 0 0 0 |
//     embedding  | wte wpe                   | lnfw lnfb                                     | 0 0 0 |
//                `-------- n_decay ----------'                                        n_exact ^     ^ n_elements
//                |        shard of rank 0        |        shard of rank 1        |  ...   N equal shards
//
// The paddings are internal: no checkpoint holds them.
#ifndef LAYOUT_H
#define LAYOUT_H

#include "kernels/norm.h"

typedef struct {
    size_t L, NH, C;  // layers, heads, channels
    size_t V, Vp;     // vocabulary, and padded to a multiple of 128
    size_t maxT;      // rows of wpe
} ModelShape;

enum { TENSOR_WTE, TENSOR_WPE, TENSOR_LNFW, TENSOR_LNFB, EMBEDDING_TENSORS };
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
    }

// The layouts of both kinds of blocks, for N ranks. How a tensor starts: "m" matrix, normal(0, 0.02); "r" the same over
// sqrt(2 L); "1" ones; "0" zeros. m and r decay.
static inline void layout_blocks(const ModelShape *s, size_t N, BlockLayout *embedding, BlockLayout *layer) {
    size_t C = s->C;
    memset(embedding, 0, sizeof(*embedding));
    memset(layer, 0, sizeof(*layer));
    layout_add(embedding, "wte", s->Vp * C, s->V * C, "m");
    layout_add(embedding, "wpe", s->maxT * C, s->maxT * C, "m");
    layout_add(embedding, "lnfw", C, C, "1");
    layout_add(embedding, "lnfb", C, C, "0");
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
    embedding->n_elements = round_up(embedding->n_exact, N * NORM_CHUNK);
    layer->n_elements = round_up(layer->n_exact, N * NORM_CHUNK);
}

// Parameters as everybody counts them: the head is tied, the vocabulary not padded.
static inline size_t layout_parameters(const ModelShape *s) {
    return s->V * s->C + s->maxT * s->C + s->L * (12 * s->C * s->C + 13 * s->C) + 2 * s->C;
}

// "dN" or "LxCxNH" into the shape; false if it is neither (then it is a file's name). *wrong: what is wrong with it, or
// NULL.
static inline bool layout_parse(const char *text, ModelShape *s, const char **wrong) {
    static const size_t table[][3] = {{12, 768, 12},  {24, 1024, 16}, {36, 1280, 20}, {48, 1600, 25},
                                      {60, 1920, 30}, {72, 2880, 30}, {84, 3456, 36}};
    unsigned long long L, C, NH;
    int end = 0;
    *wrong = NULL;
    if (sscanf(text, "d%llu%n", &L, &end) == 1 && !text[end]) {
        s->L = (size_t)L;
        for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
            if (L != table[i][0]) continue;
            s->C = table[i][1];
            s->NH = table[i][2];
            return true;
        }
        if (L < 1 || L >= 12) *wrong = "d1 ... d12, d24, d36, d48, d60, d72, d84; or LxCxNH";
        s->C = 64 * s->L;
        s->NH = s->L;
        return true;
    }
    end = 0;
    if (sscanf(text, "%llux%llux%llu%n", &L, &C, &NH, &end) != 3 || text[end]) return false;
    if (L < 1 || L > 1000 || C < 1 || C > 1 << 16 || NH < 1 || C % NH != 0) {
        *wrong = "layers x channels x heads, channels a multiple of heads";
    }
    s->L = (size_t)L;
    s->C = (size_t)C;
    s->NH = (size_t)NH;
    return true;
}

// Elements [first, first + n) of a tensor's first values into `to`: a function of seed, stream and index alone.
static inline void layout_first_values(float *to, const Tensor *tensor, uint64_t seed, uint64_t stream, size_t L,
                                       size_t first, size_t n) {
    const float scale = tensor->residual ? 0.02f / sqrtf(2.0f * (float)L) : 0.02f;
    if (tensor->zeros || tensor->ones) {
        for (size_t i = 0; i < n; i++) to[i] = tensor->ones ? 1.0f : 0.0f;
        return;
    }
    const int64_t pairs = (int64_t)(ceil_div(first + n, 2) - first / 2);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pairs; p++) {
        const size_t at = first / 2 + (size_t)p;
        float pair[2];
        random_normal_pair(seed, stream, at, pair);
        for (size_t i = 2 * at; i < 2 * at + 2; i++) {
            if (i >= first && i < first + n) to[i - first] = scale * pair[i % 2];
        }
    }
}

#endif
