// test_model.c - the whole model and training step: PyTorch's values, the same bits under every memory flag,
// accumulation, skipped steps, resuming.
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
static void compare_home(const Trainer *m, Golden *golden, const char *prefix, int home, double tolerance,
                         double absolute) {
    for (size_t block = 0; block < m->store.n_blocks; block++) {
        const BlockLayout *layout = store_layout(&m->store, block);
        for (size_t i = 0; i < layout->n_tensors; i++) {
            size_t n;
            const Tensor *tensor = &layout->tensors[i];
            const float *expected = golden_tensor(golden, prefix, block, m->config.shape.L, tensor->name, &n);
            const float *x = home_at(m, home, block, tensor->offset);
            assert_int_equal(n, tensor->n_saved);
            double error = relative_error(x, expected, n), size = 0;
            for (size_t j = 0; j < n; j++) size += (double)expected[j] * expected[j];
            if (!(error * sqrt(size) <= tolerance * sqrt(size) + absolute * sqrt((double)n))) {
                fail_msg("%s block %zu %s: relative error %g", prefix, block, tensor->name, error);
            }
        }
    }
}

static void golden_batch(Trainer *m, Golden *golden) {
    size_t n, B = m->config.B, T = m->config.T;
    int32_t *tokens = batch_next(&m->batch);
    memcpy(tokens, golden_find(golden, "tokens", &n), B * T * 4);
    assert_int_equal(n, B * T);
    memcpy(tokens + B * T, golden_find(golden, "targets", &n), B * T * 4);
    batch_send(&m->batch, true);
}

