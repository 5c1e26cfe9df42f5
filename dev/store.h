// store.h - where each block of the model lives, and how it comes and goes: ZeRO and offload are the same thing here.
//
// Each of a block's weights (compute type), gradients, master weights, m and v (fp32) has a home: a tier (device, host
// or disk), and whole blocks on every rank or this rank's shard of each (layout.h):
//
//     -z 1   m, v, master sharded        -z 2   and gradients          -z 3   and weights
//     --offload optimizer=, gradients=, weights= host or disk: their tier
//
// The step sees whole blocks on the device. Where a home is just that, it is used in place; otherwise a block is in a
// slot while it is needed. Block 0 (embeddings) has a slot of its own, as it is used first and last; the layers take
// turns in two, so that block i+1 is on its way while block i is computed:
//
//     weights      home --fetch--> slot (at the rank's place) --gather--> the whole block, used, forgotten
//     gradients    [home --fetch-->] slot, added to --reduce-scatter--> home (this rank's shard), or --stash--> home
//
//     activations  what -r 3 keeps of the layers: slot --stash--> home --fetch--> slot, for the backward
//
// Every gradient of a micro-batch is summed completely, then added once to its home. Stages 0 and 1 add up a rank's
// micro-batches first and then over the ranks, at the last one; stages 2 and 3 add over the ranks in every micro-batch.
// Transfers are of whole blocks, on their own queues; slots keep them apart (slot.h).
#ifndef STORE_H
#define STORE_H

#include "collective.h"
#include "kernels/adamw.h"
#include "layout.h"
#include "placement.h"
#include "transfer.h"

typedef struct {
    Tier tier;
    Kind kind;
    bool sharded;  // this rank's shard of every block instead of whole blocks
    size_t size;   // bytes of an element
    char *base;    // block after block
} Home;

// The residual stream x[0] ... x[L] (B,T,C) before, between and after the layers, where it has its home elsewhere than
// on the device: what the layers read takes turns in two slots, x[l] in slot l % 2. x[L], which the head reads, stays.
typedef struct {
    Tier tier;       // TIER_DEVICE: it is on the stack, and nothing here is in use
    char *base;      // x[0] ... x[L-1], `distance` bytes apart
    size_t n_bytes, distance;
    Slot slots[2];
    DeviceEvent *stashed;  // the last one that went home has arrived
} StoreStream;

enum { SLOTS = 3, UPDATE_SETS = 3 };
static const int64_t NO_BLOCK = -1;
enum { STORE_PIECE = 1 << 20 };  // elements on their way to another memory or rank

typedef struct {
    Device *device;
    Memory *memory;
    Ranks *ranks;
    ModelShape shape;
    Dtype dtype;
    Placement place;
    size_t n_blocks;
    BlockLayout embedding, layer;
    size_t n_elements;  // of all blocks, padded
    Home homes[HOMES];  // for fp32 the master weights are the weights
    Transfers transfers;
    Slot weights[SLOTS], gradients[SLOTS], updates[UPDATE_SETS];
    StoreStream stream;
    double *chunk_sums;               // of the norm, for this rank's shard of every block
    size_t piece_elements;            // of an exchange
    float *received, *staged;         // pieces from the other ranks; of a shard whose home is elsewhere
    bool first, last;                 // of the step's micro-batches
    DeviceEvent *ready, *stashed, *joins[QUEUES];
} Store;

// Where a block's tensors are; all layers have the same.
static inline const BlockLayout *store_layout(const Store *store, size_t block) {
    return block == 0 ? &store->embedding : &store->layer;
}

// First element of a block among the elements of all blocks.
static inline size_t store_offset(const Store *store, size_t block) {
    return block == 0 ? 0 : store->embedding.n_elements + (block - 1) * store->layer.n_elements;
}

// Elements of a block that are one rank's.
static inline size_t store_shard_elements(const Store *store, size_t block) {
    return store_layout(store, block)->n_elements / (size_t)store->ranks->size;
}

