// trainer_helpers.h - the whole trainer within a test program: opened from a command line, run step by step.
#ifndef TRAINER_HELPERS_H
#define TRAINER_HELPERS_H

#include "test_helpers.h"

#include "run_helpers.h"

// What must be the same when runs are to be the same.
typedef struct {
    double losses[16], norms[16];
    uint64_t state;  // hash of master weights and moments, without paddings
    size_t peak;     // device bytes
} RunResult;

// Opens a trainer from the words of a command line, plans it, and starts it. Small samples and no output unless asked.
__attribute__((format(printf, 1, 2))) static inline Trainer *open_trainer(const char *format, ...) {
    static char line[4096];
    static char *words[128];
    int n = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    words[n++] = (char *)(uintptr_t)"train_gpt";
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) words[n++] = word;
    Run *r = run_open(n, words);
    report_position(&r->job, &r->ranks);
    return plan_trainer(r);
}

// In a child of a process that has run operations: it has none of its parent's threads, and OpenMP does not know.
static inline void one_thread(void) {
#ifdef _OPENMP
    setenv("OMP_NUM_THREADS", "1", 1);
    omp_set_num_threads(1);
#endif
}

// Element `at` of a block in a home that is in this process's memory.
static inline float *home_at(const Trainer *trainer, int home, size_t block, size_t at) {
    return (float *)(void *)store_pointer(&trainer->store, home, block, at);
}

// Room for a block on the host, as transfers need it.
static inline float *open_block(const Trainer *trainer) {
    size_t n_bytes = size_max(trainer->store.embedding.n_elements, trainer->store.layer.n_elements) * sizeof(float);
    void *values = NULL;
    assert_int_equal(posix_memalign(&values, MEMORY_PAGE, n_bytes), 0);
#ifdef __CUDACC__
    if (trainer->context.device->real == DEVICE_CUDA) {
        CUDA_CHECK(cudaHostRegister(values, n_bytes, cudaHostRegisterDefault));
    }
#endif
    return (float *)values;
}

// The memory of a test is none that the device knows: it waits for the queues itself.
static inline void wait_for_queues(Trainer *trainer) {
    store_join(&trainer->store);
    device_wait(trainer->context.device);
}

static inline void close_block(Trainer *trainer, float *values) {
    wait_for_queues(trainer);
#ifdef __CUDACC__
    if (trainer->context.device->real == DEVICE_CUDA) CUDA_CHECK(cudaHostUnregister(values));
#else
    (void)trainer;
#endif
    free(values);
}

// The state that counts, hashed: every tensor without padding, in fp32, wherever it is. All ranks call it; rank 0 gets
// the hash, the others 0.
static inline uint64_t state_hash(Trainer *trainer) {
    uint64_t hash = 0;
    float *values = open_block(trainer);
    for (int section = 0; section < CHECKPOINT_SECTIONS; section++) {
        for (size_t block = 0; block < trainer->store.n_blocks; block++) {
            const BlockLayout *layout = store_layout(&trainer->store, block);
            store_get(&trainer->store, CHECKPOINT_HOMES[section], block, 0, layout->n_elements, values);
            wait_for_queues(trainer);
            for (size_t i = 0, first, end;
                 trainer->ranks->rank == 0 && checkpoint_stretch(layout, 0, layout->n_elements, &i, &first, &end);) {
                hash = file_hash(hash, values + first, (end - first) * sizeof(float));
            }
        }
    }
    close_block(trainer, values);
    return hash;
}

// The ledger of the run is the plan's, to the byte, in every phase that has occurred.
static inline void assert_as_planned(const Trainer *trainer) {
    for (int p = 0; p < PHASES; p++) {
        const PhaseLedger *run = &trainer->context.memory->ledger.phases[p];
        const PhaseLedger *planned = &run_of(trainer)->plan.ledger.phases[p];
        if (!run->occurred) continue;
        assert_true(planned->occurred);
        assert_memory_equal(run->peak, planned->peak, sizeof(run->peak));
        assert_memory_equal(run->kinds, planned->kinds, sizeof(run->kinds));
        for (int t = 0; t < TIERS; t++) {
            size_t sum = 0;
            for (int k = 0; k < KINDS; k++) sum += run->kinds[t][k];
            assert_int_equal(sum, run->peak[t]);
        }
    }
}

// Runs n steps of an open trainer.
static inline RunResult run_steps(Trainer *trainer, int n) {
    RunResult result;
    memset(&result, 0, sizeof(result));
    for (int i = 0; i < n; i++) {
        StepRow row;
        memset(&row, 0, sizeof(row));
        train_step(trainer, &row);
        result.losses[i] = row.train_loss;
        result.norms[i] = row.norm;
    }
    result.state = state_hash(trainer);
    result.peak = ledger_peak(&trainer->context.memory->ledger, TIER_DEVICE);
    assert_as_planned(trainer);
    return result;
}

static inline void assert_same_run(const RunResult *a, const RunResult *b, const char *what) {
    if (memcmp(a->losses, b->losses, sizeof(a->losses)) || memcmp(a->norms, b->norms, sizeof(a->norms)) ||
        a->state != b->state) {
        fail_msg("%s: not the same bits (losses %.9g %.9g, norms %.9g %.9g)", what, a->losses[0], b->losses[0],
                 a->norms[0], b->norms[0]);
    }
    assert_true(isfinite(a->losses[0]) && a->norms[0] > 0);
}

