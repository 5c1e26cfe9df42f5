// levels.h - what a layer makes on its way forward, and what -r keeps of it for the backward: the one table.
//
//     in ---> LN1 -> qkv -> attention -> projection -(+)-> residual ---> LN2 -> fc -> GELU -> projection -(+)-> out
//       \____________________________________________/             \_________________________________________/
//
// A level drops what it can make again: what is dropped at a level is taken as scratch by the forward and made again by
// the backward; the rest stays on the stack between the two. A level of LEVEL_BLOCKS keeps nothing but the layer's
// input.
#ifndef LEVELS_H
#define LEVELS_H

#include <stddef.h>

#include "kernels/attention.h"

// Levels of -r: what is made again.
typedef enum { LEVEL_NOTHING, LEVEL_GELU, LEVEL_LAYERNORMS, LEVEL_BLOCKS } Level;

// The buffers of a layer. `out` is not among those that a level drops: it is the next layer's input.
typedef struct {
    void *ln1, *qkv, *atty, *saved;  // (B,T,C) (B,T,3C) (B,T,C); attention's log-sum-exp or probabilities
    void *residual, *ln2;            // (B,T,C) the stream between attention and MLP; its LayerNorm
    void *fch, *gelu;                // (B,T,4C) before and after the GELU
    void *out;                       // (B,T,C) the stream after the layer
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;  // (B,T)
    size_t mark;                     // the stack before the layer
} Layer;

typedef struct {
    size_t field;       // in Layer
    size_t channels;    // values in the compute type per row (B,T), in units of C
    size_t floats;      // and fp32 values per row
    Level dropped_at;   // from this level on
    const char *owner;
} LevelBuffer;

// In the order in which they are taken. What attention saves has a size of its own (attention_saved_bytes).
static const LevelBuffer LEVEL_BUFFERS[] = {
    {offsetof(Layer, ln1), 1, 0, LEVEL_LAYERNORMS, "ln1"},
    {offsetof(Layer, ln1_mean), 0, 1, LEVEL_BLOCKS, "ln1 mean"},
    {offsetof(Layer, ln1_rstd), 0, 1, LEVEL_BLOCKS, "ln1 rstd"},
    {offsetof(Layer, qkv), 3, 0, LEVEL_BLOCKS, "qkv"},
    {offsetof(Layer, saved), 0, 0, LEVEL_BLOCKS, "attention statistics"},
    {offsetof(Layer, atty), 1, 0, LEVEL_BLOCKS, "attention"},
    {offsetof(Layer, residual), 1, 0, LEVEL_BLOCKS, "residual"},
    {offsetof(Layer, ln2), 1, 0, LEVEL_LAYERNORMS, "ln2"},
    {offsetof(Layer, ln2_mean), 0, 1, LEVEL_BLOCKS, "ln2 mean"},
    {offsetof(Layer, ln2_rstd), 0, 1, LEVEL_BLOCKS, "ln2 rstd"},
    {offsetof(Layer, fch), 4, 0, LEVEL_BLOCKS, "fc"},
    {offsetof(Layer, gelu), 4, 0, LEVEL_GELU, "gelu"},
};
enum { N_LEVEL_BUFFERS = sizeof(LEVEL_BUFFERS) / sizeof(LEVEL_BUFFERS[0]) };

// Where a layer's pointer to a buffer is.
static inline void **level_buffer(Layer *layer, const LevelBuffer *buffer) {
    return (void **)(void *)((char *)layer + buffer->field);
}

// Whether a level keeps a buffer from the forward to the backward.
static inline bool level_keeps(Level level, const LevelBuffer *buffer) { return level < buffer->dropped_at; }

// Whether at this level the backward makes again what is dropped from `part` on.
static inline bool level_recomputes(Level level, Level part) { return level >= part; }

#endif