// First element of this rank's shard within the block.
static inline size_t store_shard(const Store *store, size_t block) {
    return (size_t)store->ranks->rank * store_shard_elements(store, block);
}

// Where an element of a block is in a home; of a sharded home only this rank's elements have a place.
static inline char *store_pointer(const Store *store, int home, size_t block, size_t element) {
    const Home *h = &store->homes[home];
    size_t offset = store_offset(store, block);
    offset = h->sharded ? offset / (size_t)store->ranks->size + element - store_shard(store, block) : offset + element;
    return h->base + offset * h->size;
}

// The elements [*first, *end) of a block that a home has.
static inline void store_range(const Store *store, int home, size_t block, size_t *first, size_t *end) {
    bool sharded = store->homes[home].sharded;
    *first = sharded ? store_shard(store, block) : 0;
    *end = sharded ? *first + store_shard_elements(store, block) : store_layout(store, block)->n_elements;
}

// The home is whole blocks on the device, so it is used in place.
static inline bool store_in_place(const Store *store, int home) {
    return store->homes[home].tier == TIER_DEVICE && !store->homes[home].sharded;
}

// ---------------------------------------------------------------------------------------------------------------
// Opening

// size: bytes of an element.
static inline void store_open_home(Store *store, int home, size_t size, Kind kind, const char *owner) {
    Home *h = &store->homes[home];
    h->tier = placement_tier(&store->place, home);
    h->kind = kind;
    h->sharded = placement_sharded(&store->place, home);
    h->size = size;
    const size_t n = store->n_elements / (h->sharded ? (size_t)store->ranks->size : 1);
    h->base = (char *)memory_keep_aligned(store->memory, h->tier, kind, n * size,
                                          h->tier == TIER_DISK ? (size_t)MEMORY_PAGE : (size_t)MEMORY_ALIGN, owner);
}

// Slots for blocks that have their home elsewhere: block 0 has its own, layers take turns in two.
static inline void store_open_slots(Store *store, Slot *slots, size_t size, Kind kind, const char *owner) {
    for (size_t i = 0; i < SLOTS; i++) {
        if (i == 1 && store->shape.L < 2) continue;  // block 1 is in slot 2
        size_t n = i == 0 ? store->embedding.n_elements : store->layer.n_elements;
        slot_open(&slots[i], store->device,
                  memory_keep_aligned(store->memory, TIER_DEVICE, kind, n * size, MEMORY_PAGE, owner));
    }
}

// Room for exchanges: a piece from each of the other ranks, together about STORE_PIECE elements.
static inline void store_open_exchange(Store *store) {
    const size_t N = (size_t)store->ranks->size;
    const size_t largest = size_max(store->layer.n_elements, store->embedding.n_elements) / N;
    if (N == 1) return;
    store->piece_elements = size_max(NORM_CHUNK, STORE_PIECE / (N - 1) / NORM_CHUNK * NORM_CHUNK);
    store->piece_elements = size_min(store->piece_elements, largest);
    size_t n_bytes = store->piece_elements * sizeof(float);
    store->received = (float *)memory_keep(store->memory, TIER_DEVICE, KIND_COLLECTIVE, (N - 1) * n_bytes, "exchange");
    if (store->homes[HOME_GRADIENTS].sharded && store->homes[HOME_GRADIENTS].tier != TIER_DEVICE) {
        store->staged = (float *)memory_keep_aligned(store->memory, TIER_DEVICE, KIND_COLLECTIVE, n_bytes,
                                                     MEMORY_PAGE, "piece of a shard");
    }
}

