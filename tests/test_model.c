// test_model.c - train_gpt.cu: the whole model and training step against PyTorch's values, that it learns, and that
// what pads blocks and the vocabulary takes no part.
#include "trainer_helpers.h"

// ---------------------------------------------------------------------------------------------------------------
// Golden values from PyTorch (tests/golden/make_golden.py)

typedef struct {
    char *bytes;
    size_t n_bytes;
    void *found[1024];  // aligned copies of what was asked for
    size_t n_found;
} Golden;

// A record's data; *n is its number of elements.
static const void *golden_find(Golden *golden, const char *name, size_t *n) {
    for (size_t at = 0; at < golden->n_bytes;) {
        int32_t length, dtype;
        int64_t count;
        memcpy(&length, golden->bytes + at, 4);
        memcpy(&dtype, golden->bytes + at + 4 + length, 4);
        memcpy(&count, golden->bytes + at + 8 + length, 8);
        const char *data = golden->bytes + at + 16 + length;
        if (strlen(name) == (size_t)length && memcmp(golden->bytes + at + 4, name, (size_t)length) == 0) {
            *n = (size_t)count;
            void *copy = malloc((size_t)count * 4 + 1);
            assert_true(copy && golden->n_found < 1024);
            golden->found[golden->n_found++] = copy;
            return memcpy(copy, data, (size_t)count * 4);
        }
        at += 16 + (size_t)length + (size_t)count * 4;
    }
    fail_msg("no golden record %s", name);
    return NULL;
}

static const float *golden_tensor(Golden *golden, const char *prefix, size_t block, size_t L, const char *tensor,
                                  size_t *n) {
    char name[64];
    (void)L;
    if (block == 0) snprintf(name, sizeof(name), "%s/%s", prefix, tensor);
    else snprintf(name, sizeof(name), "%s/h%zu.%s", prefix, block - 1, tensor);
    return (const float *)golden_find(golden, name, n);
}

// Relative error of a tensor as a whole (L2); NaN anywhere gives NaN.
static double relative_error(const float *x, const float *expected, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)x[i] - expected[i]) * ((double)x[i] - expected[i]);
        size += (double)expected[i] * expected[i];
    }
    return sqrt(difference) / (sqrt(size) + 1e-30);
}

// Compares one home of the store (HOME_GRADIENTS or HOME_MASTER) with the golden tensors, each by its L2 error relative
// to `tolerance` of the tensor and `absolute` of an element.
static void compare_home(const Trainer *trainer, Golden *golden, const char *prefix, int home, double tolerance,
                         double absolute) {
    for (size_t block = 0; block < trainer->store.n_blocks; block++) {
        const BlockLayout *layout = store_layout(&trainer->store, block);
        for (size_t i = 0; i < layout->n_tensors; i++) {
            size_t n;
            const Tensor *tensor = &layout->tensors[i];
            const float *expected = golden_tensor(golden, prefix, block, trainer->config.shape.L, tensor->name, &n);
            const float *x = home_at(trainer, home, block, tensor->offset);
            assert_int_equal(n, tensor->n_saved);
            double error = relative_error(x, expected, n), size = 0;
            for (size_t j = 0; j < n; j++) size += (double)expected[j] * expected[j];
            if (!(error * sqrt(size) <= tolerance * sqrt(size) + absolute * sqrt((double)n))) {
                fail_msg("%s block %zu %s: relative error %g", prefix, block, tensor->name, error);
            }
        }
    }
}

static void golden_batch(Trainer *trainer, Golden *golden) {
    size_t n, B = trainer->config.B, T = trainer->config.T;
    int32_t *tokens = batch_next(&trainer->batch);
    memcpy(tokens, golden_find(golden, "tokens", &n), B * T * 4);
    assert_int_equal(n, B * T);
    memcpy(tokens + B * T, golden_find(golden, "targets", &n), B * T * 4);
    batch_send(&trainer->batch, true);
}

static void golden_logits(Trainer *trainer, Golden *golden, double tolerance) {
    size_t n, B = trainer->config.B, T = trainer->config.T, V = trainer->config.shape.V;
    const float *expected = (const float *)golden_find(golden, "logits", &n);
    const int32_t *tokens = (const int32_t *)golden_find(golden, "tokens", &n);
    float *logits = (float *)calloc(trainer->config.shape.Vp, 4), *raw = (float *)calloc(trainer->config.shape.Vp, 4);
    for (size_t b = 0; b < B; b++) {
        memcpy(trainer->batch.host_tokens[0], tokens + b * T, T * 4);
        for (size_t t = 0; t < T; t++) {
            sample_logits(trainer, trainer->batch.host_tokens[0], t, T, logits, raw);
            double error = relative_error(logits, expected + (b * T + t) * V, V);
            if (!(error <= tolerance)) fail_msg("logits %zu %zu: relative error %g", b, t, error);
        }
    }
    free(logits);
    free(raw);
}

