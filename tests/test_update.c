// test_update.c - update.h: pieces that cover what a rank updates once, and AdamW on every block, wherever its states
// are and in whatever order the queues run, against the equations in double precision.
//
// Models with so many pieces that every set of buffers is used again: properties/test_memory_flags.c.
#include "store_helpers.h"

#include "../dev/update.h"

// ---------------------------------------------------------------------------------------------------------------
// Pieces

// All pieces of a rank, in order: they follow one another, none is empty or larger than it may be, and none crosses
// blocks.
static void expect_pieces(const Store *store, size_t piece_elements) {
    Update u;
    UpdatePiece piece = {0, 0, 0};
    size_t block = 0, at = 0, first, end;
    memset(&u, 0, sizeof(u));
    u.store = (Store *)(uintptr_t)store;
    u.piece_elements = piece_elements;
    update_range(store, 0, &first, &end);
    at = first;
    while (update_next(&u, &piece)) {
        if (at == end) {
            block++;
            update_range(store, block, &first, &end);
            at = first;
        }
        assert_int_equal(piece.block, block);
        assert_int_equal(piece.begin, at);
        assert_in_range(piece.n, 1, piece_elements);
        at += piece.n;
        assert_true(at <= end);
        assert_true(piece.n == piece_elements || at == end);
    }
    assert_int_equal(at, end);
    assert_int_equal(block, store->n_blocks - 1);
}

