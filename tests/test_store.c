// test_store.c - store.h: every element has one place, on one rank; and whatever the homes and the order of the queues,
// weights come as they are at home, gradients are summed there, and the residual stream comes back.
//
// Here the store has one rank; several are in properties/test_same_bits.c and properties/test_plan_is_run.c.
#include "store_helpers.h"

enum { STREAM = 3 * MEMORY_PAGE };

// ---------------------------------------------------------------------------------------------------------------
// Places

// Every rank's homes, planned: block behind block, element behind element, a sharded home from the rank's first element
// of each block on. Nothing is left out and no two are in one place.
static void test_every_element_has_a_place(void **state) {
    (void)state;
    for (int i = 0; i < 4 * 4; i++) {
        const int stage = i % 4, N = i / 4 + 1;
        for (int rank = 0; rank < N; rank++) {
            Device cpu, plan;
            Memory memory;
            Ranks ranks;
            Store store;
            Placement place;
            memset(&cpu, 0, sizeof(cpu));
            cpu.kind = cpu.real = DEVICE_CPU;
            device_stand_in(&plan, &cpu);
            memory_open_plan(&memory, &plan);
            memset(&place, 0, sizeof(place));
            place.stage = stage;
            ranks_open_plan(&ranks, N);
            ranks.rank = rank;
            store_open(&store, &plan, &memory, &ranks, small_shape(3, 17), BF16, &place, 0);
            assert_int_equal(store.n_blocks, 4);
            assert_int_equal(store.homes[HOME_WEIGHTS].sharded, stage >= 3);
            assert_int_equal(store.homes[HOME_GRADIENTS].sharded, stage >= 2);
            for (int home = HOME_MASTER; home < HOMES; home++) assert_int_equal(store.homes[home].sharded, stage >= 1);
            for (int home = 0; home < HOMES; home++) {
                const char *at = store.homes[home].base;
                const size_t size = home == HOME_WEIGHTS ? 2 : 4;
                assert_int_equal(store.homes[home].size, size);
                for (size_t block = 0; block < 4; block++) {
                    const size_t n = store_layout(&store, block)->n_elements, S = n / (size_t)N;
                    const size_t first = store.homes[home].sharded ? (size_t)rank * S : 0;
                    const size_t end = store.homes[home].sharded ? first + S : n;
                    size_t range[2];
                    store_range(&store, home, block, &range[0], &range[1]);
                    assert_int_equal(range[0], first);
                    assert_int_equal(range[1], end);
                    for (size_t element = first; element < end; element++, at += size) {
                        const char *place = store_pointer(&store, home, block, element);
                        if (place != at) fail_msg("element %zu is elsewhere", element);
                    }
                }
            }
            memory_close(&memory);
        }
    }
}

// fp32 has no master weights beside the weights.
static void test_weights_of_fp32_are_the_master_weights(void **state) {
    (void)state;
    StoreFixture f;
    const Order order = {QUEUE_EAGER, 0};
    Placement place;
    memset(&place, 0, sizeof(place));
    open_store(&f, order, small_shape(1, 8), FP32, &place, 0);
    assert_ptr_equal(f.store.homes[HOME_MASTER].base, f.store.homes[HOME_WEIGHTS].base);
    assert_int_equal(f.memory.slabs[TIER_DEVICE].kinds[KIND_MASTER], 0);
    close_store(&f);
    open_store(&f, order, small_shape(1, 8), BF16, &place, 0);
    assert_ptr_not_equal(f.store.homes[HOME_MASTER].base, f.store.homes[HOME_WEIGHTS].base);
    assert_int_equal(f.memory.slabs[TIER_DEVICE].kinds[KIND_MASTER], 2 * 4096 * 4);
    close_store(&f);
}

// Block 0 has a slot of its own, the layers take turns.
static void test_slots_of_blocks(void **state) {
    (void)state;
    Slot slots[SLOTS];
    static const int right[] = {0, 2, 1, 2, 1, 2};
    for (size_t block = 0; block < 6; block++) assert_ptr_equal(store_slot(slots, block), &slots[right[block]]);
}

