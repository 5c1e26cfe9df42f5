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
static inline float *home_at(const Trainer *m, int home, size_t block, size_t at) {
    return (float *)(void *)store_pointer(&m->store, home, block, at);
}

// Room for a block on the host, as transfers need it.
static inline float *open_block(const Trainer *m) {
    size_t n_bytes = size_max(m->store.embedding.n_elements, m->store.layer.n_elements) * sizeof(float);
    void *values = NULL;
    assert_int_equal(posix_memalign(&values, MEMORY_PAGE, n_bytes), 0);
#ifdef __CUDACC__
    if (m->context.device->real == DEVICE_CUDA) CUDA_CHECK(cudaHostRegister(values, n_bytes, cudaHostRegisterDefault));
#endif
    return (float *)values;
}

// The memory of a test is none that the device knows: it waits for the queues itself.
static inline void wait_for_queues(Trainer *m) {
    store_join(&m->store);
    device_wait(m->context.device);
}

static inline void close_block(Trainer *m, float *values) {
    wait_for_queues(m);
#ifdef __CUDACC__
    if (m->context.device->real == DEVICE_CUDA) CUDA_CHECK(cudaHostUnregister(values));
#else
    (void)m;
#endif
    free(values);
}

// The state that counts, hashed: every tensor without padding, in fp32, wherever it is. All ranks call it; rank 0 gets
// the hash, the others 0.
static inline uint64_t state_hash(Trainer *m) {
    uint64_t hash = 0;
    float *values = open_block(m);
    for (int section = 0; section < CHECKPOINT_SECTIONS; section++) {
        for (size_t block = 0; block < m->store.n_blocks; block++) {
            const BlockLayout *layout = store_layout(&m->store, block);
            store_get(&m->store, CHECKPOINT_HOMES[section], block, 0, layout->n_elements, values);
            wait_for_queues(m);
            for (size_t i = 0, first, end;
                 m->ranks->rank == 0 && checkpoint_stretch(layout, 0, layout->n_elements, &i, &first, &end);) {
                hash = file_hash(hash, values + first, (end - first) * sizeof(float));
            }
        }
    }
    close_block(m, values);
    return hash;
}

// The ledger of the run is the plan's, to the byte, in every phase that has occurred.
static inline void assert_as_planned(const Trainer *m) {
    for (int p = 0; p < PHASES; p++) {
        const PhaseLedger *run = &m->context.memory->ledger.phases[p], *planned = &run_of(m)->plan.ledger.phases[p];
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
static inline RunResult run_steps(Trainer *m, int n) {
    RunResult result;
    memset(&result, 0, sizeof(result));
    for (int i = 0; i < n; i++) {
        StepRow row;
        memset(&row, 0, sizeof(row));
        train_step(m, &row);
        result.losses[i] = row.train_loss;
        result.norms[i] = row.norm;
    }
    result.state = state_hash(m);
    result.peak = ledger_peak(&m->context.memory->ledger, TIER_DEVICE);
    assert_as_planned(m);
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
static inline uint64_t weights_hash(Trainer *m) {
    const size_t n_bytes = m->store.n_elements * number_size(m->config.dtype);
    void *copy = malloc(n_bytes);
    device_download(m->context.device, copy, store_pointer(&m->store, HOME_WEIGHTS, 0, 0), n_bytes);
    uint64_t hash = file_hash(0, copy, n_bytes);
    free(copy);
    return hash;
}

static inline bool micro_batch_overflows(Trainer *m, size_t micro_batch) {
    batch_train(&m->batch, m->step, micro_batch);
    train_micro_batch(m, (float)(m->loss_scale / (double)batch_step_targets(&m->batch, m->step)), true, true);
    update_norm(&m->store, m->results + RESULT_NORM);
    train_results(m, 0);
    return !isfinite(m->host_results[RESULT_NORM]);
}

// A step on the windows of another one, as a run takes it that never saw those in between: its counters know nothing of
// them.
static inline void step_on_windows_of(Trainer *m, int64_t step, StepRow *row) {
    const double n_targets = (double)batch_step_targets(&m->batch, step);
    for (size_t i = 0; i < m->config.micro_batches; i++) {
        batch_train(&m->batch, step, i);
        train_micro_batch(m, (float)(m->loss_scale / n_targets), i == 0, i + 1 == m->config.micro_batches);
    }
    train_update(m, row);
    row->train_loss = m->host_results[RESULT_LOSS] / n_targets;
    m->step++;
    m->updates++;
}

static inline Trainer *overflow_trainer(const char *device, const Overflow *o) {
    Trainer *m = open_trainer("-i random -g 0 -v 0 -p fp16 -e 2x48x3 --vocab 67 -t 32 -b 2 -d 192 --seed %d "
                              "--device %s", o->seed, device);
    start_trainer(m);
    return m;
}

// The step with the overflow moves nothing but the scale and the count of attempts; and from there on the run is, bit
// for bit, the run that has never seen that step's windows (an attempt uses up its windows, applied or not).
static inline void check_overflow(const char *device, const Overflow *o) {
    Trainer *m = overflow_trainer(device, o), *without = overflow_trainer(device, o);
    StepRow row, other;
    memset(&row, 0, sizeof(row));
    memset(&other, 0, sizeof(other));
    train_step(m, &row);
    step_on_windows_of(without, 0, &other);
    assert_true(!row.skipped && m->good_steps == 1 && row.loss_scale == 65536 && m->loss_scale == 65536);
    const uint64_t state = state_hash(m), weights = weights_hash(m);
    assert_true(state == state_hash(without) && weights == weights_hash(without));

    const double scale = exp2(o->log2_scale);
    m->loss_scale = scale;
    for (size_t i = 0; i < 3; i++) assert_true(micro_batch_overflows(m, i) == (i == o->micro_batch));
    train_step(m, &row);
    assert_true(row.skipped && !isfinite(row.norm) && isfinite(row.train_loss) && row.loss_scale == scale);
    assert_true(state_hash(m) == state && weights_hash(m) == weights);
    assert_true(m->updates == 1 && m->step == 2 && row.step == 2 && m->skipped_in_a_row == 1);
    assert_true(m->loss_scale == scale / 2 && m->good_steps == 0 && row.good_steps == 0);

    without->loss_scale = m->loss_scale;
    for (int i = 0; i < 2; i++) {
        train_step(m, &row);
        step_on_windows_of(without, 2 + i, &other);
        assert_true(!row.skipped && !other.skipped && row.train_loss == other.train_loss && row.norm == other.norm);
        assert_true(row.lr == other.lr && row.lr == schedule_lr(&m->config.schedule, 1 + i) && row.good_steps == 1 + i);
    }
    assert_true(row.lr != schedule_lr(&m->config.schedule, 3) && m->updates == 3 && m->step == 4 && without->step == 3);
    assert_true(state_hash(m) == state_hash(without) && weights_hash(m) == weights_hash(without));
    assert_true(state_hash(m) != state && m->skipped_in_a_row == 0);
    close_trainer(m);
    close_trainer(without);
}

#endif