static void golden_logits(Trainer *m, Golden *golden, double tolerance) {
    size_t n, B = m->config.B, T = m->config.T, V = m->config.shape.V;
    const float *expected = (const float *)golden_find(golden, "logits", &n);
    const int32_t *tokens = (const int32_t *)golden_find(golden, "tokens", &n);
    float *logits = (float *)calloc(m->config.shape.Vp, 4), *raw = (float *)calloc(m->config.shape.Vp, 4);
    for (size_t b = 0; b < B; b++) {
        memcpy(m->batch.host_tokens[0], tokens + b * T, T * 4);
        for (size_t t = 0; t < T; t++) {
            sample_logits(m, m->batch.host_tokens[0], t, T, logits, raw);
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
    Trainer *m = open_trainer("-e %dx%dx%d -b %d -t %d --max-length %d --vocab %d -i random -p %s --attention %s", c[3],
                              c[4], c[5], c[0], c[1], c[2], c[6], number_name(dtype), attention);
    start_trainer(m);
    float *values = open_block(m), *rounded = open_block(m);
    for (size_t block = 0; block < m->store.n_blocks; block++) {
        const BlockLayout *layout = store_layout(&m->store, block);
        memset(values, 0, layout->n_elements * sizeof(float));
        for (size_t i = 0; i < layout->n_tensors; i++) {
            const float *from = golden_tensor(&golden, "init", block, m->config.shape.L, layout->tensors[i].name, &n);
            memcpy(values + layout->tensors[i].offset, from, n * 4);
        }
        store_put(&m->store, HOME_MASTER, block, 0, layout->n_elements, values, rounded);
        wait_for_queues(m);
    }
    close_block(m, values);
    close_block(m, rounded);
    double unit = dtype == FP32 ? 0x1p-24 : 0x1p-9;
    golden_logits(m, &golden, dtype == FP32 ? 64 * unit : 4 * unit);
    const float *losses = (const float *)golden_find(&golden, "losses", &n);
    const float *norms = (const float *)golden_find(&golden, "norms", &n);
    size_t n_targets = 0;
    golden_batch(m, &golden);
    for (size_t i = 0; i < m->config.B * m->config.T; i++) n_targets += m->batch.targets[i] >= 0;
    for (int step = 0; step < 10; step++) {
        golden_batch(m, &golden);
        train_micro_batch(m, 1.0f / (float)n_targets, true, true);
        update_norm(&m->store, m->results + RESULT_NORM);
        train_results(m, 0);
        double loss = m->host_results[RESULT_LOSS] / (double)n_targets;
        if (step == 0) {
            compare_home(m, &golden, "grad", HOME_GRADIENTS, dtype == FP32 ? 64 * unit : 8 * unit,
                         dtype == FP32 ? 1e-8 : 1e-5);
        }
        double norm = sqrt(m->host_results[RESULT_NORM]), clip = hyper[5];
        double loss_tolerance = dtype == FP32 ? 1e-5 : step == 0 ? 1e-3 : 1e-2;
        double norm_tolerance = dtype == FP32 ? 2e-5 : step == 0 ? 8 * unit : 5e-2;
        if (!(fabs(loss - losses[step]) <= loss_tolerance))
            fail_msg("step %d: loss %g, not %g", step, loss, losses[step]);
        if (!(fabs(norm / norms[step] - 1) <= norm_tolerance))
            fail_msg("step %d: norm %g, not %g", step, norm, norms[step]);
        AdamW update = adamw_step(hyper[3], hyper[4], step + 1, norm > clip ? (float)(clip / norm) : 1.0f, true);
        update.epsilon = hyper[2];
        assert_true(update.beta1 == hyper[0] && update.beta2 == hyper[1]);
        update_blocks(&m->store, &update);
    }
    compare_home(m, &golden, "final", HOME_MASTER, dtype == FP32 ? 1e-4 : 16 * unit, dtype == FP32 ? 1e-6 : 1e-3);
    close_trainer(m);
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
// Memory flags change bytes, never numbers

// The configurations whose numbers are compared: TINY, and ODD with head size 17, positions to spare and odd lengths.
static const char *const MODELS[] = {"-e 2x48x3 --vocab 67 -t 32 -b 2",
                                     "-e 3x51x3 --vocab 67 -t 37 --max-length 41 -b 3"};

static RunResult run_line(int steps, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    Trainer *m = open_trainer("-i random -g 0 -v 0 %s", line);
    start_trainer(m);
    RunResult result = run_steps(m, steps);
    close_trainer(m);
    return result;
}

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

static void assert_close_runs(const RunResult *a, const RunResult *b, int steps, double loss, double norm,
                              const char *what) {
    for (int i = 0; i < steps; i++) {
        if (!(fabs(a->losses[i] - b->losses[i]) <= loss && fabs(a->norms[i] / b->norms[i] - 1) <= norm)) {
            fail_msg("%s, step %d: losses %.9g %.9g, norms %.9g %.9g", what, i + 1, a->losses[i], b->losses[i],
                     a->norms[i], b->norms[i]);
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

// ---------------------------------------------------------------------------------------------------------------
// fp16: loss scaling

static Trainer *fp16_trainer(const char *more) {
    Trainer *m = open_trainer("-i random -g 0 -v 0 -p fp16 %s -d 128 %s", MODELS[0], more);
    start_trainer(m);
    return m;
}

// A step with an overflow in one of its micro-batches, the first, the second or the last.
static void test_overflow_moves_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(OVERFLOWS) / sizeof(OVERFLOWS[0]); i++) check_overflow("cpu", &OVERFLOWS[i]);
}

// The scale finds its way down from far too high, and doubles after 2,000 good steps. Powers of two change no bit of a
// step that does not overflow or vanish: the first losses and norms are fp32's, but for fp16's rounding.
static void test_loss_scale_adapts(void **state) {
    (void)state;
    Trainer *m = fp16_trainer("");
    StepRow row;
    int skipped = 0;
    m->loss_scale = 0x1p40;
    for (int i = 0; i < 60 && m->updates == 0; i++) {
        train_step(m, &row);
        skipped += row.skipped;
    }
    assert_true(m->updates == 1 && skipped > 10 && m->loss_scale == ldexp(1, 40 - skipped) && m->loss_scale > 1);
    m->loss_scale = 1024;
    m->good_steps = 1998;
    train_step(m, &row);
    assert_true(m->loss_scale == 1024 && m->good_steps == 1999 && row.good_steps == 1999);
    train_step(m, &row);
    assert_true(m->loss_scale == 2048 && m->good_steps == 0 && row.loss_scale == 1024);
    close_trainer(m);
    RunResult half = run_line(2, "%s -p fp16", MODELS[0]), single = run_line(2, "%s -p fp32", MODELS[0]);
    assert_close_runs(&half, &single, 2, 1e-3, 4e-3, "fp16 against fp32");
    assert_true(half.losses[0] != single.losses[0]);
}

// Scale and counter go on from a checkpoint.
static void test_loss_scale_is_saved(void **state) {
    (void)state;
    char directory[256], more[300];
    StepRow row;
    make_directory(directory);
    snprintf(more, sizeof(more), "-o %s", directory);
    Trainer *m = fp16_trainer(more);
    m->loss_scale = 4096;
    m->good_steps = 7;
    train_step(m, &row);
    save(m);
    close_trainer(m);
    snprintf(more, sizeof(more), "-o %s -y 1", directory);
    m = fp16_trainer(more);
    assert_true(m->loss_scale == 4096 && m->good_steps == 8 && m->step == 1);
    close_trainer(m);
    remove_directory(directory);
}

// What can't be mended stops, and says whether gradients overflow or the forward itself fails.
static void never_finite(void *argument) {
    one_thread();
    Trainer *m = fp16_trainer("-x 100");
    if (argument) number_put(FP16, store_pointer(&m->store, HOME_WEIGHTS, 0, 0), 0, NAN);
    else m->loss_scale = 0x1p120;
    run_of(m)->matmul_rate = 1;
    log_open(&run_of(m)->log, NULL, -1);
    run_train(run_of(m));
}

static void test_repeated_overflow_and_nan(void **state) {
    (void)state;
    expect_die(never_finite, NULL, "gradients overflow fp16|the loss is finite");
    expect_die(never_finite, &state, "10 steps in a row|no overflow of gradients");
}

// Many configurations in one process: each is planned, run for one step with validation, a sample and a save, and must
// take what was planned in every phase (memory_end dies otherwise; the witness looks, too).
static void test_plan_is_run_over_the_flag_grid(void **state) {
    (void)state;
    char directory[256];
    int n = 0;
    make_directory(directory);
    for (int i = 0; i < 4 * 2 * 2 * 3 * 2 * 3; i++) {
        int level = i % 4, dtype = i / 4 % 2, plain = i / 8 % 2, chunks = i / 16 % 3, accumulate = i / 48 % 2;
        int layers = i / 96 % 3 - 1;
        if (i % 5 != 0 && i % 7 != 0) continue;  // a third of the grid: every pair of values occurs
        Trainer *m = open_trainer(
            "-e 2x32x2 --vocab 67 -t 24 -b 3 -i random -g 20 -m 2 -o %s -r %d -p %s --attention %s "
            "--head-chunks %d -d %d --recompute-layers %d",
            directory, level, number_name((Dtype)dtype), plain ? "plain" : "fused", 1 + 2 * chunks,
            accumulate ? 144 : 72, layers);
        start_trainer(m);
        run_steps(m, 1);
        assert_true(isfinite(validate(m)));
        sample(m);
        save(m);
        assert_as_planned(m);
        for (int p = 0; p < PHASES; p++) assert_true(m->context.memory->ledger.phases[p].occurred);
        run_steps(m, 1);
        close_trainer(m);
        n++;
    }
    assert_true(n > 80);
    remove_directory(directory);
}

// The terms that the README states, for the model's activations of one step.
static void test_memory_formulas(void **state) {
    (void)state;
    for (int i = 0; i < 4 * 2; i++) {
        int level = i % 4, dtype = i / 4;
        size_t B = 3, T = 40, C = 48, L = 5, NH = 3, Vp = 128, size = dtype == BF16 ? 2 : 4, n = B * T;
        Trainer *m = open_trainer("-e 5x48x3 --vocab 100 -t 40 -b 3 -i random -r %d -p %s -g 0 -v 0", level,
                                  number_name((Dtype)dtype));
        const size_t units[4] = {16, 12, 10, 1};
        size_t statistics = level < 3 ? n * 4 * 4 + n * NH * 4 : 0;
        size_t expected = n * C * size + L * (units[level] * n * C * size + statistics);
        const PhaseLedger *head = &run_of(m)->plan.ledger.phases[PHASE_HEAD];
        size_t kept = head->kinds[TIER_DEVICE][KIND_ACTIVATIONS];
        assert_true(kept >= expected && kept <= expected + L * 12 * MEMORY_ALIGN);  // each buffer is rounded up
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_LOGITS], n * Vp * size);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_ACTIVATION_GRADIENTS], n * C * size);
        size_t elements = padded_elements(&m->config.shape, 1);
        assert_int_equal(elements % NORM_CHUNK, 0);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_WEIGHTS], elements * size);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_MASTER], dtype == BF16 ? elements * 4 : 0);
        size_t sums = size_round_up(elements / NORM_CHUNK * sizeof(double), MEMORY_ALIGN);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_GRADIENTS], elements * 4 + sums);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_MOMENTS], elements * 8);
        close_trainer(m);
    }
}

