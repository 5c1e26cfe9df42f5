// test_memory_flags.c - a memory flag changes bytes and time, never numbers: levels of recomputation, evaluation
// between steps, homes whose blocks come in many pieces or in pieces larger than themselves. Where sums are added in
// another order (head chunks, plain attention, accumulation), the numbers stay close.
#include "lines.h"

#include "../ranks_helpers.h"

// ---------------------------------------------------------------------------------------------------------------
// What is made again, sums in another order, and what happens between steps

static void test_recompute_same_bits(void **state) {
    (void)state;
    for (int model = 0; model < 2; model++) {
        for (int dtype = FP32; dtype < DTYPES; dtype++) {
            for (int variant = 0; variant < 4; variant++) {  // micro-batches; attention and head chunks
                char base[512];
                int T = model == 0 ? 64 : 111;
                snprintf(base, sizeof(base), "%s -p %s -d %d %s", MODELS[model], number_name((Dtype)dtype),
                         variant % 2 ? 3 * T : T, variant / 2 ? "--attention plain --head-chunks 5" : "");
                RunResult plain = run_line(3, "%s -r 0", base);
                size_t before = plain.peak;
                for (int level = 1; level <= 3; level++) {
                    RunResult whole = run_line(3, "%s -r %d", base, level);
                    assert_same_run(&plain, &whole, base);
                    for (int layers = 0; layers <= 2; layers++) {
                        RunResult part = run_line(3, "%s -r %d --recompute-layers %d", base, level, layers);
                        assert_same_run(&plain, &part, base);
                        assert_true(part.peak >= whole.peak && part.peak <= plain.peak);
                        if (layers == 0) assert_int_equal(part.peak, plain.peak);
                    }
                    assert_true(whole.peak <= before);
                    before = whole.peak;
                }
            }
        }
    }
}

// Where additions are reordered: head chunks (the head's weight gradient), the two kinds of attention, accumulation
// against one batch. fp32: some units of the loss (4.2, unit 2.4e-7); bf16: single roundings the other way.
static void test_reordered_sums_are_close(void **state) {
    (void)state;
    for (int model = 0; model < 2; model++) {
        for (int dtype = FP32; dtype < DTYPES; dtype++) {
            const char *p = number_name((Dtype)dtype);
            double loss = dtype == FP32 ? 1e-5 : 5e-3, norm = dtype == FP32 ? 2e-5 : 2e-2;
            RunResult plain = run_line(3, "%s -p %s", MODELS[model], p);
            RunResult chunks = run_line(3, "%s -p %s --head-chunks 7", MODELS[model], p);
            RunResult attention = run_line(3, "%s -p %s --attention plain", MODELS[model], p);
            assert_close_runs(&plain, &chunks, 3, loss, norm, "head chunks");
            assert_close_runs(&plain, &attention, 3, loss, norm, "plain attention");
            // One batch of 6 sequences, and 3 or 6 micro-batches of the same ones.
            int T = model == 0 ? 32 : 37;
            RunResult whole = run_line(3, "%s -p %s -b 6", MODELS[model], p);
            RunResult thirds = run_line(3, "%s -p %s -b 2 -d %d", MODELS[model], p, 6 * T);
            RunResult sixths = run_line(3, "%s -p %s -b 1 -d %d", MODELS[model], p, 6 * T);
            assert_close_runs(&whole, &thirds, 3, loss, norm, "accumulation");
            assert_close_runs(&whole, &sixths, 3, loss, norm, "accumulation");
        }
    }
    // The first loss does not depend on the order at all: the same rows, the same fp64 sum.
    RunResult one = run_line(1, "%s -p fp32 -b 6", MODELS[0]), six = run_line(1, "%s -p fp32 -b 1 -d 192", MODELS[0]);
    assert_true(fabs(one.losses[0] - six.losses[0]) < 1e-6);
}

// Micro-batches of many rows: a library that multiplies may want another scratchpad for a product that is added than
// for one that replaces (oneDNN's from 513 rows on), and the second micro-batch must take what the first took.
// run_steps() holds every phase against the plan. Losses as above: the same sequences in one batch.
static void test_accumulation_over_many_rows(void **state) {
    (void)state;
    const char *base = "-e 1x128x2 --vocab 257 -t 128";
    for (int dtype = FP32; dtype < DTYPES; dtype++) {
        const char *p = number_name((Dtype)dtype);
        const double loss = dtype == FP32 ? 1e-5 : 5e-3, norm = dtype == FP32 ? 2e-5 : 2e-2;
        RunResult whole = run_line(3, "%s -p %s -b 20", base, p);
        RunResult halves = run_line(3, "%s -p %s -b 10 -d 2560", base, p);
        RunResult quarters = run_line(3, "%s -p %s -b 5 -d 2560", base, p);
        RunResult chunks = run_line(3, "%s -p %s -b 20 --head-chunks 3", base, p);
        assert_close_runs(&whole, &halves, 3, loss, norm, "2 micro-batches of 1280 rows");
        assert_close_runs(&whole, &quarters, 3, loss, norm, "4 micro-batches of 640 rows");
        assert_close_runs(&whole, &chunks, 3, loss, norm, "head chunks of 854 rows");
    }
}

