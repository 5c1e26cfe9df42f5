// test_emulated.c - the whole trainer on the CUDA device, executed by the emulator (dev/emulator), compiled by nvcc.
// Built for a real GPU (make gpu-programs) the same tests run there, but for those of what only an emulator can tell.
//
// Every run is a child process, since the emulator takes its order of streams from the environment when it starts. The
// emulator itself ends a run that touches what it may not (bounds, initialisation, races of threads, blocks and
// streams), so each of these runs is also a test of that. What is compared here: the same bits in every legal order of
// streams and for every memory flag, and the CPU's numbers within the rounding of sums in another order.
#include "trainer_helpers.h"

typedef struct {
    const char *order;  // EMULATOR_STREAMS, or NULL for the CPU
    char line[512];
    int steps;
    int result;  // a pipe's end
} Child;

static void child_run(void *argument) {
    const Child *child = (const Child *)argument;
    if (child->order) setenv("EMULATOR_STREAMS", child->order, 1);
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 --device %s %s", child->order ? "cuda" : "cpu", child->line);
    start_trainer(trainer);
    RunResult result = run_steps(trainer, child->steps);
    close_trainer(trainer);
    assert_int_equal(write(child->result, &result, sizeof(result)), sizeof(result));
}

__attribute__((format(printf, 3, 4))) static RunResult run_device(const char *order, int steps, const char *format,
                                                                  ...) {
    Child child;
    RunResult result;
    int ends[2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(child.line, sizeof(child.line), format, arguments);
    va_end(arguments);
    assert_int_equal(pipe(ends), 0);
    child.order = order;
    child.steps = steps;
    child.result = ends[1];
    expect_exit(child_run, &child, 0, "");
    assert_int_equal(read(ends[0], &result, sizeof(result)), sizeof(result));
    close(ends[0]);
    close(ends[1]);
    return result;
}

// fp32: sums of some thousand terms in another order, in the loss (4.2) and relative in the norm. bf16 and fp16: single
// roundings of activations the other way, by 2^-8 and 2^-11 of a value.
static void assert_close_to_cpu(const RunResult *a, const RunResult *cpu, int steps, Dtype dtype, const char *what) {
    const double loss = dtype == FP32 ? 1e-5 : dtype == BF16 ? 5e-3 : 1e-3;
    const double norm = dtype == FP32 ? 2e-5 : dtype == BF16 ? 2e-2 : 4e-3;
    for (int i = 0; i < steps; i++) {
        if (!(fabs(a->losses[i] - cpu->losses[i]) <= loss && fabs(a->norms[i] / cpu->norms[i] - 1) <= norm)) {
            fail_msg("%s, step %d: losses %.9g, on the CPU %.9g; norms %.9g, %.9g", what, i + 1, a->losses[i],
                     cpu->losses[i], a->norms[i], cpu->norms[i]);
        }
    }
    assert_true(isfinite(a->losses[0]) && a->norms[0] > 0);
}

// TINY, one with heads of 64 channels, and ODD with heads of 17, odd lengths and positions to spare.
static const char *const MODELS[] = {"-e 2x48x3 --vocab 67 -t 32 -b 2", "-e 2x128x2 --vocab 67 -t 64 -b 1",
                                     "-e 2x51x3 --vocab 67 -t 37 --max-length 41 -b 3"};
static const int TOKENS[] = {64, 64, 111};

// Rows in which every pair of values of two columns occurs: model, type, level, micro-batches (three use a slot for the
// second time within a step), attention, head chunks.
// TEST_ALL=1 runs the full grid.
static const int PAIRS[][6] = {
    {0, FP32, 0, 1, 0, 3}, {0, BF16, 1, 3, 1, 3}, {0, FP16, 2, 3, 0, 1}, {0, FP32, 3, 3, 0, 1},
    {1, BF16, 0, 1, 1, 3}, {1, FP16, 1, 1, 0, 1}, {1, FP32, 2, 1, 1, 3}, {1, BF16, 3, 3, 1, 1},
    {2, FP16, 0, 3, 0, 1}, {2, FP32, 1, 1, 1, 3}, {2, BF16, 2, 1, 0, 1}, {2, FP16, 3, 1, 1, 3}};

static void configuration_line(char *line, size_t size, const int *c) {
    snprintf(line, size, "%s -p %s -r %d -d %d --attention %s --head-chunks %d", MODELS[c[0]],
             number_name((Dtype)c[1]), c[2], c[3] * TOKENS[c[0]], c[4] ? "plain" : "fused", c[5]);
}

// The same bits in every order of streams; close to the CPU's.
static void check_configuration(const int *c, int index) {
    char line[512], seed[16];
    configuration_line(line, sizeof(line), c);
    snprintf(seed, sizeof(seed), "%d", index + 1);
    const int steps = c[0] == 1 ? 2 : 3;
    RunResult lazy = run_device("laziest", steps, "%s", line);
    RunResult eager = run_device("eager", steps, "%s", line);
    RunResult some = run_device(seed, steps, "%s", line);
    RunResult cpu = run_device(NULL, steps, "%s", line);
    assert_same_run(&lazy, &eager, line);
    assert_same_run(&lazy, &some, line);
    assert_close_to_cpu(&lazy, &cpu, steps, (Dtype)c[1], line);
}

static void test_configurations(void **state) {
    (void)state;
    if (!getenv("TEST_ALL")) {
        for (size_t i = 0; i < sizeof(PAIRS) / sizeof(PAIRS[0]); i++) check_configuration(PAIRS[i], (int)i);
        return;
    }
    for (int i = 0; i < 3 * DTYPES * 4 * 2 * 2 * 2; i++) {
        const int c[6] = {i / (DTYPES * 32), i / 32 % DTYPES, i / 8 % 4, 1 + 2 * (i / 4 % 2), i / 2 % 2,
                          i % 2 ? 3 : 1};
        check_configuration(c, i);
    }
}

// Promise 3 on this device: a memory flag changes no bit.
static void test_recompute_same_bits(void **state) {
    (void)state;
    for (int model = 0; model < 3; model += 2) {
        for (int dtype = FP32; dtype < DTYPES; dtype++) {
            RunResult kept = run_device("eager", 2, "%s -p %s -r 0", MODELS[model], number_name((Dtype)dtype));
            for (int level = 1; level <= 3; level++) {
                RunResult again = run_device("laziest", 2, "%s -p %s -r %d --recompute-layers %d", MODELS[model],
                                            number_name((Dtype)dtype), level, level == 2 ? 1 : 2);
                assert_same_run(&kept, &again, MODELS[model]);
            }
        }
    }
}

// Within a step: no allocation, no wait for the whole device, no float atomics; the host waits for its slots and for
// the results.
static void count_step(void *argument) {
    (void)argument;
#ifdef EMULATED
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 --device cuda %s -d 192 -r 1", MODELS[0]);
    start_trainer(trainer);
    run_steps(trainer, 1);
    emulator_reset_counts();
    StepRow row;
    train_step(trainer, &row);
    EmulatorCounts counts = emulator_counts();
    assert_true(counts.launches > 50 && counts.matmuls > 50);
    assert_true(counts.allocations == 0);
    assert_true(counts.frees == 0);
    assert_true(counts.host_allocations == 0);
    assert_true(counts.device_synchronisations == 0 && counts.float_atomics == 0);
    assert_true(counts.stream_synchronisations <= trainer->config.micro_batches + 1);
    close_trainer(trainer);
#endif
}

static void test_step_waits_for_nothing(void **state) {
    (void)state;
#ifndef EMULATED
    SKIP_AS("only the emulator counts what a step calls");
#endif
    expect_exit(count_step, NULL, 0, "");
}

// Validation, a sample, a save on the one device and going on from it on the other: every phase as planned, the same
// weights.
static void save_and_go_on(void *argument) {
    const char *directory = (const char *)argument;
    uint64_t states[2];
    for (int pass = 0; pass < 2; pass++) {  // saved by CUDA; read by the CPU, then by CUDA
        Trainer *trainer = open_trainer("-i random -g 20 -m 2 -o %s -y %d --device %s %s -p bf16", directory, pass,
                                        pass ? "cpu" : "cuda", MODELS[2]);
        start_trainer(trainer);
        if (pass == 0) {
            run_steps(trainer, 1);
            assert_true(isfinite(validate(trainer)));
            sample(trainer);
            save(trainer);
            assert_as_planned(trainer);
        }
        states[pass] = state_hash(trainer);
        close_trainer(trainer);
    }
    assert_true(states[0] == states[1]);
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 -o %s -y 1 --device cuda %s -p bf16", directory, MODELS[2]);
    start_trainer(trainer);
    assert_true(state_hash(trainer) == states[0] && trainer->step == 1);
    run_steps(trainer, 1);
    close_trainer(trainer);
}

static void test_checkpoint_across_devices(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    expect_exit(save_and_go_on, directory, 0, "");
    remove_directory(directory);
}

// A step whose gradients are not finite moves nothing, on this device either.
static void skip_step(void *argument) {
    (void)argument;
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 --device cuda %s -p fp32", MODELS[0]);
    start_trainer(trainer);
    run_steps(trainer, 1);
    const float poison = NAN;
    float *weight = home_at(trainer, HOME_MASTER, 0, 5), before;
    device_download(trainer->context.device, &before, weight, sizeof(before));
    device_upload(trainer->context.device, weight, &poison, sizeof(poison));
    uint64_t state = state_hash(trainer);
    StepRow row;
    train_step(trainer, &row);
    assert_true(row.skipped);
    assert_true(state_hash(trainer) == state);
    assert_true(trainer->updates == 1);
    assert_true(trainer->step == 2);
    device_upload(trainer->context.device, weight, &before, sizeof(before));
    train_step(trainer, &row);
    assert_true(!row.skipped);
    assert_true(trainer->updates == 2);
    assert_true(isfinite(row.train_loss));
    close_trainer(trainer);
}

static void test_skipped_step(void **state) {
    (void)state;
    expect_exit(skip_step, NULL, 0, "");
}

// fp16: an overflow in the first, the second or the last micro-batch of a step.
static void overflow_in_order(void *argument) {
    const size_t i = (size_t)(uintptr_t)argument;
    static const char *const orders[] = {"laziest", "eager", "7"};
    setenv("EMULATOR_STREAMS", orders[i], 1);
    check_overflow("cuda", &OVERFLOWS[i]);
}

static void test_overflow_moves_nothing(void **state) {
    (void)state;
    for (uintptr_t i = 0; i < sizeof(OVERFLOWS) / sizeof(OVERFLOWS[0]); i++) {
        expect_exit(overflow_in_order, (void *)i, 0, "");
    }
}

// A plan for a GPU that is not there takes what the same GPU would take: the profile of this one's compute capability
// (the emulated one's is 8.0: plan:a100).
enum { NO_PROFILE = 9 };  // exit status

static void plan_elsewhere(void *argument) {
    (void)argument;
    int n_planned = 0;
    Trainer *here = open_trainer("-i random --device cuda %s -p bf16 -r 2", MODELS[2]);
    for (size_t i = 0; i < sizeof(DEVICE_PROFILES) / sizeof(DEVICE_PROFILES[0]); i++) {
        if (DEVICE_PROFILES[i].compute_capability != here->context.device->compute_capability) continue;
        Trainer *there = open_trainer("-i random --device plan:%s %s -p bf16 -r 2", DEVICE_PROFILES[i].name, MODELS[2]);
        assert_memory_equal(&run_of(here)->plan, &run_of(there)->plan, sizeof(Plan));
        close_trainer(there);
        n_planned++;
    }
    if (n_planned == 0) _exit(NO_PROFILE);
    close_trainer(here);
}

static void test_plan_for_a_gpu(void **state) {
    (void)state;
    char message[4096];
    const int status = run_child(plan_elsewhere, NULL, message, sizeof(message));
    if (status == NO_PROFILE) SKIP_AS("no profile has this GPU's compute capability");
    if (status != 0) fail_msg("exit status %d, saying: %s", status, message);
}

// Too small a GPU: refused before anything is taken; and where the plan was told of more than there is (which needs a
// small GPU, that is, an emulated one), the failed reservation says so.
static void too_small(void *argument) {
    setenv("EMULATOR_MEMORY", "6M", 1);
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 --device cuda %s -b 64 %s", MODELS[0], (const char *)argument);
    run_plan(run_of(trainer));
    start_trainer(trainer);
}

static void heads_too_wide(void *argument) {
    (void)argument;
    open_trainer("-i random --device cuda -e 1x136x1 --vocab 67 -t 8");
}

static void test_refusals(void **state) {
    (void)state;
    expect_exit(too_small, (void *)(uintptr_t)"--device-memory 6MiB", 1, "does not fit");
#ifdef EMULATED
    expect_exit(too_small, (void *)(uintptr_t)"", 1, "does not fit");
    expect_exit(too_small, (void *)(uintptr_t)"--device-memory 1GiB", 1, "out of memory");
#endif
    expect_exit(heads_too_wide, NULL, 1, "136 channels");
}

// --tune writes its choices and another run takes them; what it can't use is refused.
static char tune_file[300];

static void tuned_run(void *argument) {
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 --device cuda %s --tune %s", MODELS[0], tune_file);
    start_trainer(trainer);
    RunResult result = run_steps(trainer, 1), *first = (RunResult *)argument;
    if (first->peak == 0) *first = result;
    assert_same_run(first, &result, "tuned");
    close_trainer(trainer);
}

static void tuned_runs(void *argument) {
    RunResult first;
    (void)argument;
    memset(&first, 0, sizeof(first));
    tuned_run(&first);
    size_t n_bytes, again;
    char *text = read_file(tune_file, &n_bytes);
    assert_true(n_bytes > 300);
    tuned_run(&first);
    free(read_file(tune_file, &again));
    assert_int_equal(n_bytes, again);  // nothing was left to time
    free(text);
}

static void tuned_on_the_cpu(void *argument) {
    (void)argument;
    open_trainer("-i random --device cpu --tune %s", tune_file);
}

static void test_tune(void **state) {
    (void)state;
    char directory[256];
    RunResult first;
    memset(&first, 0, sizeof(first));
    make_directory(directory);
    snprintf(tune_file, sizeof(tune_file), "%s/tuned", directory);
    expect_exit(tuned_runs, NULL, 0, "");
    write_file(tune_file, "1 2 3\n", 6);
    expect_exit(tuned_run, &first, 1, "line 1");
    snprintf(tune_file, sizeof(tune_file), "%s/none/tuned", directory);
    expect_exit(tuned_run, &first, 1, "--tune");
    expect_exit(tuned_on_the_cpu, NULL, 2, "algorithms of a GPU");
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// AdamW on the host: what its pieces leave from is the host's stack, and the host has it back when the update ends

enum { AFTER_NOTHING, AFTER_VALIDATION, AFTER_SAMPLE, AFTER_SAVE, AFTER_ALL };

// What comes between steps, each of which has its own way with the host's memory, and what it gave.
typedef struct {
    RunResult run;
    double validations[2];
    uint64_t samples[2], saved[2];
} Between;

typedef struct {
    const char *order, *directory, *line;
    int after;
    Between *between;  // in memory that the processes share
} BetweenChild;

static void run_between(void *argument) {
    const BetweenChild *child = (const BetweenChild *)argument;
    Between *b = child->between;
    setenv("EMULATOR_STREAMS", child->order, 1);
    Trainer *trainer = open_trainer("-i random -m 1 -g 2 -e 3x32x2 --vocab 67 -t 8 -b 1 --device cuda -o %s %s",
                                    child->directory, child->line);
    start_trainer(trainer);
    for (int i = 0; i < 2; i++) {
        StepRow row;
        memset(&row, 0, sizeof(row));
        train_step(trainer, &row);
        b->run.losses[i] = row.train_loss;
        b->run.norms[i] = row.norm;
        if (child->after == AFTER_VALIDATION || child->after == AFTER_ALL) b->validations[i] = validate(trainer);
        if (child->after == AFTER_SAMPLE || child->after == AFTER_ALL) {
            sample(trainer);
            b->samples[i] = file_hash(1, trainer->batch.host_tokens[0], 2 * sizeof(int32_t));
        }
        if (child->after == AFTER_SAVE || child->after == AFTER_ALL) {
            char path[PATH_MAX];
            CheckpointHeader header;
            save(trainer);
            checkpoint_path(path, sizeof(path), child->directory, trainer->step);
            if (checkpoint_check(path, &header)) die("%s is not good", path);
            b->saved[i] = file_hash(1, header.hashes, sizeof(header.hashes));
        }
    }
    b->run.state = state_hash(trainer);
    close_trainer(trainer);
}

// Everything in between in the eager order, and each alone in the laziest, and nothing: the same bits, also of what was
// done in between.
static void check_between(const char *directory, const char *line) {
    static const struct {
        const char *order;
        int after;
    } RUNS[] = {{"laziest", AFTER_VALIDATION}, {"laziest", AFTER_SAMPLE}, {"laziest", AFTER_SAVE},
                {"1", AFTER_NOTHING}};
    Between *b = (Between *)mmap(NULL, 2 * sizeof(Between), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    BetweenChild child = {"eager", directory, line, AFTER_ALL, b};
    expect_exit(run_between, &child, 0, "");
    for (size_t i = 0; i < sizeof(RUNS) / sizeof(RUNS[0]); i++) {
        child.order = RUNS[i].order;
        child.after = RUNS[i].after;
        child.between = b + 1;
        memset(b + 1, 0, sizeof(b[1]));
        expect_exit(run_between, &child, 0, "");
        char what[512];
        snprintf(what, sizeof(what), "%s, %s, after a step %d", line, child.order, child.after);
        assert_same_run(&b[0].run, &b[1].run, what);
        for (int step = 0; step < 2; step++) {
            if (child.after == AFTER_VALIDATION && b[1].validations[step] != b[0].validations[step]) {
                fail_msg("%s: validation losses %.9g, %.9g", what, b[0].validations[step], b[1].validations[step]);
            }
            if (child.after == AFTER_SAMPLE && b[1].samples[step] != b[0].samples[step]) {
                fail_msg("%s: another sample", what);
            }
            if (child.after == AFTER_SAVE && b[1].saved[step] != b[0].saved[step]) {
                fail_msg("%s: another checkpoint", what);
            }
        }
    }
    munmap(b, 2 * sizeof(Between));
}

// Every home with the update on the host; a piece per block, and more blocks than sets of buffers. TEST_ALL=1: in both
// types; otherwise they take turns.
static void test_update_on_host(void **state) {
    (void)state;
    static const char *const tiers[] = {"", "host", "disk"};
    char directory[256], line[256];
    make_directory(directory);
    for (int i = 0; i < 36; i++) {
        const int dtype = i % 2, optimizer = 1 + i / 2 % 2, weights = i / 4 % 3, gradients = i / 12;
        if (!getenv("TEST_ALL") && dtype != (optimizer + weights + gradients) % 2) continue;
        int n = snprintf(line, sizeof(line), "-p %s --offload optimizer=%s", number_name(dtype ? BF16 : FP32),
                         tiers[optimizer]);
        if (weights) n += snprintf(line + n, sizeof(line) - (size_t)n, ",weights=%s", tiers[weights]);
        if (gradients) snprintf(line + n, sizeof(line) - (size_t)n, ",gradients=%s", tiers[gradients]);
        check_between(directory, line);
    }
    remove_directory(directory);
}

// What the host does with bytes of its slab that a queue still uses, each in the trainer's own function. It waits for
// the queue, because the device knows of the use; without that knowledge the wait is missing.
enum { EARLY_RELEASE, EARLY_RELEASE_OF_CALL, EARLY_POISON, EARLY_TOKENS, EARLY_SAMPLE, EARLY_SAVE, EARLIES };

typedef struct {
    const char *order, *directory;
    int what;
    bool waits;
} Early;

static void use_early(void *argument) {
    const Early *early = (const Early *)argument;
    setenv("EMULATOR_STREAMS", early->order, 1);
    Trainer *trainer = open_trainer("-i random -m 1 -g 2 --offload optimizer=disk --device cuda -o %s %s",
                                    early->directory, MODELS[0]);
    start_trainer(trainer);
    if (early->what == EARLY_SAVE) save(trainer);  // the first one's poison would be found instead
    if (!early->waits) trainer->context.device->host = trainer->context.device->host_end = NULL;
    const size_t mark = memory_mark(trainer->context.memory, TIER_HOST);
    Memory *memory = trainer->context.memory;
    char *from = (char *)memory_push_aligned(memory, TIER_HOST, KIND_FILES, MEMORY_PAGE, MEMORY_PAGE, "early");
    if (early->what > EARLY_RELEASE_OF_CALL) memory_release(trainer->context.memory, TIER_HOST, mark);
    if (early->what == EARLY_TOKENS) from = (char *)trainer->batch.host_tokens[trainer->batch.current ^ 1];
    if (early->what == EARLY_SAMPLE) from = (char *)trainer->batch.host_tokens[0];
    if (early->what == EARLY_RELEASE_OF_CALL) {
        Store *store = &trainer->store;
        transfer(&store->transfers, QUEUE_STASH, TIER_DISK, store_pointer(store, HOME_M, 0, 0), TIER_HOST, from,
                 MEMORY_PAGE);
    } else {
        device_copy(trainer->context.device, QUEUE_STASH, trainer->batch.losses, from, 64);
    }
    switch (early->what) {
    case EARLY_POISON: memory_begin(trainer->context.memory, PHASE_VALIDATION); break;
    case EARLY_TOKENS: batch_next(&trainer->batch); break;
    case EARLY_SAMPLE: sample(trainer); break;
    case EARLY_SAVE: save(trainer); break;
    default: memory_release(trainer->context.memory, TIER_HOST, mark); break;
    }
    close_trainer(trainer);
}

// The emulator finds a wait of the host that is missing, in any order of streams.
static void test_missing_waits(void **state) {
    (void)state;
#ifdef EMULATED
    static const char *const orders[] = {"laziest", "eager", "1"};
    char directory[256];
    make_directory(directory);
    for (int i = 0; i < EARLIES * 3; i++) {
        Early early = {orders[i % 3], directory, i / 3, false};
        expect_exit(use_early, &early, 1,
                    early.what == EARLY_RELEASE_OF_CALL
                        ? "race with the host|write of pinned host memory|read by a host function"
                        : "race with the host|write of pinned host memory|read by cudaMemcpy of 64 bytes");
        early.waits = true;
        if (i % 3 == 0) expect_exit(use_early, &early, 0, "");
    }
    remove_directory(directory);
#else
    (void)use_early;
    SKIP_AS("only the emulator sees what the host does");
#endif
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_configurations),  cmocka_unit_test(test_recompute_same_bits),
        cmocka_unit_test(test_step_waits_for_nothing), cmocka_unit_test(test_checkpoint_across_devices),
        cmocka_unit_test(test_skipped_step),    cmocka_unit_test(test_overflow_moves_nothing),
        cmocka_unit_test(test_plan_for_a_gpu),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tune),            cmocka_unit_test(test_update_on_host),
        cmocka_unit_test(test_missing_waits),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