static void test_pieces_cover_a_rank(void **state) {
    (void)state;
    for (int i = 0; i < 2 * 4; i++) {
        const int sharded = i % 2, N = i / 2 + 1;
        size_t covered = 0, whole = 0;
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
            place.stage = sharded ? 1 + N % 3 : 0;
            ranks_open_plan(&ranks, N);
            ranks.rank = rank;
            store_open(&store, &plan, &memory, &ranks, small_shape(3, 40), FP32, &place, 0);
            for (size_t n = NORM_CHUNK; n <= 6 * NORM_CHUNK; n += NORM_CHUNK) expect_pieces(&store, n);
            expect_pieces(&store, 1000);
            expect_pieces(&store, 1 << 20);
            for (size_t block = 0; block < store.n_blocks; block++) {
                size_t first, end;
                update_range(&store, block, &first, &end);
                covered += end - first;
            }
            whole = store.n_elements;
            memory_close(&memory);
        }
        assert_int_equal(covered, sharded ? whole : whole * (size_t)N);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// AdamW

enum { STEPS = 3, LAYERS = 4, CHANNELS = 24 };

static float start_of(int home, size_t block, size_t e) {
    const double u = random_uniform(3, (uint64_t)home, block * 1000003 + e) - 0.5;
    return (float)(home == HOME_V ? 1e-4 * (u + 0.5) : home == HOME_M ? 1e-2 * u : u);
}

static float gradient_of(size_t block, size_t e, int step) {
    return (float)(random_uniform(4, (uint64_t)step, block * 1000003 + e) - 0.5);
}

// The states after so many steps, in double: learning rate 0.01, decay 0.1 of what decays, gradients times 0.5.
static void by_hand(size_t block, size_t e, bool decays, int n_steps, double *w, double *m, double *v) {
    *w = (double)start_of(HOME_MASTER, block, e);
    *m = (double)start_of(HOME_M, block, e);
    *v = (double)start_of(HOME_V, block, e);
    for (int t = 1; t <= n_steps; t++) {
        const double g = 0.5 * (double)gradient_of(block, e, t);
        *m = 0.9 * *m + 0.1 * g;
        *v = 0.95 * *v + 0.05 * g * g;
        *w -= 0.01 * (*m / (1 - pow(0.9, t)) / (sqrt(*v / (1 - pow(0.95, t))) + 1e-8) + (decays ? 0.1 : 0) * *w);
    }
}

static void open_states(StoreFixture *f, Order order, Dtype dtype, const Placement *place) {
    open_store(f, order, small_shape(LAYERS, CHANNELS), dtype, place, 0);
    store_zero(&f->store);
    for (int home = HOME_MASTER; home < HOMES; home++) {
        for (size_t block = 0; block < f->store.n_blocks; block++) {
            const size_t n = store_layout(&f->store, block)->n_elements;
            assert_true(host_writes(&f->device, f->values, n * sizeof(float)));
            for (size_t e = 0; e < n; e++) f->values[e] = start_of(home, block, e);
            store_put(&f->store, home, block, 0, n, f->values, f->rounded);
        }
    }
    store_join(&f->store);
}

static void put_gradients(StoreFixture *f, int step) {
    store_micro_batch(&f->store, true, true);
    for (size_t block = f->store.n_blocks; block-- > 0;) {
        store_gradients_begin(&f->store, block, NO_BLOCK);
        float *g = store_gradients(&f->store, block);
        for (size_t e = 0; e < store_layout(&f->store, block)->n_elements; e++) g[e] = gradient_of(block, e, step);
        store_gradients_done(&f->store, block);
    }
}

// All states and the weights, hashed.
static uint64_t states_of(StoreFixture *f) {
    uint64_t hash = 0;
    for (int home = HOME_MASTER; home < HOMES; home++) {
        for (size_t block = 0; block < f->store.n_blocks; block++) {
            const size_t n = store_layout(&f->store, block)->n_elements;
            const float *x = block_of(f, home, block);
            for (size_t e = 0; e < n; e++) hash = random_mix(hash ^ number_bits(x[e]));
        }
    }
    for (size_t block = 0; block < f->store.n_blocks; block++) {
        store_weights_begin(&f->store, block, NO_BLOCK);
        const char *w = store_weights(&f->store, block);
        for (size_t e = 0; e < store_layout(&f->store, block)->n_elements; e++) {
            hash = random_mix(hash ^ number_bits(number_get(f->store.dtype, w, e)));
        }
        store_weights_done(&f->store, block);
    }
    return hash;
}

static void update(StoreFixture *f, int step, bool apply) {
    const AdamW adamw = adamw_step(0.01f, 0.1f, step, 0.5f, apply);
    memory_begin(&f->memory, PHASE_UPDATE);
    update_blocks(&f->store, &adamw);
    memory_abandon(&f->memory);
}

// What a step leaves in slots is out of date once the weights have moved.
static void use_weights(StoreFixture *f) {
    for (size_t block = 0; block < f->store.n_blocks; block++) {
        store_weights_begin(&f->store, block, NO_BLOCK);
        store_weights_done(&f->store, block);
    }
}

// Each number within some roundings of fp32 for each step.
static void expect_close(float x, double right, double scale) {
    if (!(fabs((double)x - right) <= STEPS * 8 * 0x1p-24 * (fabs(right) + scale))) fail_msg("%.9g, not %.9g", x, right);
}

static void test_the_equations(void **state) {
    (void)state;
    for (int dtype = FP32; dtype < DTYPES; dtype++) {
        StoreFixture f;
        const Placement place = some_placement(0);
        open_states(&f, EVERY_ORDER[0], (Dtype)dtype, &place);
        for (int step = 1; step <= STEPS; step++) {
            put_gradients(&f, step);
            update(&f, step, true);
        }
        for (size_t block = 0; block < f.store.n_blocks; block++) {
            const BlockLayout *layout = store_layout(&f.store, block);
            for (int home = HOME_MASTER; home < HOMES; home++) {
                const float *x = block_of(&f, home, block);
                for (size_t e = 0; e < layout->n_elements; e++) {
                    double right[3];
                    by_hand(block, e, e < layout->n_decay, STEPS, &right[0], &right[1], &right[2]);
                    expect_close(x[e], right[home - HOME_MASTER],
                                 home == HOME_MASTER ? 0.05
                                 : home == HOME_M    ? 0.1
                                                     : 0);
                }
            }
            const float *master = block_of(&f, HOME_MASTER, block);
            store_weights_begin(&f.store, block, NO_BLOCK);
            for (size_t e = 0; e < layout->n_elements; e++) {
                float rounded[1];
                number_put((Dtype)dtype, rounded, 0, master[e]);
                assert_true(number_get((Dtype)dtype, store_weights(&f.store, block), e) ==
                            number_get((Dtype)dtype, rounded, 0));
            }
            store_weights_done(&f.store, block);
        }
        close_store(&f);
    }
}

// A layer of two million elements comes in three pieces of a million at most: the first decays, the second does in
// part, the last one does not.
static void test_a_block_of_several_pieces(void **state) {
    (void)state;
    enum { WIDE = 418, PIECE = 1048576 };
    static const Order orders[] = {{QUEUE_THREADS, 0}, {QUEUE_LAZY, 0}};
    for (int i = 0; i < 2; i++) {
        StoreFixture f;
        Placement place;
        memset(&place, 0, sizeof(place));
        place.optimizer = TIER_HOST;
        place.update_on_host = i == 1;
        place.gradients = i == 1 ? TIER_DEVICE : TIER_HOST;
        store_memory = (size_t)64 << 20;
        open_store(&f, orders[i], small_shape(1, WIDE), FP32, &place, 0);
        store_memory = (size_t)2 << 20;
        const BlockLayout *layout = store_layout(&f.store, 1);
        assert_int_equal(layout->n_decay, 12 * WIDE * WIDE);
        assert_in_range(2 * PIECE, layout->n_decay, layout->n_exact);
        store_zero(&f.store);
        for (int home = HOME_MASTER; home < HOMES; home++) {
            assert_true(host_writes(&f.device, f.values, layout->n_elements * sizeof(float)));
            for (size_t e = 0; e < layout->n_elements; e++) f.values[e] = start_of(home, 1, e);
            store_put(&f.store, home, 1, 0, layout->n_elements, f.values, f.rounded);
        }
        store_join(&f.store);
        put_gradients(&f, 1);
        update(&f, 1, true);
        const float *x = block_of(&f, HOME_MASTER, 1);
        for (size_t e = 0; e < layout->n_elements; e += e < 2 * PIECE - 1000 ? 101 : 1) {
            double right[3];
            by_hand(1, e, e < layout->n_decay, 1, &right[0], &right[1], &right[2]);
            expect_close(x[e], right[0], 0.05);
        }
        close_store(&f);
    }
}

// The same bits wherever everything is, in every order.
static void test_homes_change_no_bit(void **state) {
    (void)state;
    for (int dtype = FP32; dtype <= BF16; dtype++) {
        uint64_t right = 0;
        for (int i = 0; i < 2 * N_PLACEMENTS * N_ORDERS; i++) {
            Placement place = some_placement(i % N_PLACEMENTS);
            StoreFixture f;
            if (place.optimizer == TIER_DEVICE && i / (N_PLACEMENTS * N_ORDERS) > 0) continue;
            if ((i + i / N_PLACEMENTS) % 2 && place.optimizer != TIER_DEVICE) continue;  // half of them are enough
            place.update_on_host = place.optimizer != TIER_DEVICE && i / (N_PLACEMENTS * N_ORDERS) > 0;
            open_states(&f, EVERY_ORDER[i / N_PLACEMENTS % N_ORDERS], (Dtype)dtype, &place);
            for (int step = 1; step <= 2; step++) {
                use_weights(&f);
                put_gradients(&f, step);
                update(&f, step, true);
            }
            const uint64_t found = states_of(&f);
            if (i == 0) right = found;
            if (found != right) {
                fail_msg("placement %d, order %d, update on the %s: other bits", i % N_PLACEMENTS,
                         i / N_PLACEMENTS % N_ORDERS, place.update_on_host ? "host" : "device");
            }
            close_store(&f);
        }
    }
}

// A step that is not applied takes the same buffers and moves nothing: neither states nor the disk.
static void test_a_step_that_is_not_applied(void **state) {
    (void)state;
    for (int i = 0; i < N_PLACEMENTS; i++) {
        const Placement place = some_placement(i);
        StoreFixture f;
        open_states(&f, EVERY_ORDER[i % N_ORDERS], BF16, &place);
        const uint64_t before = states_of(&f);
        put_gradients(&f, 1);
        store_join(&f.store);
        const uint64_t written = f.memory.disk.n_written, read = f.memory.disk.n_read;
        update(&f, 1, false);
        assert_int_equal(f.memory.disk.n_written, written);
        assert_int_equal(f.memory.disk.n_read, read);
        assert_true(f.memory.idle);
        assert_int_equal(states_of(&f), before);
        update(&f, 1, true);
        assert_int_not_equal(states_of(&f), before);
        for (int t = 0; t < TIERS; t++) assert_int_equal(f.memory.slabs[t].depth, 0);
        close_store(&f);
    }
}

// The square of the norm of all gradients, against a plain sum.
static void test_the_norm(void **state) {
    (void)state;
    for (int i = 0; i < N_PLACEMENTS; i++) {
        const Placement place = some_placement(i);
        StoreFixture f;
        double square = -1, right = 0;
        open_states(&f, EVERY_ORDER[i % N_ORDERS], FP32, &place);
        put_gradients(&f, 7);
        update_norm(&f.store, &square);
        for (size_t block = 0; block < f.store.n_blocks; block++) {
            for (size_t e = 0; e < store_layout(&f.store, block)->n_elements; e++) {
                right += (double)gradient_of(block, e, 7) * (double)gradient_of(block, e, 7);
            }
        }
        assert_true(fabs(square / right - 1) < 1e-12);
        close_store(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_cover_a_rank),
        cmocka_unit_test(test_the_equations),
        cmocka_unit_test(test_a_block_of_several_pieces),
        cmocka_unit_test(test_homes_change_no_bit),
        cmocka_unit_test(test_a_step_that_is_not_applied),
        cmocka_unit_test(test_the_norm),
    };
    return cmocka_run_group_tests(tests, open_swap, close_swap);
}