static void test_evaluation_does_not_touch_training(void **state) {
    (void)state;
    RunResult results[2];
    for (int i = 0; i < 2; i++) {
        Trainer *trainer = open_trainer("%s -i random -g 16 -p bf16", MODELS[0]);
        start_trainer(trainer);
        for (int step = 0; step < 3; step++) {
            if (i == 1) {
                validate(trainer);
                sample(trainer);
            }
            results[i] = run_steps(trainer, 1);
        }
        if (i == 1) assert_true(validate(trainer) == validate(trainer));
        close_trainer(trainer);
    }
    assert_same_run(&results[0], &results[1], "with validation and samples");
}

// ---------------------------------------------------------------------------------------------------------------
// The update's pieces: more of them than there are sets of buffers, so that every set is used again, in all orders of
// the queues. The grid of test_same_bits.c has models of so few pieces that it never does.

enum { STEPS = 2, LAYERS = 2 * UPDATE_SETS + 1 };

static RunResult run_with(const char *flags, QueueOrder order, uint64_t seed) {
    Trainer *trainer = open_trainer("--device cpu -e %dx48x3 --vocab 67 -t 32 -b 1 -i random -g 0 -v 0 -l 0.01 -u 0 "
                                    "--swap-dir build %s", (int)LAYERS, flags);
    queues_close(trainer->context.device->queues);
    trainer->context.device->queues = queues_open(order, seed);
    start_trainer(trainer);
    RunResult result = run_steps(trainer, STEPS);
    close_trainer(trainer);
    return result;
}

static void expect_same(const RunResult *resident, const char *flags, QueueOrder order, uint64_t seed) {
    char what[512];
    snprintf(what, sizeof(what), "%s, order %d, seed %llu", flags, (int)order, (unsigned long long)seed);
    RunResult result = run_with(flags, order, seed);
    assert_same_run(resident, &result, what);
}

static void test_sets_are_used_again(void **state) {
    (void)state;
    static const char *const homes[] = {
        "--offload optimizer=host",
        "--offload optimizer=disk",
        "--offload optimizer=host --update device",
        "--offload optimizer=disk,gradients=host,weights=disk",
        "--offload optimizer=disk,gradients=disk,weights=host --update device",
        "--offload gradients=disk,weights=disk",
    };
    static const char *const types[] = {"fp32", "bf16"};
    char flags[256];
    for (int dtype = 0; dtype < 2; dtype++) {
        snprintf(flags, sizeof(flags), "-p %s", types[dtype]);
        const RunResult resident = run_with(flags, QUEUE_THREADS, 0);
        for (size_t i = 0; i < sizeof(homes) / sizeof(homes[0]); i++) {
            snprintf(flags, sizeof(flags), "-p %s %s", types[dtype], homes[i]);
            expect_same(&resident, flags, QUEUE_THREADS, 0);
            expect_same(&resident, flags, QUEUE_EAGER, 0);
            expect_same(&resident, flags, QUEUE_LAZY, 0);
            for (uint64_t seed = 1; seed <= 3; seed++) expect_same(&resident, flags, QUEUE_SEEDED, seed);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Blocks that are larger than a piece on its way

#define LARGE "-e 1x64x2 --vocab 30000 -t 8 -b 1 -i random -g 0 -v 0"

static RunResult large_run(const char *directory, const char *flags) {
    Trainer *trainer = open_rank(LARGE " --swap-dir %s %s", directory, flags);
    start_trainer(trainer);
    const size_t shard = trainer->store.embedding.n_elements / (size_t)n_ranks();
    const size_t piece = n_ranks() > 1 ? trainer->store.piece_elements : STORE_PIECE;
    CHECK(shard > piece);
    CHECK(shard % piece != 0);
    RunResult result = run_steps(trainer, 2);
    CHECK(result.norms[0] > 0 && isfinite(result.losses[1]));
    close_trainer(trainer);
    return result;
}

static void check_large(const char *directory) {
    static const char *const flags[] = {"", "-z 1 --offload optimizer=disk,gradients=disk,weights=disk",
                                        "-z 2 --offload optimizer=host,gradients=disk --update device",
                                        "-z 2 --offload optimizer=disk,gradients=host,weights=host",
                                        "-z 3 --offload gradients=host,weights=disk", "-z 3"};
    for (int dtype = 0; dtype < 2; dtype++) {
        RunResult first;
        for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
            char line[256];
            if (dtype == 1 && i % 3 == 2) continue;
            snprintf(line, sizeof(line), "-p %s %s", dtype ? "bf16" : "fp32", flags[i]);
            RunResult run = large_run(directory, line);
            if (i == 0) first = run;
            run.peak = first.peak;
            CHECK(memcmp(&run, &first, sizeof(run)) == 0);
        }
    }
}

static void check_large_alone(void *directory) {
    one_thread();
    check_large((const char *)directory);
}

static void test_blocks_larger_than_a_piece(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    expect_exit(check_large_alone, directory, 0, "");
    need_ranks();
    launch_ranks(3, "--ranks large %s", directory);
    remove_directory(directory);
}

// main: the tests, or with --ranks MODE DIRECTORY one of several ranks.
int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--ranks") == 0) {
        if (strcmp(argv[2], "large") == 0) check_large(argv[3]);
        ranks_end();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute_same_bits),
        cmocka_unit_test(test_reordered_sums_are_close),
        cmocka_unit_test(test_accumulation_over_many_rows),
        cmocka_unit_test(test_evaluation_does_not_touch_training),
        cmocka_unit_test(test_sets_are_used_again),
        cmocka_unit_test(test_blocks_larger_than_a_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