// `unit`: unit roundoff of the storage type. fp32 results are sums of up to some thousand products in another order
// than the oracle's: 64 units. In bf16 the oracle rounds where we round, so most values agree exactly; but a sum that
// lands near the middle of two bf16 values may round the other way, by one spacing (2 units), and this spreads through
// the later layers: 8 units for single passes. After 10 steps of Adam, which magnifies relative differences of small
// gradients, 1e-4 (fp32), 64 units plus a part of lr x 10 steps (bf16).
static void golden_test(const char *name, Dtype dtype, const char *attention) {
    Golden golden;
    char path[256];
    size_t n;
    snprintf(path, sizeof(path), "tests/golden/%s_%s.bin", name, number_name(dtype));
    golden.bytes = read_file(path, &golden.n_bytes);
    golden.n_found = 0;
    const int32_t *c = (const int32_t *)golden_find(&golden, "config", &n);
    const float *hyper = (const float *)golden_find(&golden, "hyper", &n);
    Trainer *trainer = open_trainer("-e %dx%dx%d -b %d -t %d --max-length %d --vocab %d -i random -p %s --attention %s",
                                    c[3], c[4], c[5], c[0], c[1], c[2], c[6], number_name(dtype), attention);
    start_trainer(trainer);
    float *values = open_block(trainer), *rounded = open_block(trainer);
    for (size_t block = 0; block < trainer->store.n_blocks; block++) {
        const BlockLayout *layout = store_layout(&trainer->store, block);
        const size_t L = trainer->config.shape.L;
        memset(values, 0, layout->n_elements * sizeof(float));
        for (size_t i = 0; i < layout->n_tensors; i++) {
            const float *from = golden_tensor(&golden, "init", block, L, layout->tensors[i].name, &n);
            memcpy(values + layout->tensors[i].offset, from, n * 4);
        }
        store_put(&trainer->store, HOME_MASTER, block, 0, layout->n_elements, values, rounded);
        wait_for_queues(trainer);
    }
    close_block(trainer, values);
    close_block(trainer, rounded);
    double unit = dtype == FP32 ? 0x1p-24 : 0x1p-9;
    golden_logits(trainer, &golden, dtype == FP32 ? 64 * unit : 4 * unit);
    const float *losses = (const float *)golden_find(&golden, "losses", &n);
    const float *norms = (const float *)golden_find(&golden, "norms", &n);
    size_t n_targets = 0;
    golden_batch(trainer, &golden);
    for (size_t i = 0; i < trainer->config.B * trainer->config.T; i++) n_targets += trainer->batch.targets[i] >= 0;
    for (int step = 0; step < 10; step++) {
        golden_batch(trainer, &golden);
        train_micro_batch(trainer, 1.0f / (float)n_targets, true, true);
        update_norm(&trainer->store, trainer->results + RESULT_NORM);
        train_results(trainer, 0);
        double loss = trainer->host_results[RESULT_LOSS] / (double)n_targets;
        if (step == 0) {
            compare_home(trainer, &golden, "grad", HOME_GRADIENTS, dtype == FP32 ? 64 * unit : 8 * unit,
                         dtype == FP32 ? 1e-8 : 1e-5);
        }
        double norm = sqrt(trainer->host_results[RESULT_NORM]), clip = hyper[5];
        double loss_tolerance = dtype == FP32 ? 1e-5 : step == 0 ? 1e-3 : 1e-2;
        double norm_tolerance = dtype == FP32 ? 2e-5 : step == 0 ? 8 * unit : 5e-2;
        if (!(fabs(loss - losses[step]) <= loss_tolerance))
            fail_msg("step %d: loss %g, not %g", step, loss, losses[step]);
        if (!(fabs(norm / norms[step] - 1) <= norm_tolerance))
            fail_msg("step %d: norm %g, not %g", step, norm, norms[step]);
        AdamW update = adamw_step(hyper[3], hyper[4], step + 1, norm > clip ? (float)(clip / norm) : 1.0f, true);
        update.epsilon = hyper[2];
        assert_true(update.beta1 == hyper[0] && update.beta2 == hyper[1]);
        update_blocks(&trainer->store, &update);
    }
    compare_home(trainer, &golden, "final", HOME_MASTER, dtype == FP32 ? 1e-4 : 16 * unit, dtype == FP32 ? 1e-6 : 1e-3);
    close_trainer(trainer);
    while (golden.n_found > 0) free(golden.found[--golden.n_found]);
    free(golden.bytes);
}

