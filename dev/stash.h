// stash.h - the residual stream between layers, for the backward: on the device, or away on the host or the disk.
//
// With whole-block recomputation (-r 3) all that a layer keeps is its input, x[l] (B,T,C). With
// --offload activations=host or disk it is kept there, and the device has two buffers that the layers take turns in:
//
//     forward     layer l reads x[l] in buffer l % 2, writes x[l+1] into the other; meanwhile x[l] goes away
//     backward    layer l reads x[l] in buffer l % 2; meanwhile x[l-1] comes into the other
//
// x[L], which the head reads, stays, and x[L-1] is still there when the backward begins.
#ifndef STASH_H
#define STASH_H

#include "memory.h"

typedef struct {
    void *data;
    size_t layer;
    bool valid;
    DeviceEvent *filled, *drained;
} StashBuffer;

typedef struct {
    Memory *memory;
    Tier tier;
    size_t L, n_bytes;
    char *home;  // x[0] ... x[L-1], each round_up(n_bytes, MEMORY_PAGE)
    StashBuffer buffers[2];
    DeviceEvent *ready, *stashed;
} Stash;

// n_bytes: of one x[l].
static inline void stash_open(Stash *stash, Memory *memory, Tier tier, size_t L, size_t n_bytes) {
    memset(stash, 0, sizeof(*stash));
    stash->memory = memory;
    stash->tier = tier;
    stash->L = L;
    stash->n_bytes = n_bytes;
    if (tier == TIER_DEVICE) return;
    stash->home = (char *)memory_keep_aligned(memory, tier, KIND_ACTIVATIONS, L * round_up(n_bytes, MEMORY_PAGE),
                                              MEMORY_PAGE, "residual stream");
    for (int i = 0; i < 2; i++) {
        stash->buffers[i].data = memory_keep_aligned(memory, TIER_DEVICE, KIND_ACTIVATIONS, n_bytes, MEMORY_PAGE,
                                                     "residual stream at a layer");
        stash->buffers[i].filled = device_event(memory->device);
        stash->buffers[i].drained = device_event(memory->device);
    }
    stash->ready = device_event(memory->device);
    stash->stashed = device_event(memory->device);
}

static inline bool stash_is_away(const Stash *stash) { return stash->tier != TIER_DEVICE; }

static inline char *stash_place(const Stash *stash, size_t l) {
    return stash->home + l * round_up(stash->n_bytes, MEMORY_PAGE);
}

// Where x[l] is to be written, by the compute queue.
static inline void *stash_begin(Stash *stash, size_t l) {
    StashBuffer *buffer = &stash->buffers[l % 2];
    device_await(stash->memory->device, QUEUE_COMPUTE, buffer->drained);
    buffer->layer = l;
    buffer->valid = true;
    return buffer->data;
}

// x[l] is complete: it goes home.
static inline void stash_written(Stash *stash, size_t l) {
    Device *device = stash->memory->device;
    if (l == stash->L) return;
    device_record(device, QUEUE_COMPUTE, stash->ready);
    device_await(device, QUEUE_STASH, stash->ready);
    memory_transfer(stash->memory, QUEUE_STASH, stash->tier, stash_place(stash, l), TIER_DEVICE,
                    stash->buffers[l % 2].data, stash->n_bytes);
    device_record(device, QUEUE_STASH, stash->stashed);
    device_record(device, QUEUE_STASH, stash->buffers[l % 2].drained);
}

// Starts the way of x[l] back, unless it is there.
static inline void stash_fetch(Stash *stash, size_t l) {
    Device *device = stash->memory->device;
    StashBuffer *buffer = &stash->buffers[l % 2];
    if (buffer->valid && buffer->layer == l) return;
    device_await(device, QUEUE_FETCH, buffer->drained);
    device_await(device, QUEUE_FETCH, stash->stashed);
    memory_transfer(stash->memory, QUEUE_FETCH, TIER_DEVICE, buffer->data, stash->tier, stash_place(stash, l),
                    stash->n_bytes);
    device_record(device, QUEUE_FETCH, buffer->filled);
    buffer->layer = l;
    buffer->valid = true;
}

// x[l], for the backward of layer l; x[l-1] is sent for.
static inline const void *stash_read(Stash *stash, size_t l) {
    stash_fetch(stash, l);
    device_await(stash->memory->device, QUEUE_COMPUTE, stash->buffers[l % 2].filled);
    if (l > 0) stash_fetch(stash, l - 1);
    return stash->buffers[l % 2].data;
}

// Nothing called from here on reads x[l].
static inline void stash_done(Stash *stash, size_t l) {
    StashBuffer *buffer = &stash->buffers[l % 2];
    device_record(stash->memory->device, QUEUE_COMPUTE, buffer->drained);
    buffer->valid = false;
}

#endif