// The residual stream's home and slots, if it lives away; n_bytes: of (B,T,C).
static inline void store_open_stream(Store *store, size_t n_bytes) {
    StoreStream *stream = &store->stream;
    Memory *memory = store->memory;
    stream->tier = store->place.activations;
    if (stream->tier == TIER_DEVICE) return;
    stream->n_bytes = n_bytes;
    stream->distance = size_round_up(n_bytes, MEMORY_PAGE);
    stream->base = (char *)memory_keep_aligned(memory, stream->tier, KIND_ACTIVATIONS,
                                               store->shape.L * stream->distance, MEMORY_PAGE, "residual stream");
    for (int i = 0; i < 2; i++) {
        slot_open(&stream->slots[i], store->device,
                  memory_keep_aligned(memory, TIER_DEVICE, KIND_ACTIVATIONS, n_bytes, MEMORY_PAGE,
                                      "residual stream at a layer"));
    }
    stream->stashed = device_event(store->device);
}

// stream_bytes: of the residual stream of a micro-batch, (B,T,C).
static inline void store_open(Store *store, Device *device, Memory *memory, Ranks *ranks, ModelShape shape,
                              Dtype dtype, const Placement *place, size_t stream_bytes) {
    memset(store, 0, sizeof(*store));
    store->device = device;
    store->memory = memory;
    store->ranks = ranks;
    store->shape = shape;
    store->dtype = dtype;
    store->place = *place;
    store->n_blocks = shape.L + 1;
    size_t N = (size_t)ranks->size, size = number_size(dtype);
    layout_blocks(&shape, N, &store->embedding, &store->layer);
    store->n_elements = store->embedding.n_elements + shape.L * store->layer.n_elements;
    store_open_home(store, HOME_WEIGHTS, size, KIND_WEIGHTS, "weights");
    store_open_home(store, HOME_GRADIENTS, sizeof(float), KIND_GRADIENTS, "gradients");
    store->homes[HOME_MASTER] = store->homes[HOME_WEIGHTS];
    if (dtype != FP32) store_open_home(store, HOME_MASTER, sizeof(float), KIND_MASTER, "master weights");
    store_open_home(store, HOME_M, sizeof(float), KIND_MOMENTS, "m");
    store_open_home(store, HOME_V, sizeof(float), KIND_MOMENTS, "v");
    if (!store_in_place(store, HOME_WEIGHTS)) {
        store_open_slots(store, store->weights, size, KIND_WEIGHTS, "weights of a block");
    }
    if (!store_in_place(store, HOME_GRADIENTS)) {
        store_open_slots(store, store->gradients, sizeof(float), KIND_GRADIENTS, "gradients of a block");
    }
    store_open_exchange(store);
    store->chunk_sums = (double *)memory_keep(memory, TIER_DEVICE, KIND_GRADIENTS,
                                              store->n_elements / N / NORM_CHUNK * sizeof(double),
                                              "norm of each chunk");
    transfers_open(&store->transfers, memory, placement_uses_disk(place));
    store->ready = device_event(device);
    store->stashed = device_event(device);
    for (int q = 0; q < QUEUES; q++) store->joins[q] = device_event(device);
    for (int i = 0; i < UPDATE_SETS; i++) slot_open(&store->updates[i], device, NULL);
    store_open_stream(store, stream_bytes);
}

// Everything called before, on any queue, runs before everything that is called from here on.
static inline void store_join(Store *store) { device_join(store->device, store->joins); }

// ---------------------------------------------------------------------------------------------------------------
// First values, loading and saving: the host and its memory, piece by piece, waiting for each

// All of a home zero; a swap file starts so. Master weights of fp32 are the weights.
static inline void store_zero_home(Store *store, int home) {
    const Home *h = &store->homes[home];
    size_t n_bytes = store->n_elements / (h->sharded ? (size_t)store->ranks->size : 1) * h->size;
    if (h->tier == TIER_DEVICE) device_zero(store->device, h->base, n_bytes);
    if (h->tier == TIER_HOST && host_writes(store->device, h->base, n_bytes)) memset(h->base, 0, n_bytes);
}

// Paddings, moments and gradients start as zero.
static inline void store_zero(Store *store) {
    for (int home = 0; home < HOMES; home++) store_zero_home(store, home);
    for (int i = 0; i < SLOTS; i++) {
        size_t n = i == 0 ? store->embedding.n_elements : store->layer.n_elements;
        if (store->gradients[i].data) device_zero(store->device, store->gradients[i].data, n * sizeof(float));
    }
    store_join(store);
}

