// test_skipped_steps.c - a step whose gradients are not finite moves nothing but the count of attempts and, in fp16,
// the loss scale: on one rank and on several, of which one overflows. Gradients that are large and finite are no such
// step.
#include "formulas.h"
#include "lines.h"

// ---------------------------------------------------------------------------------------------------------------
// fp16: loss scaling

// A step with an overflow in one of its micro-batches, the first, the second or the last.
static void test_overflow_moves_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(OVERFLOWS) / sizeof(OVERFLOWS[0]); i++) check_overflow("cpu", &OVERFLOWS[i]);
}

// The scale finds its way down from far too high, and doubles after 2,000 good steps. Powers of two change no bit of a
// step that does not overflow or vanish: the first losses and norms are fp32's, but for fp16's rounding.
static void test_loss_scale_adapts(void **state) {
    (void)state;
    Trainer *trainer = fp16_trainer("");
    StepRow row;
    int skipped = 0;
    trainer->loss_scale = 0x1p40;
    for (int i = 0; i < 60 && trainer->updates == 0; i++) {
        train_step(trainer, &row);
        skipped += row.skipped;
    }
    assert_true(trainer->updates == 1);
    assert_true(skipped > 10);
    assert_true(trainer->loss_scale == ldexp(1, 40 - skipped));
    assert_true(trainer->loss_scale > 1);
    trainer->loss_scale = 1024;
    trainer->good_steps = 1998;
    train_step(trainer, &row);
    assert_true(trainer->loss_scale == 1024);
    assert_true(trainer->good_steps == 1999);
    assert_true(row.good_steps == 1999);
    train_step(trainer, &row);
    assert_true(trainer->loss_scale == 2048);
    assert_true(trainer->good_steps == 0);
    assert_true(row.loss_scale == 1024);
    close_trainer(trainer);
    RunResult half = run_line(2, "%s -p fp16", MODELS[0]), single = run_line(2, "%s -p fp32", MODELS[0]);
    assert_close_runs(&half, &single, 2, 1e-3, 4e-3, "fp16 against fp32");
    assert_true(half.losses[0] != single.losses[0]);
}

// What can't be mended stops, and says whether gradients overflow or the forward itself fails.
static void never_finite(void *argument) {
    one_thread();
    Trainer *trainer = fp16_trainer("-x 100");
    if (argument) number_put(FP16, store_pointer(&trainer->store, HOME_WEIGHTS, 0, 0), 0, NAN);
    else trainer->loss_scale = 0x1p120;
    run_of(trainer)->matmul_rate = 1;
    log_open(&run_of(trainer)->log, NULL, -1);
    run_train(run_of(trainer));
}

static void test_repeated_overflow_and_nan(void **state) {
    (void)state;
    expect_die(never_finite, NULL, "gradients overflow fp16|the loss is finite");
    expect_die(never_finite, &state, "10 steps in a row|no overflow of gradients");
}

// ---------------------------------------------------------------------------------------------------------------
// Gradients that are not finite, or large

// A step whose gradients are not finite moves nothing: neither weights, moments, the count of updates nor the schedule.
static void test_skipped_step_moves_nothing(void **state) {
    (void)state;
    const float poisons[] = {INFINITY, NAN, 3e38f};
    for (int i = 0; i < 3; i++) {
        Trainer *trainer = open_trainer("%s -i random -g 0 -v 0 -p fp32", MODELS[0]);
        StepRow row;
        start_trainer(trainer);
        run_steps(trainer, 2);
        uint64_t before = state_hash(trainer);
        double lr = schedule_lr(&trainer->config.schedule, trainer->updates);
        float *weight = home_at(trainer, HOME_MASTER, 1, 5), saved = *weight;  // one of qkvw
        *weight = poisons[i];
        train_step(trainer, &row);
        *weight = saved;
        assert_true(row.skipped && !isfinite(row.norm));
        assert_int_equal(trainer->step, 3);
        assert_int_equal(trainer->updates, 2);
        assert_true(row.lr == lr && schedule_lr(&trainer->config.schedule, trainer->updates) == lr);
        assert_true(state_hash(trainer) == before);
        train_step(trainer, &row);
        assert_true(!row.skipped && isfinite(row.train_loss));
        assert_int_equal(trainer->updates, 3);
        close_trainer(trainer);
    }
}