// ---------------------------------------------------------------------------------------------------------------
// First values, in and out

// The first value of an element by the tensor that it is of, one at a time.
static float first_value(const BlockLayout *layout, size_t block, size_t element, uint64_t seed, size_t L) {
    for (size_t i = 0; i < layout->n_tensors; i++) {
        const Tensor *tensor = &layout->tensors[i];
        float value;
        if (element < tensor->offset || element >= tensor->offset + tensor->n_saved) continue;
        layout_first_values(&value, tensor, seed, block * LAYER_TENSORS + i, L, element - tensor->offset, 1);
        return value;
    }
    return 0;  // paddings
}

static void test_first_values_are_the_same_everywhere(void **state) {
    (void)state;
    for (int i = 0; i < N_PLACEMENTS * DTYPES; i++) {
        const Dtype dtype = (Dtype)(i / N_PLACEMENTS);
        const Placement place = some_placement(i % N_PLACEMENTS);
        StoreFixture f;
        open_store(&f, EVERY_ORDER[i % N_ORDERS], small_shape(3, 8), dtype, &place, STREAM);
        store_initialise(&f.store, 5);
        for (size_t block = 0; block < 4; block++) {
            const BlockLayout *layout = store_layout(&f.store, block);
            store_weights_begin(&f.store, block, NO_BLOCK);
            const char *weights = store_weights(&f.store, block);
            const float *master = block_of(&f, HOME_MASTER, block);
            for (size_t e = 0; e < layout->n_elements; e++) {
                const float right = first_value(layout, block, e, 5, 3);
                assert_true(master[e] == right);
                float rounded[1];
                number_put(dtype, rounded, 0, right);
                assert_true(number_get(dtype, weights, e) == number_get(dtype, rounded, 0));
            }
            store_weights_done(&f.store, block);
            for (int home = HOME_M; home <= HOME_V; home++) {
                const float *x = block_of(&f, home, block);
                for (size_t e = 0; e < layout->n_elements; e++) assert_true(x[e] == 0);
            }
        }
        close_store(&f);
    }
}

