// batch.h - windows of tokens, and their way to the device: while it works on the one, the host reads the other.
//
// A micro-batch is B sequences of T tokens and their T targets, and, for a backward, the positions of the batch sorted
// by token (kernels/encoder.h). The host reads it into memory of its own and sends it; there are two slots on the
// device.
//
// Invariant: the place of a window in the order of training is a function of (step, index in the step) alone.
#ifndef BATCH_H
#define BATCH_H

#include "../data/loader.h"
#include "ranks.h"
#include "config.h"
#include "kernels/encoder.h"
#include "memory.h"
#include "slot.h"

// What there is to train on and to validate with.
typedef struct {
    Loader train, validation;
    bool train_random, validation_random;  // uniform tokens instead of a file
} Data;

// Everything a micro-batch reads and leaves besides activations.
typedef struct {
    Device *device;
    const Config *config;
    const Data *data;
    const Ranks *ranks;
    Slot slots[2];
    int32_t *host_tokens[2];    // of each slot: tokens (B,T), targets (B,T), sorted positions (2BT+1)
    int current;                // the slot in use
    int32_t *tokens, *targets;  // its (B,T), on the device
    size_t n_distinct;          // tokens among them
    int32_t *counts;            // (V) scratch of the host
    uint16_t *window;           // (T+1) as read from the file
    float *losses;              // (B,T) on the device
} Batch;

// Bytes of a slot.
static inline size_t batch_bytes(const Config *config) { return (4 * config->B * config->T + 1) * sizeof(int32_t); }

// Takes the batch's memory; nothing is read yet.
static inline void batch_open(Batch *b, Device *device, Memory *memory, const Config *config, const Data *data,
                              const Ranks *ranks) {
    const size_t n = config->B * config->T, n_bytes = batch_bytes(config);
    memset(b, 0, sizeof(*b));
    b->device = device;
    b->config = config;
    b->data = data;
    b->ranks = ranks;
    for (int i = 0; i < 2; i++) {
        slot_open(&b->slots[i], device, memory_keep(memory, TIER_DEVICE, KIND_DATA, n_bytes, "tokens, targets"));
        b->host_tokens[i] = (int32_t *)memory_keep(memory, TIER_HOST, KIND_DATA, n_bytes, "tokens, targets");
    }
    b->losses = (float *)memory_keep(memory, TIER_DEVICE, KIND_DATA, n * sizeof(float), "losses");
    b->counts = (int32_t *)memory_keep(memory, TIER_HOST, KIND_DATA, config->shape.V * sizeof(int32_t), "counts");
    b->window = (uint16_t *)memory_keep(memory, TIER_HOST, KIND_DATA, (config->T + 1) * sizeof(uint16_t), "window");
}

// Global number of a window: its place in the order of training.
static inline uint64_t batch_window_index(const Batch *b, int64_t step, size_t index) {
    const size_t per_step = config_windows(b->config, b->ranks->size);
    return (uint64_t)(b->config->overfit ? 0 : step) * per_step + index;
}

// Number of targets in all windows of a step (0-based): what the mean of its losses is taken over.
static inline size_t batch_step_targets(const Batch *b, int64_t step) {
    const size_t windows = config_windows(b->config, b->ranks->size);
    size_t n = 0;
    if (b->data->train_random) return windows * b->config->T;
    for (size_t i = 0; i < windows; i++) {
        const uint64_t index = batch_window_index(b, step, i);
        n += loader_window_targets(&b->data->train, loader_shuffled_window(&b->data->train, b->config->seed, index));
    }
    return n;
}

// Moves to the slot that the host may fill next, once what was sent from it has arrived: its tokens (B,T) and, behind
// them, targets (B,T); NULL on PLAN.
static inline int32_t *batch_next(Batch *b) {
    b->current ^= 1;
    int32_t *tokens = b->host_tokens[b->current];
    return host_writes(b->device, tokens, batch_bytes(b->config)) ? tokens : NULL;
}

// Sends the slot's sequences to the device, with what a backward needs; what is called from here on reads them.
static inline void batch_send(Batch *b, bool backward) {
    const size_t n = b->config->B * b->config->T, V = b->config->shape.V;
    Slot *slot = &b->slots[b->current];
    int32_t *tokens = b->host_tokens[b->current];
    b->n_distinct = n;
    if (backward && host_writes(b->device, tokens, batch_bytes(b->config))) {
        b->n_distinct = encoder_sort(tokens + 2 * n, b->counts, tokens, n, V);
    }
    const size_t n_numbers = backward ? 3 * n + b->n_distinct + 1 : 2 * n;
    slot_fetch(b->device, slot, QUEUE_FETCH);
    device_copy(b->device, QUEUE_FETCH, slot->data, tokens, n_numbers * sizeof(int32_t));
    slot_send(b->device, slot, QUEUE_FETCH, QUEUE_COMPUTE);
    b->tokens = (int32_t *)(void *)slot->data;
    b->targets = b->tokens + n;
}

// The positions of the batch in use, sorted by token, on the device.
static inline const int32_t *batch_positions(const Batch *b) { return b->tokens + 2 * b->config->B * b->config->T; }

// Nothing that is called from here on reads the slot in use.
static inline void batch_done(Batch *b) { slot_done(b->device, &b->slots[b->current], QUEUE_COMPUTE); }

// A micro-batch of a step.
static inline void batch_train(Batch *b, int64_t step, size_t micro_batch) {
    const Config *c = b->config;
    const size_t first = (micro_batch * (size_t)b->ranks->size + (size_t)b->ranks->rank) * c->B;
    int32_t *host = batch_next(b);
    for (size_t i = 0; i < c->B && host; i++) {
        int32_t *tokens = host + i * c->T, *targets = tokens + c->B * c->T;
        const uint64_t index = batch_window_index(b, step, first + i);
        if (b->data->train_random) {
            loader_random(c->seed, 1, index, c->T, c->shape.V, tokens, targets);
        } else {
            const size_t window = loader_shuffled_window(&b->data->train, c->seed, index);
            loader_read(&b->data->train, window, c->shape.V, b->window, tokens, targets);
        }
    }
    batch_send(b, true);
}

// Validation takes the windows in their order, at most -m batches of them; what is missing from a last batch that is
// not full, or from the last round of the ranks, are rows without targets. Returns the number of targets.
static inline size_t batch_validation(Batch *b, size_t batch) {
    const Config *c = b->config;
    const bool there = batch < c->validation_batches;
    int32_t *host = batch_next(b);
    size_t n = 0;
    for (size_t i = 0; i < c->B && host; i++) {
        int32_t *tokens = host + i * c->T, *targets = tokens + c->B * c->T;
        const size_t window = batch * c->B + i;
        if (there && b->data->validation_random) {
            loader_random(c->seed, 2, window, c->T, c->shape.V, tokens, targets);
            n += c->T;
        } else if (there && window < b->data->validation.n_windows) {
            loader_read(&b->data->validation, window, c->shape.V, b->window, tokens, targets);
            n += loader_window_targets(&b->data->validation, window);
        } else {
            for (size_t t = 0; t < c->T; t++) {
                tokens[t] = 0;
                targets[t] = -1;
            }
        }
    }
    batch_send(b, false);
    return n;
}

#endif