// Elements [begin, begin + n) of a block between a home and `values` (n) in page-aligned host memory: those that the
// home has. put: into the home; otherwise out of it, and the host waits for them. begin and n are multiples of
// NORM_CHUNK.
static inline void store_move(Store *store, int home, size_t block, size_t begin, size_t n, void *values, bool put) {
    size_t first, end, size = store->homes[home].size;
    store_range(store, home, block, &first, &end);
    first = size_max(first, begin);
    end = size_min(end, begin + n);
    if (first >= end) return;
    char *host = (char *)values + (first - begin) * size;
    char *place = store_pointer(store, home, block, first);
    Tier tier = store->homes[home].tier;
    if (put) {
        transfer(&store->transfers, QUEUE_FETCH, tier, place, TIER_HOST, host, (end - first) * size);
        return;
    }
    transfer(&store->transfers, QUEUE_FETCH, TIER_HOST, host, tier, place, (end - first) * size);
    device_record(store->device, QUEUE_FETCH, store->ready);
    device_wait_event(store->device, store->ready);
}

// values (n) fp32 into a home of the states; master weights go into the weights, rounded, as well. rounded (n): room
// for that, in the compute type.
static inline void store_put(Store *store, int home, size_t block, size_t begin, size_t n, float *values,
                             void *rounded) {
    if (home == HOME_MASTER && store->dtype != FP32) {
        if (host_writes(store->device, rounded, n * number_size(store->dtype))) {
            number_store(store->dtype, rounded, 0, n, values);
        }
        store_move(store, HOME_WEIGHTS, block, begin, n, rounded, true);
    }
    store_move(store, home, block, begin, n, values, true);
}

// Elements [begin, begin + n) of a home of the states into rank 0's `values` (n); all ranks call it together.
static inline void store_get(Store *store, int home, size_t block, size_t begin, size_t n, float *values) {
    size_t S = store_shard_elements(store, block);
    store_move(store, home, block, begin, n, values, false);
    if (!store->homes[home].sharded || !host_writes(store->device, values, n * sizeof(float))) return;
    for (size_t r = begin / S; r * S < begin + n; r++) {
        size_t first = size_max(r * S, begin), end = size_min((r + 1) * S, begin + n);
        ranks_to_root(store->ranks, (int)r, values + (first - begin), (end - first) * sizeof(float));
    }
}

// Host memory for pieces on their way: values (n) fp32 and, unless rounded is NULL, the same in a shorter compute type.
// Returns n, elements.
static inline size_t store_push_piece(Store *store, float **values, void **rounded) {
    size_t n = size_min(STORE_PIECE / 4, store->n_elements);
    *values = (float *)memory_push_aligned(store->memory, TIER_HOST, KIND_FILES, n * sizeof(float), MEMORY_PAGE,
                                           "values on their way");
    if (rounded && store->dtype != FP32) {
        *rounded = memory_push_aligned(store->memory, TIER_HOST, KIND_FILES, n * number_size(store->dtype),
                                       MEMORY_PAGE, "values on their way, rounded");
    }
    return n;
}

// First values of elements [begin, begin + n) of a block.
static inline void store_first_values(const Store *store, float *values, size_t block, size_t begin, size_t n,
                                      uint64_t seed) {
    const BlockLayout *layout = store_layout(store, block);
    memset(values, 0, n * sizeof(float));
    for (size_t i = 0; i < layout->n_tensors; i++) {
        const Tensor *tensor = &layout->tensors[i];
        const size_t first = size_max(tensor->offset, begin);
        const size_t end = size_min(tensor->offset + tensor->n_saved, begin + n);
        if (first >= end) continue;
        layout_first_values(values + (first - begin), tensor, seed, block * BLOCK_TENSORS + i, store->shape.L,
                            first - tensor->offset, end - first);
    }
}

