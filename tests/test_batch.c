// test_batch.c - batch.h: which windows of tokens each rank trains on and validates with, how they reach the device,
// and the positions of a batch sorted by token; in every order of the queues.
#include "token_helpers.h"

#include "device_helpers.h"

#include "../dev/batch.h"

enum { T = 4, N_TOKENS = 60, VOCABULARY = 100 };  // 59 targets in 15 windows, the last one of 3

typedef struct {
    Device device;
    Memory memory;
    Ledger plan;
    Config config;
    Data data;
    Ranks ranks;
    Batch batch;
} Fixture;

// Token i of a file is i + first.
static const char *counting_file(const char *name, uint16_t first, size_t n) {
    uint16_t tokens[N_TOKENS];
    for (size_t i = 0; i < n; i++) tokens[i] = (uint16_t)(first + i);
    return write_shard(name, tokens, n, VOCABULARY);
}

static void open_fixture(Fixture *f, Order order, size_t B, size_t micro_batches, int rank, int n_ranks) {
    memset(f, 0, sizeof(*f));
    open_cpu(&f->device, order);
    open_memory(&f->memory, &f->device, &f->plan, 1 << 20, NULL);
    ranks_open_plan(&f->ranks, n_ranks);
    f->ranks.rank = rank;
    f->config.B = B;
    f->config.T = T;
    f->config.micro_batches = micro_batches;
    f->config.shape.V = VOCABULARY;
    f->config.seed = 5;
    f->config.validation_batches = 100;
    loader_open(&f->data.train, counting_file("train.bin", 10, N_TOKENS), T);
    loader_open(&f->data.validation, counting_file("validation.bin", 0, 23), T);
    batch_open(&f->batch, &f->device, &f->memory, &f->config, &f->data, &f->ranks);
}

static void close_fixture(Fixture *f) {
    loader_close(&f->data.train);
    loader_close(&f->data.validation);
    memory_close(&f->memory);
    close_cpu(&f->device);
}

// The window that a row of the batch in use is, by its first token; all of its tokens and targets must be that
// window's.
static size_t window_of(const Fixture *f, size_t row) {
    const int32_t *tokens = f->batch.tokens + row * T, *targets = f->batch.targets + row * T;
    const size_t window = ((size_t)tokens[0] - 10) / T;
    assert_int_equal(tokens[0], 10 + window * T);
    for (size_t t = 0; t < T; t++) {
        const size_t at = window * T + t;
        assert_int_equal(tokens[t], at < N_TOKENS ? 10 + at : 0);
        assert_int_equal(targets[t], at + 1 < N_TOKENS ? (int)(10 + at + 1) : -1);
    }
    return window;
}

// Six windows a step, shared among any number of ranks and micro-batches: in the order of training, each step goes on
// where the last one ended, and 15 windows make an epoch.
static void test_a_step_has_the_same_windows_for_any_ranks(void **state) {
    (void)state;
    enum { STEPS = 10, PER_STEP = 6 };
    static const struct {
        int n_ranks;
        size_t micro_batches, B;
    } shares[] = {{1, 1, 6}, {1, 2, 3}, {1, 6, 1}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}, {6, 1, 1}};
    size_t right[STEPS][PER_STEP] = {{0}};
    for (size_t s = 0; s < sizeof(shares) / sizeof(shares[0]); s++) {
        for (int rank = 0; rank < shares[s].n_ranks; rank++) {
            Fixture f;
            const size_t B = shares[s].B, N = (size_t)shares[s].n_ranks;
            open_fixture(&f, EVERY_ORDER[s % N_ORDERS], B, shares[s].micro_batches, rank, shares[s].n_ranks);
            for (int64_t step = 0; step < STEPS; step++) {
                size_t n_targets = 0;
                for (size_t k = 0; k < shares[s].micro_batches; k++) {
                    batch_train(&f.batch, step, k);
                    for (size_t row = 0; row < B; row++) {
                        const size_t place = (k * N + (size_t)rank) * B + row, window = window_of(&f, row);
                        if (s == 0) right[step][place] = window;
                        assert_int_equal(window, right[step][place]);
                    }
                    batch_done(&f.batch);
                }
                for (size_t i = 0; i < PER_STEP; i++) n_targets += right[step][i] == 14 ? 3 : 4;
                assert_int_equal(batch_step_targets(&f.batch, step), n_targets);
            }
            close_fixture(&f);
        }
    }
    for (int epoch = 0; epoch < 4; epoch++) {  // 60 windows in all
        bool seen[15] = {false};
        for (int i = 0; i < 15; i++) {
            const size_t window = right[(epoch * 15 + i) / PER_STEP][(epoch * 15 + i) % PER_STEP];
            assert_in_range(window, 0, 14);
            assert_false(seen[window]);
            seen[window] = true;
        }
    }
}

// -a 1: the first batch, whatever the step.
static void test_overfitting_stays_with_the_first_batch(void **state) {
    (void)state;
    Fixture f;
    size_t first[3];
    open_fixture(&f, EVERY_ORDER[0], 3, 1, 0, 1);
    f.config.overfit = true;
    for (int64_t step = 0; step < 9; step++) {
        batch_train(&f.batch, step, 0);
        for (size_t row = 0; row < 3; row++) {
            if (step == 0) first[row] = window_of(&f, row);
            assert_int_equal(window_of(&f, row), first[row]);
        }
        batch_done(&f.batch);
    }
    close_fixture(&f);
}