// Chunks of a block in any order, put into the homes of the states: they come back, and their neighbours stay.
static void test_pieces_go_in_and_come_out(void **state) {
    (void)state;
    for (int i = 0; i < N_PLACEMENTS; i++) {
        const Placement place = some_placement(i);
        StoreFixture f;
        open_store(&f, EVERY_ORDER[i % N_ORDERS], small_shape(1, 40), BF16, &place, 0);
        const size_t n = f.store.layer.n_elements, n_chunks = n / NORM_CHUNK;
        assert_true(n_chunks >= 4);
        store_zero(&f.store);
        for (size_t k = 0; k < n_chunks; k++) {
            const size_t chunk = (k * 3 + 1) % n_chunks;
            assert_true(host_writes(&f.device, f.values, NORM_CHUNK * sizeof(float)));
            for (size_t e = 0; e < NORM_CHUNK; e++) f.values[e] = (float)(chunk * NORM_CHUNK + e) + 0.5f;
            store_put(&f.store, HOME_M, 1, chunk * NORM_CHUNK, NORM_CHUNK, f.values, NULL);
            if (k != 1) continue;
            const float *x = block_of(&f, HOME_M, 1);  // two chunks so far: 1 and 4 % n_chunks
            for (size_t e = 0; e < n; e++) {
                const size_t of = e / NORM_CHUNK;
                assert_true(x[e] == (of == 1 || of == 4 % n_chunks ? (float)e + 0.5f : 0));
            }
        }
        const float *x = block_of(&f, HOME_M, 1);
        for (size_t e = 0; e < n; e++) assert_true(x[e] == (float)e + 0.5f);
        store_get(&f.store, HOME_M, 1, NORM_CHUNK, 2 * NORM_CHUNK, f.values);
        assert_true(host_reads(&f.device, f.values, 2 * NORM_CHUNK * sizeof(float)));
        for (size_t e = 0; e < 2 * NORM_CHUNK; e++) assert_true(f.values[e] == (float)(NORM_CHUNK + e) + 0.5f);
        x = block_of(&f, HOME_V, 1);
        for (size_t e = 0; e < n; e++) assert_true(x[e] == 0);
        close_store(&f);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// What the training step calls

static float weight_of(size_t block, size_t element, int round) {
    return (float)(block * 1000 + element % 997) + 0.25f * (float)round;
}

static void put_weights(StoreFixture *f, int round) {
    for (size_t block = 0; block < f->store.n_blocks; block++) {
        const size_t n = store_layout(&f->store, block)->n_elements;
        assert_true(host_writes(&f->device, f->values, n * sizeof(float)));
        for (size_t e = 0; e < n; e++) f->values[e] = weight_of(block, e, round);
        store_put(&f->store, HOME_MASTER, block, 0, n, f->values, f->rounded);
    }
    store_join(&f->store);
    for (int slot = 0; slot < SLOTS; slot++) f->store.weights[slot].valid = false;  // as the update does
}

// Forward through all blocks and back, twice, then with other weights. Each is read when it was begun and overwritten
// in its slot by no other until it is done.
static void test_weights_come_as_they_are_at_home(void **state) {
    (void)state;
    for (int i = 0; i < 3 * N_ORDERS * 4; i++) {
        const size_t L = (size_t)(i / (3 * N_ORDERS)) + 1;
        Placement place;
        StoreFixture f;
        memset(&place, 0, sizeof(place));
        place.weights = (Tier)(i % 3);
        open_store(&f, EVERY_ORDER[i / 3 % N_ORDERS], small_shape(L, 8), FP32, &place, 0);
        store_zero(&f.store);
        for (int round = 0; round < 2; round++) {
            put_weights(&f, round);
            const int n_visits = 2 * ((int)L * 2 + 2);
            int64_t visits[64];
            for (int v = 0; v < n_visits; v++) {
                const int k = v % (n_visits / 2);  // 0, 1 ... L, L ... 1, 0
                visits[v] = k <= (int)L ? k : n_visits / 2 - 1 - k;
            }
            for (int v = 0; v < n_visits; v++) {
                const size_t block = (size_t)visits[v], n = store_layout(&f.store, block)->n_elements;
                int64_t next = v + 1 < n_visits ? visits[v + 1] : NO_BLOCK;
                store_weights_begin(&f.store, block, next == (int64_t)block ? NO_BLOCK : next);
                const float *w = (const float *)(const void *)store_weights(&f.store, block);
                for (size_t e = 0; e < n; e++) {
                    if (w[e] != weight_of(block, e, round)) {
                        fail_msg("L %zu, tier %d, order %d: visit %d, block %zu: %g at %zu", L, i % 3, i / 3 % N_ORDERS,
                                 v, block, (double)w[e], e);
                    }
                }
                store_weights_done(&f.store, block);
            }
            store_join(&f.store);
        }
        close_store(&f);
    }
}

static float gradient_of(size_t block, size_t element, int micro_batch) {
    return (float)((block * 31 + element % 1009) % 257) - 128 + (float)(1 << micro_batch);
}

// Two steps of several micro-batches, backwards through the blocks: at the end every home has the sum, and the chunk
// sums of the norm are those of its squares. (All numbers here are whole and small, so sums are exact.)
static void test_gradients_are_summed_at_home(void **state) {
    (void)state;
    for (int i = 0; i < 3 * N_ORDERS * 3; i++) {
        const int n_micro_batches = i / (3 * N_ORDERS) + 1;
        const size_t L = 3;
        Placement place;
        StoreFixture f;
        memset(&place, 0, sizeof(place));
        place.gradients = (Tier)(i % 3);
        open_store(&f, EVERY_ORDER[i / 3 % N_ORDERS], small_shape(L, 24), FP32, &place, 0);
        store_zero(&f.store);
        for (int step = 0; step < 2; step++) {
            for (int k = 0; k < n_micro_batches; k++) {
                store_micro_batch(&f.store, k == 0, k + 1 == n_micro_batches);
                assert_int_equal(store_gradients_add(&f.store), k > 0);
                for (size_t block = L + 1; block-- > 0;) {
                    const size_t n = store_layout(&f.store, block)->n_elements;
                    store_gradients_begin(&f.store, block, block > 0 ? (int64_t)block - 1 : NO_BLOCK);
                    float *g = store_gradients(&f.store, block);
                    for (size_t e = 0; e < n; e++) {
                        g[e] = gradient_of(block, e, k + step) + (store_gradients_add(&f.store) ? g[e] : 0);
                    }
                    store_gradients_done(&f.store, block);
                }
            }
            store_join(&f.store);
            size_t chunk = 0;
            for (size_t block = 0; block <= L; block++) {
                const size_t n = store_layout(&f.store, block)->n_elements;
                const float *g = block_of(&f, HOME_GRADIENTS, block);
                for (size_t at = 0; at < n; at += 4096, chunk++) {
                    double squares = 0;
                    for (size_t e = at; e < at + 4096; e++) {
                        float right = 0;
                        for (int k = 0; k < n_micro_batches; k++) right += gradient_of(block, e, k + step);
                        assert_true(g[e] == right);
                        squares += (double)right * (double)right;
                    }
                    assert_true(f.store.chunk_sums[chunk] == squares);
                }
            }
            assert_int_equal(chunk * 4096, f.store.n_elements);
        }
        close_store(&f);
    }
}

// x[0] ... x[L] forward, x[L-1] ... x[0] backward, several times over the same slots.
static void test_the_residual_stream_comes_back(void **state) {
    (void)state;
    for (int i = 0; i < 2 * N_ORDERS * 4; i++) {
        const size_t L = (size_t)(i / (2 * N_ORDERS)) + 1;
        Placement place;
        StoreFixture f;
        memset(&place, 0, sizeof(place));
        place.activations = i % 2 ? TIER_DISK : TIER_HOST;
        open_store(&f, EVERY_ORDER[i / 2 % N_ORDERS], small_shape(L, 8), FP32, &place, STREAM - 100);
        assert_true(store_stream_is_away(&f.store));
        for (int round = 0; round < 3; round++) {
            for (size_t l = 0; l <= L; l++) {
                memset(store_stream_begin(&f.store, l), 'a' + (int)l + 8 * round, STREAM - 100);
                store_stream_written(&f.store, l);
            }
            for (size_t l = L; l-- > 0;) {
                const char *x = (const char *)store_stream_read(&f.store, l);
                for (size_t k = 0; k < STREAM - 100; k++) {
                    if (x[k] != 'a' + (int)l + 8 * round) fail_msg("L %zu, round %d: x[%zu] is another", L, round, l);
                }
                store_stream_done(&f.store, l);
            }
        }
        close_store(&f);
    }
    Placement place;
    StoreFixture f;
    memset(&place, 0, sizeof(place));
    open_store(&f, EVERY_ORDER[1], small_shape(1, 8), FP32, &place, STREAM);
    assert_false(store_stream_is_away(&f.store));
    close_store(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_element_has_a_place),
        cmocka_unit_test(test_weights_of_fp32_are_the_master_weights),
        cmocka_unit_test(test_slots_of_blocks),
        cmocka_unit_test(test_first_values_are_the_same_everywhere),
        cmocka_unit_test(test_pieces_go_in_and_come_out),
        cmocka_unit_test(test_weights_come_as_they_are_at_home),
        cmocka_unit_test(test_gradients_are_summed_at_home),
        cmocka_unit_test(test_the_residual_stream_comes_back),
    };
    return cmocka_run_group_tests(tests, open_swap, close_swap);
}
