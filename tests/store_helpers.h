// store_helpers.h - a store of a small model on the CPU, with homes anywhere and queues in any order.
#ifndef STORE_HELPERS_H
#define STORE_HELPERS_H

#include "device_helpers.h"

#include "../dev/store.h"

typedef struct {
    Device device;
    Memory memory;
    Ledger plan;
    Ranks ranks;
    Store store;
    size_t n_most;   // elements of the larger kind of block
    float *values;   // (n_most) on the host, as transfers need it
    void *rounded;   // (n_most)
} StoreFixture;

static char swap_directory[256];
static size_t store_memory = (size_t)2 << 20;  // bytes of each tier, enough for small models

// For cmocka_run_group_tests().
static inline int open_swap(void **state) {
    (void)state;
#ifdef _OPENMP
    omp_set_num_threads(1);  // children have no other
#endif
    make_directory(swap_directory);
    return 0;
}

static inline int close_swap(void **state) {
    (void)state;
    remove_directory(swap_directory);
    return 0;
}

// Three layers of 8 channels; 67 tokens in 128 rows, 11 positions. Every block is one or two chunks.
static inline ModelShape small_shape(size_t L, size_t C) {
    const ModelShape shape = {L, 1, C, 67, 128, 11};
    return shape;
}

static inline void open_store(StoreFixture *f, Order order, ModelShape shape, Dtype dtype, const Placement *place,
                              size_t stream_bytes) {
    memset(f, 0, sizeof(*f));
    open_cpu(&f->device, order);
    open_memory(&f->memory, &f->device, &f->plan, store_memory, swap_directory);
    ranks_open_plan(&f->ranks, 1);
    store_open(&f->store, &f->device, &f->memory, &f->ranks, shape, dtype, place, stream_bytes);
    f->n_most = size_max(f->store.embedding.n_elements, f->store.layer.n_elements);
    f->values = (float *)memory_keep_aligned(&f->memory, TIER_HOST, KIND_FILES, f->n_most * sizeof(float), MEMORY_PAGE,
                                             "values");
    f->rounded =
        memory_keep_aligned(&f->memory, TIER_HOST, KIND_FILES, f->n_most * sizeof(float), MEMORY_PAGE, "rounded");
}

static inline void close_store(StoreFixture *f) {
    memory_close(&f->memory);
    close_cpu(&f->device);
}

// The i-th of some placements that go through every tier of every kind.
enum { N_PLACEMENTS = 9 };
static inline Placement some_placement(int i) {
    Placement place;
    memset(&place, 0, sizeof(place));
    place.weights = (Tier)(i % TIERS);
    place.gradients = (Tier)(i / TIERS);
    place.optimizer = (Tier)((i + i / TIERS) % TIERS);
    place.activations = (Tier)(i % TIERS);
    place.update_on_host = place.optimizer != TIER_DEVICE && i % 2;
    return place;
}

// All of a block in a home of fp32, in f->values.
static inline const float *block_of(StoreFixture *f, int home, size_t block) {
    const size_t n = store_layout(&f->store, block)->n_elements;
    store_get(&f->store, home, block, 0, n, f->values);
    assert_true(host_reads(&f->device, f->values, n * sizeof(float)));
    return f->values;
}

#endif
