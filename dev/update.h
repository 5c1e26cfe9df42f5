// update.h - the end of a step: the norm of all gradients, and AdamW on every block, wherever its states are.
//
// What AdamW reads and writes (gradients, m, v, master weights, weights) is used in place where it has its home in the
// memory of the processor that computes the update, the device's or the host's. The rest comes and goes in pieces,
// through three sets of buffers, so that piece i+1 arrives and piece i-1 leaves while piece i is computed, and neither
// waits for the other:
//
//     fetch     | piece 0 | piece 1 | piece 2 | ...
//     compute             | piece 0 | piece 1 | ...
//     stash                         | piece 0 | ...
//
// The buffers are on the stack: the step's queues are joined before and after.
#ifndef UPDATE_H
#define UPDATE_H

#include "store.h"

// Elements [begin, begin + n) of a block.
typedef struct {
    size_t block, begin, n;
} UpdatePiece;

typedef struct {
    char *buffers[HOMES];  // NULL: that operand is used in place
    Slot *slot;            // whose events they go by
} UpdateSet;

typedef struct {
    Store *store;
    AdamW step;
    Tier tier;             // memory of the processor that computes
    size_t piece_elements;
    size_t n_sets;         // UPDATE_SETS, or as many as there are pieces
    UpdateSet sets[UPDATE_SETS];
} Update;

// *square (fp64, on the device) = the square of the norm of this rank's shards of the gradients.
static inline void update_norm(Store *store, double *square) {
    store_join(store);
    norm_total(store->device, square, store->chunk_sums,
               store->n_elements / (size_t)store->ranks->size / NORM_CHUNK);
}

// Elements of a block that this rank updates.
static inline void update_range(const Store *store, size_t block, size_t *first, size_t *end) {
    bool sharded = placement_updates_shard(&store->place);
    *first = sharded ? store_shard(store, block) : 0;
    *end = *first + (sharded ? store_shard_elements(store, block) : store_layout(store, block)->n_elements);
}

// Moves to the next piece, from {0, 0, 0} on; false after the last.
static inline bool update_next(const Update *u, UpdatePiece *piece) {
    size_t first, end;
    update_range(u->store, piece->block, &first, &end);
    piece->begin = piece->n == 0 ? first : piece->begin + piece->n;
    if (piece->begin == end) {
        if (++piece->block == u->store->n_blocks) return false;
        update_range(u->store, piece->block, &first, &end);
        piece->begin = first;
    }
    piece->n = size_min(u->piece_elements, end - piece->begin);
    return true;
}

// fp32 has no master weights beside the weights.
static inline bool update_has(const Store *store, int home) { return home != HOME_MASTER || store->dtype != FP32; }

// Where an operand is while it is computed on.
static inline void *update_operand(const Update *u, const UpdateSet *set, int home, const UpdatePiece *piece) {
    return set->buffers[home] ? set->buffers[home] : store_pointer(u->store, home, piece->block, piece->begin);
}

static inline void update_transfer(const Update *u, UpdateSet *set, int home, const UpdatePiece *piece, bool in) {
    const Home *h = &u->store->homes[home];
    char *place = store_pointer(u->store, home, piece->block, piece->begin);
    if (in) {
        transfer(&u->store->transfers, QUEUE_FETCH, u->tier, set->buffers[home], h->tier, place, piece->n * h->size);
    } else {
        transfer(&u->store->transfers, QUEUE_STASH, h->tier, place, u->tier, set->buffers[home], piece->n * h->size);
    }
}

static inline void update_fetch(Update *u, UpdateSet *set, const UpdatePiece *piece) {
    slot_fetch(u->store->device, set->slot, QUEUE_FETCH);
    for (int home = 0; home < HOMES; home++) {
        bool read = home != HOME_WEIGHTS || u->store->dtype == FP32;
        if (set->buffers[home] && read) update_transfer(u, set, home, piece, true);
    }
    slot_filled(u->store->device, set->slot, QUEUE_FETCH);
}

// Before the host itself computes on a piece. False on PLAN.
static inline bool update_on_host(const Update *u, const UpdateSet *set, const UpdatePiece *piece) {
    bool runs = false;
    for (int home = 0; home < HOMES; home++) {
        const size_t n_bytes = piece->n * u->store->homes[home].size;
        if (!update_has(u->store, home)) continue;
        const void *operand = update_operand(u, set, home, piece);
        runs = home == HOME_GRADIENTS ? host_reads(u->store->device, operand, n_bytes)
                                      : host_writes(u->store->device, operand, n_bytes);
    }
    return runs;
}

static inline void update_compute(Update *u, UpdateSet *set, const UpdatePiece *piece) {
    Store *store = u->store;
    const size_t n_decay = store_layout(store, piece->block)->n_decay;
    const size_t decayed = n_decay > piece->begin ? size_min(n_decay - piece->begin, piece->n) : 0;
    AdamWOperands of = {NULL, NULL, NULL, NULL, NULL, piece->n, decayed};
    of.weights = update_operand(u, set, HOME_WEIGHTS, piece);
    if (update_has(store, HOME_MASTER)) of.master = (float *)update_operand(u, set, HOME_MASTER, piece);
    of.m = (float *)update_operand(u, set, HOME_M, piece);
    of.v = (float *)update_operand(u, set, HOME_V, piece);
    of.gradients = (const float *)update_operand(u, set, HOME_GRADIENTS, piece);
    if (u->tier == TIER_HOST && update_on_host(u, set, piece)) {
        adamw_cpu(&u->step, store->dtype, &of);
    } else {
        slot_ready(store->device, set->slot, QUEUE_COMPUTE);
        adamw(store->device, &u->step, store->dtype, &of);
    }
    slot_send(store->device, set->slot, QUEUE_COMPUTE, QUEUE_STASH);
    for (int home = 0; home < HOMES; home++) {
        if (set->buffers[home] && home != HOME_GRADIENTS) update_transfer(u, set, home, piece, false);
    }
    slot_done(store->device, set->slot, QUEUE_STASH);
}