// Every token of a batch once among its positions, those of a token together and in order; then the ends.
static void test_positions_are_sorted_by_token(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        Fixture f;
        enum { B = 5, N = B * T };
        open_fixture(&f, EVERY_ORDER[i], B, 1, 0, 1);
        f.data.train_random = true;
        f.config.shape.V = 7;  // few tokens, each many times
        for (int64_t step = 0; step < 6; step++) {
            bool seen[N] = {false};
            batch_train(&f.batch, step, 0);
            const int32_t *positions = batch_positions(&f.batch);
            size_t n_distinct = 0;
            bool is_there[7] = {false};
            for (size_t k = 0; k < N; k++) {
                const int32_t at = positions[k], token = f.batch.tokens[at];
                assert_in_range(at, 0, N - 1);
                assert_false(seen[at]);
                seen[at] = true;
                assert_in_range(token, 0, 6);
                n_distinct += !is_there[token];
                is_there[token] = true;
                if (k == 0) continue;
                const int32_t before = f.batch.tokens[positions[k - 1]];
                assert_true(before < token || (before == token && positions[k - 1] < at));
            }
            assert_int_equal(f.batch.n_distinct, n_distinct);
            assert_int_equal(batch_step_targets(&f.batch, step), N);
            batch_done(&f.batch);
        }
        close_fixture(&f);
    }
}

// 22 targets in 6 windows, in their order, in batches of 4 rows: of what is missing, no target counts.
static void test_validation_takes_windows_in_order(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f, EVERY_ORDER[2], 4, 1, 0, 1);
    static const size_t n_targets[] = {16, 6, 0, 0};
    for (size_t batch = 0; batch < 4; batch++) {
        assert_int_equal(batch_validation(&f.batch, batch), n_targets[batch]);
        for (size_t row = 0; row < 4; row++) {
            for (size_t t = 0; t < T; t++) {
                const size_t at = (batch * 4 + row) * T + t;
                assert_int_equal(f.batch.tokens[row * T + t], at < 23 ? at : 0);
                assert_int_equal(f.batch.targets[row * T + t], at < 22 ? (int)at + 1 : -1);
            }
        }
        batch_done(&f.batch);
    }
    f.config.validation_batches = 1;
    assert_int_equal(batch_validation(&f.batch, 0), 16);
    batch_done(&f.batch);
    assert_int_equal(batch_validation(&f.batch, 1), 0);  // one that other ranks have
    batch_done(&f.batch);
    f.data.validation_random = true;
    assert_int_equal(batch_validation(&f.batch, 0), 16);
    batch_done(&f.batch);
    close_fixture(&f);
}

// While the device has one batch, the host fills the other slot: never one that is still on its way or being read.
static void test_two_slots_take_turns(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        Fixture f;
        int32_t *slots[2] = {NULL, NULL};
        open_fixture(&f, EVERY_ORDER[i], 2, 1, 0, 1);
        for (int k = 0; k < 20; k++) {
            int32_t *host = batch_next(&f.batch);
            assert_non_null(host);
            if (k < 2) slots[k] = host;
            assert_ptr_equal(host, slots[k % 2]);
            for (int n = 0; n < 4 * T; n++) host[n] = (k * 4 * T + n) % VOCABULARY;
            batch_send(&f.batch, false);
            for (int n = 0; n < 4 * T; n++) assert_int_equal(f.batch.tokens[n], (k * 4 * T + n) % VOCABULARY);
            assert_ptr_equal(f.batch.targets, f.batch.tokens + 2 * T);
            batch_done(&f.batch);
        }
        assert_ptr_not_equal(slots[0], slots[1]);
        close_fixture(&f);
    }
}

// A plan takes what a run takes, and has no tokens.
static void test_a_plan_of_a_batch(void **state) {
    (void)state;
    Fixture f;
    Device plan;
    Memory memory;
    Batch batch;
    open_fixture(&f, EVERY_ORDER[1], 3, 1, 0, 1);
    device_stand_in(&plan, &f.device);
    memory_open_plan(&memory, &plan);
    batch_open(&batch, &plan, &memory, &f.config, &f.data, &f.ranks);
    for (int t = 0; t < TIERS; t++) {
        assert_int_equal(memory_slab_used(&memory.slabs[t]), memory_slab_used(&f.memory.slabs[t]));
    }
    // Two slots of tokens, targets, positions and one end more; and losses: 64 bytes are the unit.
    assert_int_equal(batch_bytes(&f.config), (4 * 12 + 1) * 4);
    assert_int_equal(memory_slab_used(&memory.slabs[TIER_DEVICE]), 2 * 256 + 64);
    assert_null(batch_next(&batch));
    batch_train(&batch, 0, 0);
    assert_int_equal(batch_validation(&batch, 0), 0);
    memory_close(&memory);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_has_the_same_windows_for_any_ranks),
        cmocka_unit_test(test_overfitting_stays_with_the_first_batch),
        cmocka_unit_test(test_positions_are_sorted_by_token),
        cmocka_unit_test(test_validation_takes_windows_in_order),
        cmocka_unit_test(test_two_slots_take_turns),
        cmocka_unit_test(test_a_plan_of_a_batch),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