// GPT-2's initialisation: a function of the seed alone, the same for any device and number of ranks.
static inline void store_initialise(Store *store, uint64_t seed) {
    size_t mark = memory_mark(store->memory, TIER_HOST);
    float *values;
    void *rounded = NULL;
    const size_t room = store_push_piece(store, &values, &rounded);
    store_zero(store);
    for (size_t block = 0; block < store->n_blocks; block++) {
        const size_t n_elements = store_layout(store, block)->n_elements;
        for (size_t begin = 0, n; begin < n_elements; begin += n) {
            n = size_min(room, n_elements - begin);
            if (host_writes(store->device, values, n * sizeof(float))) {
                store_first_values(store, values, block, begin, n, seed);
            }
            store_put(store, HOME_MASTER, block, begin, n, values, rounded);
        }
    }
    store_join(store);
    memory_release(store->memory, TIER_HOST, mark);
}

// ---------------------------------------------------------------------------------------------------------------
// Weights: what the training step calls

// The block's slot among the three.
static inline Slot *store_slot(Slot *slots, size_t block) { return &slots[block == 0 ? 0 : 1 + block % 2]; }

// Starts the way of a block's weights into its slot, unless it is there.
static inline void store_fetch_weights(Store *store, size_t block) {
    const Home *home = &store->homes[HOME_WEIGHTS];
    Slot *slot = store_slot(store->weights, block);
    if (slot_holds(slot, block)) return;
    size_t first, end, N = (size_t)store->ranks->size, n_bytes = store_layout(store, block)->n_elements * home->size;
    Queue queue = home->tier == TIER_DEVICE ? QUEUE_COLLECTIVE : QUEUE_FETCH;
    store_range(store, HOME_WEIGHTS, block, &first, &end);
    slot_fetch(store->device, slot, queue);
    transfer(&store->transfers, queue, TIER_DEVICE, slot->data + first * home->size, home->tier,
             store_pointer(store, HOME_WEIGHTS, block, first), (end - first) * home->size);
    if (home->sharded) {
        if (queue == QUEUE_FETCH) slot_send(store->device, slot, QUEUE_FETCH, QUEUE_COLLECTIVE);
        collective_gather(store->ranks, store->device, slot->data, n_bytes / N);
        queue = QUEUE_COLLECTIVE;
    }
    slot_filled(store->device, slot, queue);
    slot->block = block;
    slot->valid = true;
}

// From here on the compute queue may read the block's weights, store_weights(). next: the block that will be asked for
// after this one, or NO_BLOCK; it is sent for.
static inline void store_weights_begin(Store *store, size_t block, int64_t next) {
    if (store_in_place(store, HOME_WEIGHTS)) return;
    store_fetch_weights(store, block);
    slot_ready(store->device, store_slot(store->weights, block), QUEUE_COMPUTE);
    if (next != NO_BLOCK) store_fetch_weights(store, (size_t)next);
}

// A block's weights in the compute type, where they are now; after store_weights_begin().
static inline const char *store_weights(const Store *store, size_t block) {
    if (store_in_place(store, HOME_WEIGHTS)) return store_pointer(store, HOME_WEIGHTS, block, 0);
    return store_slot((Slot *)(uintptr_t)store->weights, block)->data;
}

// Nothing called from here on reads them, until they are begun again.
static inline void store_weights_done(Store *store, size_t block) {
    if (store_in_place(store, HOME_WEIGHTS)) return;
    slot_done(store->device, store_slot(store->weights, block), QUEUE_COMPUTE);
}

// ---------------------------------------------------------------------------------------------------------------
// Gradients

// A micro-batch begins: the step's first, its last?
static inline void store_micro_batch(Store *store, bool first, bool last) {
    store->first = first;
    store->last = last;
}

// Whether gradients are added to what store_gradients() has, or replace it.
static inline bool store_gradients_add(const Store *store) {
    return !store->first && !store->homes[HOME_GRADIENTS].sharded;
}