// A rank has updated its shard of a block whose weights are whole on every rank: the others get it.
static inline void update_gather(Update *u, size_t block, DeviceEvent *stashed) {
    Store *store = u->store;
    Device *device = store->device;
    const Home *home = &store->homes[HOME_WEIGHTS];
    size_t first = store_shard(store, block), S = store_shard_elements(store, block);
    if (!placement_updates_shard(&store->place) || home->sharded) return;
    if (store_in_place(store, HOME_WEIGHTS)) {
        device_await(device, QUEUE_COLLECTIVE, stashed);
        collective_gather(store->ranks, device, store_pointer(store, HOME_WEIGHTS, block, 0), S * home->size);
        return;
    }
    Slot *slot = store_slot(store->weights, block);
    device_await(device, QUEUE_FETCH, stashed);
    slot_fetch(device, slot, QUEUE_FETCH);
    transfer(&store->transfers, QUEUE_FETCH, TIER_DEVICE, slot->data + first * home->size, home->tier,
             store_pointer(store, HOME_WEIGHTS, block, first), S * home->size);
    slot_send(device, slot, QUEUE_FETCH, QUEUE_COLLECTIVE);
    collective_gather(store->ranks, device, slot->data, S * home->size);
    slot_send(device, slot, QUEUE_COLLECTIVE, QUEUE_STASH);
    transfer(&store->transfers, QUEUE_STASH, home->tier, store_pointer(store, HOME_WEIGHTS, block, 0), TIER_DEVICE,
             slot->data, store_layout(store, block)->n_elements * home->size);
    slot_done(device, slot, QUEUE_STASH);
}

// Of a piece that is on its way, for the table of who has which bytes.
static inline const char *update_owner(int home) {
    switch (home) {
    case HOME_WEIGHTS: return "piece of weights";
    case HOME_GRADIENTS: return "piece of gradients";
    case HOME_MASTER: return "piece of master weights";
    case HOME_M: return "piece of m";
    default: return "piece of v";
    }
}

// Buffers for what has its home elsewhere, in as many sets as there are pieces, at most UPDATE_SETS; without any, a
// piece is all that a rank has of a block.
static inline void update_open(Update *u) {
    Store *store = u->store;
    const size_t N = placement_updates_shard(&store->place) ? (size_t)store->ranks->size : 1;
    const size_t largest = size_max(store->embedding.n_elements, store->layer.n_elements) / N;
    bool staged = false;
    for (int home = 0; home < HOMES; home++) staged = staged || store->homes[home].tier != u->tier;
    u->piece_elements = staged ? size_min(STORE_PIECE, largest) : largest;
    for (UpdatePiece piece = {0, 0, 0}; u->n_sets < UPDATE_SETS && update_next(u, &piece);) u->n_sets++;
    for (size_t i = 0; i < u->n_sets; i++) {
        u->sets[i].slot = &store->updates[i];
        for (int home = 0; home < HOMES; home++) {
            u->sets[i].buffers[home] = NULL;
            if (store->homes[home].tier == u->tier || !update_has(store, home)) continue;
            u->sets[i].buffers[home] = (char *)memory_push_aligned(
                store->memory, u->tier, store->homes[home].kind, u->piece_elements * store->homes[home].size,
                MEMORY_PAGE, update_owner(home));
        }
    }
}

// AdamW on every block, after the gradients of all are at home. A step that is not applied moves nothing.
static inline void update_blocks(Store *store, const AdamW *step) {
    Update u;
    memset(&u, 0, sizeof(u));
    u.store = store;
    u.step = *step;
    u.tier = store->place.update_on_host ? TIER_HOST : TIER_DEVICE;
    size_t marks[TIERS];
    for (int t = 0; t < TIERS; t++) marks[t] = memory_mark(store->memory, (Tier)t);
    update_open(&u);
    store_join(store);
    if (step->apply) {
        UpdatePiece piece = {0, 0, 0}, next = {0, 0, 0};
        size_t i = 0;
        bool more = update_next(&u, &next);
        update_fetch(&u, &u.sets[0], &next);
        for (; more; i++) {
            piece = next;
            more = update_next(&u, &next);
            if (more) update_fetch(&u, &u.sets[(i + 1) % u.n_sets], &next);
            update_compute(&u, &u.sets[i % u.n_sets], &piece);
            if (!more || next.block != piece.block) {
                update_gather(&u, piece.block, u.sets[i % u.n_sets].slot->drained);
            }
        }
        for (int slot = 0; slot < SLOTS; slot++) store->weights[slot].valid = false;
    } else {
        memory_idle(store->memory);
    }
    store_join(store);
    for (int t = 0; t < TIERS; t++) memory_release(store->memory, (Tier)t, marks[t]);
}

#endif