// 124M, bf16, T = 1024, per sequence: below llm.c's figures (397, 331, 295 MiB), and -r 3 with head chunks keeps at
// most 20 MiB plus one block's working set (20 units of B T C).
static void test_memory_of_124m(void **state) {
    (void)state;
    const double limits[3] = {397, 331, 295};
    for (int level = 0; level < 4; level++) {
        Trainer *m =
            open_trainer("-e d12 --vocab 50257 -t 1024 -b 1 -i random -p bf16 -r %d --head-chunks %d -g 0 -v 0", level,
                         level == 3 ? 16 : 1);
        size_t most = 0;
        for (int p = PHASE_FORWARD; p <= PHASE_BACKWARD; p++) {
            const size_t *kinds = run_of(m)->plan.ledger.phases[p].kinds[TIER_DEVICE];
            size_t n = kinds[KIND_ACTIVATIONS] + kinds[KIND_ACTIVATION_GRADIENTS] + kinds[KIND_LOGITS];
            if (level == 3) n += kinds[KIND_SCRATCH];
            most = size_max(most, n);
        }
        printf("124M, bf16, T = 1024, -r %d: %.1f MiB per sequence\n", level, size_mib(most));
        if (level < 3) {
            assert_true(size_mib(most) < limits[level]);
        } else {
            const size_t *kinds = run_of(m)->plan.ledger.phases[PHASE_HEAD].kinds[TIER_DEVICE];
            assert_true(size_mib(kinds[KIND_ACTIVATIONS]) <= 20);
        }
        assert_int_equal(layout_parameters(&m->config.shape), 124439808);
        assert_in_range(padded_elements(&m->config.shape, 1), 124475904, 124475904 + 13 * NORM_CHUNK - 1);
        close_trainer(m);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Training

static void test_evaluation_does_not_touch_training(void **state) {
    (void)state;
    RunResult results[2];
    for (int i = 0; i < 2; i++) {
        Trainer *m = open_trainer("%s -i random -g 16 -p bf16", MODELS[0]);
        start_trainer(m);
        for (int step = 0; step < 3; step++) {
            if (i == 1) {
                validate(m);
                sample(m);
            }
            results[i] = run_steps(m, 1);
        }
        if (i == 1) assert_true(validate(m) == validate(m));
        close_trainer(m);
    }
    assert_same_run(&results[0], &results[1], "with validation and samples");
}

static void test_overfits_one_batch(void **state) {
    (void)state;
    Trainer *m = open_trainer("%s -i random -g 0 -v 0 -a 1 -u 0 -k constant -l 0.003 -c 0", MODELS[0]);
    StepRow row;
    start_trainer(m);
    for (int i = 0; i < 120; i++) train_step(m, &row);
    assert_true(row.train_loss < 0.5);  // from 4.2: 64 tokens learned by heart
    close_trainer(m);
}

// The padded vocabulary takes no part: its weights stay zero, and paddings of blocks, too.
static void test_padding_stays_zero(void **state) {
    (void)state;
    Trainer *m = open_trainer("%s -i random -g 0 -v 0 -p bf16 -l 0.01", MODELS[1]);
    start_trainer(m);
    run_steps(m, 3);
    for (size_t block = 0; block < m->store.n_blocks; block++) {
        const BlockLayout *layout = store_layout(&m->store, block);
        for (size_t i = layout->n_exact; i < layout->n_elements; i++) {
            assert_true(*home_at(m, HOME_MASTER, block, i) == 0);
        }
    }
    const Tensor *wte = &m->store.embedding.tensors[TENSOR_WTE];
    assert_true(wte->n_saved < wte->n_elements);
    for (size_t i = wte->n_saved; i < wte->n_elements; i++) {
        for (int home = HOME_GRADIENTS; home < HOMES; home++) assert_true(*home_at(m, home, 0, i) == 0);
        assert_true(number_get(BF16, store_pointer(&m->store, HOME_WEIGHTS, 0, 0), i) == 0);
    }
    close_trainer(m);
}

// A step whose gradients are not finite moves nothing: neither weights, moments, the count of updates nor the schedule.
static void test_skipped_step_moves_nothing(void **state) {
    (void)state;
    const float poisons[] = {INFINITY, NAN, 3e38f};
    for (int i = 0; i < 3; i++) {
        Trainer *m = open_trainer("%s -i random -g 0 -v 0 -p fp32", MODELS[0]);
        StepRow row;
        start_trainer(m);
        run_steps(m, 2);
        uint64_t before = state_hash(m);
        double lr = schedule_lr(&m->config.schedule, m->updates);
        float *weight = home_at(m, HOME_MASTER, 1, 5), saved = *weight;  // one of qkvw
        *weight = poisons[i];
        train_step(m, &row);
        *weight = saved;
        assert_true(row.skipped && !isfinite(row.norm));
        assert_int_equal(m->step, 3);
        assert_int_equal(m->updates, 2);
        assert_true(row.lr == lr && schedule_lr(&m->config.schedule, m->updates) == lr);
        assert_true(state_hash(m) == before);
        train_step(m, &row);
        assert_true(!row.skipped && isfinite(row.train_loss));
        assert_int_equal(m->updates, 3);
        close_trainer(m);
    }
}

// The norm of gradients that a test has written.
static void note_norms(Trainer *m) {
    for (size_t block = 0; block < m->store.n_blocks; block++) {
        store_note_norm(&m->store, QUEUE_COMPUTE, block, 0, home_at(m, HOME_GRADIENTS, block, 0),
                        store_layout(&m->store, block)->n_elements);
    }
}

// Gradients whose squares overflow fp32 are clipped, not skipped.
static void test_large_gradients_are_clipped(void **state) {
    (void)state;
    Trainer *m = open_trainer("%s -i random -g 0 -v 0 -p fp32", MODELS[0]);
    StepRow row;
    start_trainer(m);
    memset(&row, 0, sizeof(row));
    for (size_t i = 0; i < m->store.embedding.n_exact; i++) *home_at(m, HOME_GRADIENTS, 0, i) = 1e20f;
    note_norms(m);
    uint64_t before = state_hash(m);
    train_update(m, &row);
    assert_true(!row.skipped && row.norm > 1e21 && isfinite(row.norm));
    assert_true(state_hash(m) != before);
    for (size_t i = 0; i < m->store.embedding.n_exact; i++) assert_true(isfinite(*home_at(m, HOME_MASTER, 0, i)));
    close_trainer(m);
}

// Without clipping, a gradient whose square overflows fp32 must not leave an infinite moment behind: the weight would
// never move again.
static void test_large_gradients_without_clipping(void **state) {
    (void)state;
    Trainer *m = open_trainer("%s -i random -g 0 -v 0 -p fp32 --clip 0", MODELS[0]);
    StepRow row;
    start_trainer(m);
    memset(&row, 0, sizeof(row));
    *home_at(m, HOME_GRADIENTS, 0, 5) = 1e20f;
    note_norms(m);
    train_update(m, &row);
    const float v = *home_at(m, HOME_V, 0, 5);
    assert_true(!row.skipped && isfinite(v) && v > 1e38f && isfinite(*home_at(m, HOME_MASTER, 0, 5)));
    close_trainer(m);
}

// ---------------------------------------------------------------------------------------------------------------
// Checkpoints

static void write_tokens(const char *path, size_t n, size_t V) {
    int32_t header[256] = {20240520, 1, (int32_t)n, (int32_t)V};
    char *bytes = (char *)calloc(1, 1024 + 2 * n);
    memcpy(bytes, header, 1024);
    for (size_t i = 0; i < n; i++) {
        uint16_t id = (uint16_t)(random_bits(5, 6, i) % V);
        memcpy(bytes + 1024 + 2 * i, &id, 2);
    }
    write_file(path, bytes, 1024 + 2 * n);
    free(bytes);
}

// Interrupted after step k and resumed = uninterrupted, bit for bit: both precisions, accumulation, within and across
// epochs (11 windows, the last one partial), from a file.
static void test_resume_is_uninterrupted(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    write_tokens(in_directory(directory, "tokens.bin"), 32 * 10 + 18, 67);
    for (int i = 0; i < 4; i++) {
        char base[1024], output[300];
        snprintf(output, sizeof(output), "%s/out%d", directory, i);
        snprintf(base, sizeof(base), "%s -i %s/tokens.bin -j %s/tokens.bin -o %s -x 6 -u 2 -g 0 -p %s -d %d", MODELS[0],
                 directory, directory, output, i % 2 ? "bf16" : "fp32", i / 2 ? 192 : 64);
        log_make_directory(output);
        Trainer *m = open_trainer("%s", base);
        start_trainer(m);
        run_steps(m, 2);
        save(m);
        RunResult rest = run_steps(m, 4);
        double loss = validate(m);
        close_trainer(m);
        for (int again = 0; again < 2; again++) {
            m = open_trainer("%s -y 1 -r %d", base, again ? 3 : 0);
            assert_true(m->config.resume && m->step == 2 && m->updates == 2);
            start_trainer(m);
            RunResult resumed = run_steps(m, 4);
            assert_same_run(&rest, &resumed, base);
            assert_true(validate(m) == loss);
            // Saved again without a step: the same bytes (step 6 of both runs).
            save(m);
            close_trainer(m);
            char *bytes = read_file(in_directory(output, "checkpoint_00000006.bin"), NULL);
            rename(in_directory(output, "checkpoint_00000006.bin"), in_directory(output, "saved_%d", again));
            free(bytes);
        }
        size_t n0, n1;
        char *first = read_file(in_directory(output, "saved_0"), &n0),
             *second = read_file(in_directory(output, "saved_1"), &n1);
        assert_int_equal(n0, n1);
        assert_memory_equal(first, second, n0);
        free(first);
        free(second);
    }
    remove_directory(directory);
}

// Moments and masters are fp32 in the file whatever the precision: loading and saving changes no byte.
static void test_checkpoint_roundtrip_and_precisions(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    Trainer *m = open_trainer("%s -i random -g 0 -v 0 -p bf16 -o %s", MODELS[1], directory);
    start_trainer(m);
    run_steps(m, 3);
    save(m);
    uint64_t hash = state_hash(m);
    close_trainer(m);
    size_t n_before, n_after;
    char *before = read_file(in_directory(directory, "checkpoint_00000003.bin"), &n_before);
    m = open_trainer("-i random -g 0 -v 0 -p bf16 -t 37 -b 3 -o %s -y 1", directory);  // the model comes from the file
    assert_true(m->config.shape.C == 51 && m->config.shape.maxT == 41 && m->config.shape.V == 67);
    start_trainer(m);
    assert_true(state_hash(m) == hash);
    save(m);
    close_trainer(m);
    char *after = read_file(in_directory(directory, "checkpoint_00000003.bin"), &n_after);
    assert_int_equal(n_before, n_after);
    assert_int_equal(n_before, 1024 + 12 * (67 * 51 + 41 * 51 + 3 * (12 * 51 * 51 + 13 * 51) + 2 * 51));
    assert_memory_equal(before, after, n_before);
    m = open_trainer("-i random -g 0 -v 0 -p fp32 -t 37 -b 3 -o %s -y 1", directory);
    start_trainer(m);
    assert_true(state_hash(m) == hash);
    close_trainer(m);
    // As a start only the weights count: -e FILE, from step 0 with moments of zero.
    m = open_trainer("-i random -g 0 -v 0 -p fp32 -t 20 -b 1 -e %s",
                     in_directory(directory, "checkpoint_00000003.bin"));
    start_trainer(m);
    assert_true(m->step == 0 && m->updates == 0 && *home_at(m, HOME_M, 0, 7) == 0);
    assert_memory_equal(home_at(m, HOME_MASTER, 0, 0), before + 1024, 67 * 51 * 4);
    close_trainer(m);
    free(before);
    free(after);
    remove_directory(directory);
}

// Damage anywhere is found: the newest good one is taken; if none is good, the run stops.
static void test_damaged_checkpoints(void **state) {
    (void)state;
    char directory[256], path[PATH_MAX];
    CheckpointHeader header;
    make_directory(directory);
    Trainer *m = open_trainer("-e 1x16x2 --vocab 19 -t 8 -b 1 -i random -g 0 -v 0 -o %s", directory);
    start_trainer(m);
    run_steps(m, 1);
    save(m);
    run_steps(m, 1);
    save(m);
    close_trainer(m);
    const char *newest = in_directory(directory, "checkpoint_00000002.bin");
    size_t n;
    char *good = read_file(newest, &n), *bad = (char *)malloc(n + 1);
    assert_true(checkpoint_newest(directory, path, sizeof(path), &header) && header.step == 2);
    size_t used = sizeof(CheckpointHeader);
    for (int i = 0; i < 120; i++) {
        memcpy(bad, good, n);
        bad[n] = 0;
        size_t length = n, flip = n;
        if (i < 40) length = (size_t)i * used / 40;                            // cut within the header
        else if (i < 60) length = 1024 + (n - 1024) * (size_t)(i - 40) / 20;   // within the data
        else if (i < 90) flip = (size_t)(i - 60) * used / 30;                  // a bit of the header
        else if (i < 119) flip = 1024 + (n - 1025) * (size_t)(i - 90) / 28;    // of the data
        else length = n + 1;                                                   // a byte too many
        if (flip < n) bad[flip] ^= (char)(1 << (i % 8));
        write_file(newest, bad, length);
        const char *wrong = checkpoint_check(newest, &header);
        if (!wrong) fail_msg("damage %d (length %zu, bit at %zu) was not found", i, length, flip);
        if (i % 10 == 0) {
            assert_true(checkpoint_newest(directory, path, sizeof(path), &header));
            assert_int_equal(header.step, 1);
        }
    }
    free(good);
    free(bad);
    remove_directory(directory);
    make_directory(directory);
    assert_false(checkpoint_newest(directory, path, sizeof(path), &header));
    write_file(in_directory(directory, "checkpoint_00000009.bin.partial"), "x", 1);
    assert_false(checkpoint_newest(directory, path, sizeof(path), &header));
    assert_int_equal(access(in_directory(directory, "checkpoint_00000009.bin.partial"), F_OK), -1);
    remove_directory(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_small_fp32),
        cmocka_unit_test(test_golden_small_bf16),
        cmocka_unit_test(test_golden_odd_fp32),
        cmocka_unit_test(test_golden_odd_bf16),
        cmocka_unit_test(test_golden_plain_attention),
        cmocka_unit_test(test_recompute_same_bits),
        cmocka_unit_test(test_reordered_sums_are_close),
        cmocka_unit_test(test_accumulation_over_many_rows),
        cmocka_unit_test(test_overflow_moves_nothing),
        cmocka_unit_test(test_loss_scale_adapts),
        cmocka_unit_test(test_loss_scale_is_saved),
        cmocka_unit_test(test_repeated_overflow_and_nan),
        cmocka_unit_test(test_plan_is_run_over_the_flag_grid),
        cmocka_unit_test(test_memory_formulas),
        cmocka_unit_test(test_memory_of_124m),
        cmocka_unit_test(test_evaluation_does_not_touch_training),
        cmocka_unit_test(test_overfits_one_batch),
        cmocka_unit_test(test_padding_stays_zero),
        cmocka_unit_test(test_skipped_step_moves_nothing),
        cmocka_unit_test(test_large_gradients_are_clipped),
        cmocka_unit_test(test_large_gradients_without_clipping),
        cmocka_unit_test(test_resume_is_uninterrupted),
        cmocka_unit_test(test_checkpoint_roundtrip_and_precisions),
        cmocka_unit_test(test_damaged_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