// Starts the way of a block's gradients into its slot, unless they are there.
static inline void store_fetch_gradients(Store *store, size_t block) {
    Slot *slot = store_slot(store->gradients, block);
    if (slot_holds(slot, block)) return;
    const Home *home = &store->homes[HOME_GRADIENTS];
    slot_fetch(store->device, slot, QUEUE_FETCH);
    device_await(store->device, QUEUE_FETCH, store->stashed);
    transfer(&store->transfers, QUEUE_FETCH, TIER_DEVICE, slot->data, home->tier,
             store_pointer(store, HOME_GRADIENTS, block, 0), store_layout(store, block)->n_elements * home->size);
    slot_filled(store->device, slot, QUEUE_FETCH);
    slot->block = block;
    slot->valid = true;
}

// From here on the compute queue may write, or add to, store_gradients(). next as with weights.
static inline void store_gradients_begin(Store *store, size_t block, int64_t next) {
    if (store_in_place(store, HOME_GRADIENTS)) return;
    Slot *slot = store_slot(store->gradients, block);
    slot_fetch(store->device, slot, QUEUE_COMPUTE);
    if (!store_gradients_add(store)) return;
    store_fetch_gradients(store, block);
    slot_ready(store->device, slot, QUEUE_COMPUTE);
    if (next != NO_BLOCK) store_fetch_gradients(store, (size_t)next);
}

// The fp32 gradients of a block.
static inline float *store_gradients(Store *store, size_t block) {
    if (store_in_place(store, HOME_GRADIENTS)) return (float *)(void *)store_pointer(store, HOME_GRADIENTS, block, 0);
    return (float *)(void *)store_slot(store->gradients, block)->data;
}

// Squares of n gradients of this rank's shard of a block, from `at` within the shard.
static inline void store_note_norm(Store *store, Queue queue, size_t block, size_t begin, const float *g, size_t n) {
    size_t first = (store_offset(store, block) / (size_t)store->ranks->size + begin) / NORM_CHUNK;
    norm_chunks(store->device, queue, store->chunk_sums + first, g, n);
}

// Sum over ranks of a whole block of gradients: this rank's shard of it, in its place, or added to the shard's home.
static inline void store_reduce(Store *store, size_t block, const float *whole) {
    const Home *home = &store->homes[HOME_GRADIENTS];
    size_t S = store_shard_elements(store, block), first = store_shard(store, block);
    const bool away = home->sharded && home->tier != TIER_DEVICE, add = home->sharded && !store->first;
    for (size_t begin = 0, n; begin < S; begin += n) {
        n = size_min(store->piece_elements, S - begin);
        const float *own = whole + first + begin;
        char *place = (char *)(uintptr_t)own;
        if (home->sharded) place = store_pointer(store, HOME_GRADIENTS, block, first + begin);
        float *to = away ? store->staged : (float *)(void *)place;
        collective_exchange(store->ranks, store->device, whole, S, begin, n, store->received);
        if (away && add) {
            transfer(&store->transfers, QUEUE_COLLECTIVE, TIER_DEVICE, to, home->tier, place, n * sizeof(float));
        }
        collective_sum(store->ranks, store->device, to, own, store->received, n, add);
        if (store->last) store_note_norm(store, QUEUE_COLLECTIVE, block, begin, to, n);
        if (away) {
            transfer(&store->transfers, QUEUE_COLLECTIVE, home->tier, place, TIER_DEVICE, to, n * sizeof(float));
        }
    }
}