// ---------------------------------------------------------------------------------------------------------------
// fp16: an overflow in one micro-batch of several

// The tokens of this seed, and a loss scale at which exactly one of three micro-batches of the second step overflows:
// the next one would need a scale that is larger by a tenth.
typedef struct {
    int seed;
    double log2_scale;
    size_t micro_batch;
} Overflow;

static const Overflow OVERFLOWS[] = {{10, 22.02, 0}, {15, 21.85, 1}, {14, 21.84, 2}};

// The weights that the products read, paddings included.
static inline uint64_t weights_hash(Trainer *trainer) {
    const size_t n_bytes = trainer->store.n_elements * number_size(trainer->config.dtype);
    void *copy = malloc(n_bytes);
    device_download(trainer->context.device, copy, store_pointer(&trainer->store, HOME_WEIGHTS, 0, 0), n_bytes);
    uint64_t hash = file_hash(0, copy, n_bytes);
    free(copy);
    return hash;
}

static inline bool micro_batch_overflows(Trainer *trainer, size_t micro_batch) {
    batch_train(&trainer->batch, trainer->step, micro_batch);
    const double n_targets = (double)batch_step_targets(&trainer->batch, trainer->step);
    train_micro_batch(trainer, (float)(trainer->loss_scale / n_targets), true, true);
    update_norm(&trainer->store, trainer->results + RESULT_NORM);
    train_results(trainer, 0);
    return !isfinite(trainer->host_results[RESULT_NORM]);
}

// A step on the windows of another one, as a run takes it that never saw those in between: its counters know nothing of
// them.
static inline void step_on_windows_of(Trainer *trainer, int64_t step, StepRow *row) {
    const double n_targets = (double)batch_step_targets(&trainer->batch, step);
    for (size_t i = 0; i < trainer->config.micro_batches; i++) {
        batch_train(&trainer->batch, step, i);
        const bool last = i + 1 == trainer->config.micro_batches;
        train_micro_batch(trainer, (float)(trainer->loss_scale / n_targets), i == 0, last);
    }
    train_update(trainer, row);
    row->train_loss = trainer->host_results[RESULT_LOSS] / n_targets;
    trainer->step++;
    trainer->updates++;
}

static inline Trainer *overflow_trainer(const char *device, const Overflow *o) {
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 -p fp16 -e 2x48x3 --vocab 67 -t 32 -b 2 -d 192 --seed %d "
                                    "--device %s", o->seed, device);
    start_trainer(trainer);
    return trainer;
}

// The step with the overflow moves nothing but the scale and the count of attempts; and from there on the run is, bit
// for bit, the run that has never seen that step's windows (an attempt uses up its windows, applied or not).
static inline void check_overflow(const char *device, const Overflow *o) {
    Trainer *trainer = overflow_trainer(device, o), *without = overflow_trainer(device, o);
    StepRow row, other;
    memset(&row, 0, sizeof(row));
    memset(&other, 0, sizeof(other));
    train_step(trainer, &row);
    step_on_windows_of(without, 0, &other);
    assert_true(!row.skipped && trainer->good_steps == 1 && row.loss_scale == 65536 && trainer->loss_scale == 65536);
    const uint64_t state = state_hash(trainer), weights = weights_hash(trainer);
    assert_true(state == state_hash(without) && weights == weights_hash(without));

    const double scale = exp2(o->log2_scale);
    trainer->loss_scale = scale;
    for (size_t i = 0; i < 3; i++) assert_true(micro_batch_overflows(trainer, i) == (i == o->micro_batch));
    train_step(trainer, &row);
    assert_true(row.skipped && !isfinite(row.norm) && isfinite(row.train_loss) && row.loss_scale == scale);
    assert_true(state_hash(trainer) == state && weights_hash(trainer) == weights);
    assert_true(trainer->updates == 1 && trainer->step == 2 && row.step == 2 && trainer->skipped_in_a_row == 1);
    assert_true(trainer->loss_scale == scale / 2 && trainer->good_steps == 0 && row.good_steps == 0);

    without->loss_scale = trainer->loss_scale;
    for (int i = 0; i < 2; i++) {
        train_step(trainer, &row);
        step_on_windows_of(without, 2 + i, &other);
        assert_true(!row.skipped && !other.skipped && row.train_loss == other.train_loss && row.norm == other.norm);
        assert_true(row.lr == other.lr);
        assert_true(row.lr == schedule_lr(&trainer->config.schedule, 1 + i));
        assert_true(row.good_steps == 1 + i);
    }
    assert_true(row.lr != schedule_lr(&trainer->config.schedule, 3));
    assert_true(trainer->updates == 3);
    assert_true(trainer->step == 4);
    assert_true(without->step == 3);
    assert_true(state_hash(trainer) == state_hash(without) && weights_hash(trainer) == weights_hash(without));
    assert_true(state_hash(trainer) != state && trainer->skipped_in_a_row == 0);
    close_trainer(trainer);
    close_trainer(without);
}

#endif
