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
#include "random.h"

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

// First values of a tensor. Matrices decay (AdamW), the rest doesn't.
typedef enum {
    START_ZEROS,
    START_ONES,
    START_MATRIX,      // normal(0, 0.02)
    START_PROJECTION,  // onto the residual stream: the same over sqrt(2 L)
} TensorStart;

typedef struct {
    const char *name;
    size_t offset, n_elements;  // within the block
    size_t n_saved;             // without the padded vocabulary: what a checkpoint holds
    TensorStart start;
} Tensor;

enum { BLOCK_TENSORS = LAYER_TENSORS };

typedef struct {
    size_t n_tensors;
    Tensor tensors[BLOCK_TENSORS];
    size_t n_exact, n_decay, n_elements;
} BlockLayout;

static inline bool layout_decays(const Tensor *tensor) { return tensor->start >= START_MATRIX; }

// The next tensor of a block; `index` is its place in the enum above.
static inline void layout_add(BlockLayout *layout, int index, const char *name, size_t n, size_t n_saved,
                              TensorStart start) {
    if ((size_t)index != layout->n_tensors) die("tensor %s is not number %d of its block. This is a bug", name, index);
    Tensor *tensor = &layout->tensors[layout->n_tensors++];
    memset(tensor, 0, sizeof(*tensor));
    tensor->name = name;
    tensor->offset = layout->n_exact;
    tensor->n_elements = n;
    tensor->n_saved = n_saved;
    tensor->start = start;
    layout->n_exact += n;
    if (layout_decays(tensor)) layout->n_decay = layout->n_exact;
}

// The layouts of both kinds of blocks, for N ranks.
static inline void layout_blocks(const ModelShape *s, size_t N, BlockLayout *embedding, BlockLayout *layer) {
    size_t C = s->C;
    memset(embedding, 0, sizeof(*embedding));
    memset(layer, 0, sizeof(*layer));
    layout_add(embedding, TENSOR_WTE, "wte", s->Vp * C, s->V * C, START_MATRIX);
    layout_add(embedding, TENSOR_WPE, "wpe", s->maxT * C, s->maxT * C, START_MATRIX);
    layout_add(embedding, TENSOR_LNFW, "lnfw", C, C, START_ONES);
    layout_add(embedding, TENSOR_LNFB, "lnfb", C, C, START_ZEROS);
    layout_add(layer, TENSOR_QKVW, "qkvw", 3 * C * C, 3 * C * C, START_MATRIX);
    layout_add(layer, TENSOR_ATTPROJW, "attprojw", C * C, C * C, START_PROJECTION);
    layout_add(layer, TENSOR_FCW, "fcw", 4 * C * C, 4 * C * C, START_MATRIX);
    layout_add(layer, TENSOR_FCPROJW, "fcprojw", 4 * C * C, 4 * C * C, START_PROJECTION);
    layout_add(layer, TENSOR_LN1W, "ln1w", C, C, START_ONES);
    layout_add(layer, TENSOR_LN1B, "ln1b", C, C, START_ZEROS);
    layout_add(layer, TENSOR_QKVB, "qkvb", 3 * C, 3 * C, START_ZEROS);
    layout_add(layer, TENSOR_ATTPROJB, "attprojb", C, C, START_ZEROS);
    layout_add(layer, TENSOR_LN2W, "ln2w", C, C, START_ONES);
    layout_add(layer, TENSOR_LN2B, "ln2b", C, C, START_ZEROS);
    layout_add(layer, TENSOR_FCB, "fcb", 4 * C, 4 * C, START_ZEROS);
    layout_add(layer, TENSOR_FCPROJB, "fcprojb", C, C, START_ZEROS);
    embedding->n_elements = size_round_up(embedding->n_exact, N * NORM_CHUNK);
    layer->n_elements = size_round_up(layer->n_exact, N * NORM_CHUNK);
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
    const float scale = tensor->start == START_PROJECTION ? 0.02f / sqrtf(2.0f * (float)L) : 0.02f;
    if (!layout_decays(tensor)) {
        for (size_t i = 0; i < n; i++) to[i] = tensor->start == START_ONES ? 1.0f : 0.0f;
        return;
    }
    const int64_t pairs = (int64_t)(size_ceil_div(first + n, 2) - first / 2);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pairs; p++) {
        const size_t pair_index = first / 2 + (size_t)p;
        float pair[2];
        random_normal_pair(seed, stream, pair_index, pair);
        for (size_t i = 2 * pair_index; i < 2 * pair_index + 2; i++) {
            if (i >= first && i < first + n) to[i - first] = scale * pair[i % 2];
        }
    }
}

#endif