static void test_golden_small_fp32(void **state) {
    (void)state;
    golden_test("small", FP32, "fused");
}

static void test_golden_small_bf16(void **state) {
    (void)state;
    golden_test("small", BF16, "fused");
}

static void test_golden_odd_fp32(void **state) {
    (void)state;
    golden_test("odd", FP32, "fused");
}

static void test_golden_odd_bf16(void **state) {
    (void)state;
    golden_test("odd", BF16, "fused");
}

static void test_golden_plain_attention(void **state) {
    (void)state;
    golden_test("small", FP32, "plain");
    golden_test("odd", FP32, "plain");
}

// ---------------------------------------------------------------------------------------------------------------
// Training

static void test_overfits_one_batch(void **state) {
    (void)state;
    Trainer *trainer = open_trainer("-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -g 0 -v 0 -a 1 -u 0 -k constant "
                                    "-l 0.003 -c 0");
    StepRow row;
    start_trainer(trainer);
    for (int i = 0; i < 120; i++) train_step(trainer, &row);
    assert_true(row.train_loss < 0.5);  // from 4.2: 64 tokens learned by heart
    close_trainer(trainer);
}

// The padded vocabulary takes no part: its weights stay zero, and paddings of blocks, too.
static void test_padding_stays_zero(void **state) {
    (void)state;
    Trainer *trainer = open_trainer("-e 3x51x3 --vocab 67 -t 37 --max-length 41 -b 3 -i random -g 0 -v 0 -p bf16 "
                                    "-l 0.01");
    start_trainer(trainer);
    run_steps(trainer, 3);
    for (size_t block = 0; block < trainer->store.n_blocks; block++) {
        const BlockLayout *layout = store_layout(&trainer->store, block);
        for (size_t i = layout->n_exact; i < layout->n_elements; i++) {
            assert_true(*home_at(trainer, HOME_MASTER, block, i) == 0);
        }
    }
    const Tensor *wte = &trainer->store.embedding.tensors[TENSOR_WTE];
    assert_true(wte->n_saved < wte->n_elements);
    for (size_t i = wte->n_saved; i < wte->n_elements; i++) {
        for (int home = HOME_GRADIENTS; home < HOMES; home++) assert_true(*home_at(trainer, home, 0, i) == 0);
        assert_true(number_get(BF16, store_pointer(&trainer->store, HOME_WEIGHTS, 0, 0), i) == 0);
    }
    close_trainer(trainer);
}

// ---------------------------------------------------------------------------------------------------------------
// Threads: the products were made for a team, and a step looks whether it is still that one

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -v 0 -g 0 -p fp32"

static const char *test_program;  // argv[0]

static const char *test_program;  // argv[0]

// Two steps with so many threads for the second.
static void change_the_team(int n) {
    Trainer *trainer = open_trainer(TINY);
    start_trainer(trainer);
    run_steps(trainer, 1);
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
    run_steps(trainer, 1);
    close_trainer(trainer);
}

static void test_a_team_that_changes_ends_the_run(void **state) {
    (void)state;
#ifndef _OPENMP
    SKIP_AS("this was built without OpenMP");
#endif
    expect_command(0, "", "OMP_NUM_THREADS=2 %s --change 2", test_program);
    expect_command(1, "train_gpt: the run began with 2 threads and OpenMP gives 1 now|checkpoint",
                   "OMP_NUM_THREADS=2 %s --change 1", test_program);
    expect_command(1, "train_gpt: the run began with 2 threads and OpenMP gives 3 now|checkpoint",
                   "OMP_NUM_THREADS=2 %s --change 3", test_program);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--change") == 0) {
        change_the_team(atoi(argv[2]));
        return 0;
    }
    test_program = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_small_fp32),
        cmocka_unit_test(test_golden_small_bf16),
        cmocka_unit_test(test_golden_odd_fp32),
        cmocka_unit_test(test_golden_odd_bf16),
        cmocka_unit_test(test_golden_plain_attention),
        cmocka_unit_test(test_overfits_one_batch),
        cmocka_unit_test(test_padding_stays_zero),
        cmocka_unit_test(test_a_team_that_changes_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