// The block's gradients of this micro-batch are complete: they go home.
static inline void store_gradients_done(Store *store, size_t block) {
    const Home *home = &store->homes[HOME_GRADIENTS];
    Device *device = store->device;
    float *whole = store_gradients(store, block);
    const size_t n = store_layout(store, block)->n_elements, S = store_shard_elements(store, block);
    Slot *slot = store_slot(store->gradients, block);
    Queue queue = QUEUE_COMPUTE;
    if (store->ranks->size > 1 && (store->last || home->sharded)) {
        device_record(device, QUEUE_COMPUTE, store->ready);
        device_await(device, QUEUE_COLLECTIVE, store->ready);
        store_reduce(store, block, whole);
        if (!placement_updates_shard(&store->place)) {
            collective_gather(store->ranks, device, (char *)whole, S * sizeof(float));
        }
        queue = QUEUE_COLLECTIVE;
    } else if (store->last) {
        store_note_norm(store, QUEUE_COMPUTE, block, 0, whole, n);
    }
    if (store_in_place(store, HOME_GRADIENTS)) return;
    slot->valid = false;
    if (!home->sharded) {
        slot_send(device, slot, queue, QUEUE_STASH);
        transfer(&store->transfers, QUEUE_STASH, home->tier, store_pointer(store, HOME_GRADIENTS, block, 0),
                 TIER_DEVICE, whole, n * home->size);
        device_record(device, QUEUE_STASH, store->stashed);
        queue = QUEUE_STASH;
    }
    slot_done(device, slot, queue);
}

// ---------------------------------------------------------------------------------------------------------------
// Activations: the residual stream, where it lives elsewhere
//
//     forward     layer l reads x[l] in slot l % 2, writes x[l+1] into the other; meanwhile x[l] goes away
//     backward    layer l reads x[l] in slot l % 2; meanwhile x[l-1] comes into the other
//
// x[L-1] is still there when the backward begins.

// Whether it does; otherwise it is on the stack, and nothing below may be called.
static inline bool store_stream_is_away(const Store *store) { return store->stream.tier != TIER_DEVICE; }

// x[l]'s home.
static inline char *store_stream_pointer(const Store *store, size_t l) {
    return store->stream.base + l * store->stream.distance;
}

// Where the compute queue is to write x[l].
static inline void *store_stream_begin(Store *store, size_t l) {
    Slot *slot = &store->stream.slots[l % 2];
    slot_fetch(store->device, slot, QUEUE_COMPUTE);
    slot->block = l;
    slot->valid = true;
    return slot->data;
}

// x[l] is complete: it goes home.
static inline void store_stream_written(Store *store, size_t l) {
    StoreStream *stream = &store->stream;
    Slot *slot = &stream->slots[l % 2];
    if (l == store->shape.L) return;
    slot_send(store->device, slot, QUEUE_COMPUTE, QUEUE_STASH);
    transfer(&store->transfers, QUEUE_STASH, stream->tier, store_stream_pointer(store, l), TIER_DEVICE, slot->data,
             stream->n_bytes);
    device_record(store->device, QUEUE_STASH, stream->stashed);
    slot_done(store->device, slot, QUEUE_STASH);
}

// Starts the way of x[l] back, unless it is there.
static inline void store_fetch_stream(Store *store, size_t l) {
    StoreStream *stream = &store->stream;
    Slot *slot = &stream->slots[l % 2];
    if (slot_holds(slot, l)) return;
    slot_fetch(store->device, slot, QUEUE_FETCH);
    device_await(store->device, QUEUE_FETCH, stream->stashed);
    transfer(&store->transfers, QUEUE_FETCH, TIER_DEVICE, slot->data, stream->tier, store_stream_pointer(store, l),
             stream->n_bytes);
    slot_filled(store->device, slot, QUEUE_FETCH);
    slot->block = l;
    slot->valid = true;
}

// x[l], for the backward of layer l; x[l-1] is sent for.
static inline const void *store_stream_read(Store *store, size_t l) {
    Slot *slot = &store->stream.slots[l % 2];
    store_fetch_stream(store, l);
    slot_ready(store->device, slot, QUEUE_COMPUTE);
    if (l > 0) store_fetch_stream(store, l - 1);
    return slot->data;
}

// Nothing called from here on reads x[l].
static inline void store_stream_done(Store *store, size_t l) {
    Slot *slot = &store->stream.slots[l % 2];
    slot_done(store->device, slot, QUEUE_COMPUTE);
    slot->valid = false;
}

#endif