// The norm of gradients that a test has written.
static void note_norms(Trainer *trainer) {
    for (size_t block = 0; block < trainer->store.n_blocks; block++) {
        store_note_norm(&trainer->store, QUEUE_COMPUTE, block, 0, home_at(trainer, HOME_GRADIENTS, block, 0),
                        store_layout(&trainer->store, block)->n_elements);
    }
}

// Gradients whose squares overflow fp32 are clipped, not skipped.
static void test_large_gradients_are_clipped(void **state) {
    (void)state;
    Trainer *trainer = open_trainer("%s -i random -g 0 -v 0 -p fp32", MODELS[0]);
    StepRow row;
    start_trainer(trainer);
    memset(&row, 0, sizeof(row));
    for (size_t i = 0; i < trainer->store.embedding.n_exact; i++) *home_at(trainer, HOME_GRADIENTS, 0, i) = 1e20f;
    note_norms(trainer);
    uint64_t before = state_hash(trainer);
    train_update(trainer, &row);
    assert_true(!row.skipped);
    assert_true(row.norm > 1e21);
    assert_true(isfinite(row.norm));
    assert_true(state_hash(trainer) != before);
    for (size_t i = 0; i < trainer->store.embedding.n_exact; i++) {
        assert_true(isfinite(*home_at(trainer, HOME_MASTER, 0, i)));
    }
    close_trainer(trainer);
}

// Without clipping, a gradient whose square overflows fp32 must not leave an infinite moment behind: the weight would
// never move again.
static void test_large_gradients_without_clipping(void **state) {
    (void)state;
    Trainer *trainer = open_trainer("%s -i random -g 0 -v 0 -p fp32 --clip 0", MODELS[0]);
    StepRow row;
    start_trainer(trainer);
    memset(&row, 0, sizeof(row));
    *home_at(trainer, HOME_GRADIENTS, 0, 5) = 1e20f;
    note_norms(trainer);
    train_update(trainer, &row);
    const float v = *home_at(trainer, HOME_V, 0, 5);
    assert_true(!row.skipped);
    assert_true(isfinite(v));
    assert_true(v > 1e38f);
    assert_true(isfinite(*home_at(trainer, HOME_MASTER, 0, 5)));
    close_trainer(trainer);
}

// ---------------------------------------------------------------------------------------------------------------
// One of several ranks

enum { OVERFLOW_OF_DATA, OVERFLOW_OF_A_SHARD, OVERFLOW_PLACES };

// A step of two micro-batches of which one rank's gradients overflow: all of them, or one element, after the first.
static void overflowing_step(Trainer *trainer, int how, int rank, StepRow *row) {
    const bool here = trainer->ranks->rank == rank;
    memory_step(trainer->context.memory);
    trainer->ranks->n_sent = trainer->context.memory->disk.n_read = trainer->context.memory->disk.n_written = 0;
    const size_t n_targets = batch_step_targets(&trainer->batch, trainer->step);
    for (size_t i = 0; i < 2; i++) {
        batch_train(&trainer->batch, trainer->step, i);
        float scale = (float)(trainer->loss_scale / (double)n_targets);
        train_micro_batch(trainer, here && how == OVERFLOW_OF_DATA ? 1e30f : scale, i == 0, i == 1);
        if (i > 0 || how != OVERFLOW_OF_A_SHARD) continue;
        store_join(&trainer->store);
        device_wait(trainer->context.device);
        if (here) *home_at(trainer, HOME_GRADIENTS, 1, store_shard(&trainer->store, 1) + 5) = INFINITY;
    }
    train_update(trainer, row);
    trainer->step++;
    trainer->updates += row->skipped ? 0 : 1;
    train_loss_scale(trainer, row->skipped);
}

// Of a home that is in this process's memory.
static uint64_t home_hash(const Trainer *trainer, int home) {
    const Home *h = &trainer->store.homes[home];
    const size_t n = trainer->store.n_elements / (h->sharded ? (size_t)trainer->ranks->size : 1);
    return h->tier == TIER_DISK ? 0 : file_hash(1, h->base, n * h->size);
}

static void ranks_overflow(const char *directory) {
    static const char *const places[] = {"", "--offload optimizer=host,gradients=host", "--offload optimizer=disk"};
    for (int i = 0; i < 4 * 3 * OVERFLOW_PLACES; i++) {
        const int stage = i % 4, how = i / 12, rank = i % n_ranks();
        Trainer *runs[2];  // without the step, with it
        StepRow row, other;
        // Every other time in the very first step, when memory.h looks at what is touched.
        const int good = i / 4 % 2;
        for (int k = 0; k < 2; k++) {
            runs[k] = open_rank("-e 2x48x3 --vocab 67 -t 32 -b 1 -d %d -i random -g 0 -v 0 -p fp16 -z %d %s "
                                "--swap-dir %s", 64 * n_ranks(), stage, places[i / 4 % 3], directory);
            start_trainer(runs[k]);
            runs[k]->loss_scale = 1024;
            if (good) train_step(runs[k], &other);
            CHECK(!good || !other.skipped);
        }
        Trainer *trainer = runs[1];
        const Sizes x = model_sizes(&trainer->config.shape, (size_t)n_ranks());
        const uint64_t before = state_hash(trainer);
        const uint64_t weights = home_hash(trainer, HOME_WEIGHTS), moments = home_hash(trainer, HOME_M);
        memset(&row, 0, sizeof(row));
        overflowing_step(trainer, how, rank, &row);
        CHECK(row.skipped && !isfinite(row.norm));
        CHECK(trainer->loss_scale == 512);
        CHECK(trainer->good_steps == 0);
        CHECK(trainer->updates == good);
        check_same_on_all(trainer, trainer->loss_scale);
        CHECK(trainer->ranks->n_sent == formula_sent(&x, 2, stage, 2, false));
        CHECK(trainer->context.memory->disk.n_written == 0);
        CHECK(state_hash(trainer) == before);
        CHECK(home_hash(trainer, HOME_WEIGHTS) == weights);
        CHECK(home_hash(trainer, HOME_M) == moments);
        runs[0]->step++;
        runs[0]->loss_scale = 512;
        train_step(trainer, &row);
        train_step(runs[0], &other);
        CHECK(!row.skipped);
        CHECK(row.train_loss == other.train_loss);
        CHECK(row.norm == other.norm);
        CHECK(state_hash(trainer) == state_hash(runs[0]));
        CHECK(home_hash(trainer, HOME_WEIGHTS) == home_hash(runs[0], HOME_WEIGHTS));
        close_trainer(runs[1]);
        close_trainer(runs[0]);
    }
}

static void test_overflow_of_one_rank_skips_all(void **state) {
    (void)state;
    char directory[256];
    need_ranks();
    make_directory(directory);
    for (int N = 2; N <= 3; N++) launch_ranks(N, "--ranks overflow %s", directory);
    remove_directory(directory);
}

// main: the tests, or with --ranks MODE DIRECTORY one of several ranks.
int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--ranks") == 0) {
        if (strcmp(argv[2], "overflow") == 0) ranks_overflow(argv[3]);
        ranks_end();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overflow_moves_nothing),
        cmocka_unit_test(test_loss_scale_adapts),
        cmocka_unit_test(test_repeated_overflow_and_nan),
        cmocka_unit_test(test_skipped_step_moves_nothing),
        cmocka_unit_test(test_large_gradients_are_clipped),
        cmocka_unit_test(test_large_gradients_without_clipping),
        cmocka_unit_test(test_overflow_of_one_rank_skips_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
