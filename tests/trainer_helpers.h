// trainer_helpers.h - the whole trainer within a test program: opened from a command line, run step by step.
#ifndef TRAINER_HELPERS_H
#define TRAINER_HELPERS_H

#include "test_helpers.h"

#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../train_gpt.cu"
#pragma GCC diagnostic pop

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
    Trainer *m = trainer_open(n, words);
    configure_position(m);
    plan(m, &m->config, &m->plan, NULL, NULL);
    return m;
}

// Element `at` of a block in a home that is in this process's memory.
static inline float *home_at(const Trainer *m, int home, size_t block, size_t at) {
    return (float *)(void *)store_at(&m->store, home, block, at);
}

// Room for a block on the host, as transfers need it.
static inline float *open_block(const Trainer *m) {
    size_t n_bytes = size_max(m->store.embedding.n_elements, m->store.layer.n_elements) * sizeof(float);
    void *values = NULL;
    assert_int_equal(posix_memalign(&values, MEMORY_PAGE, n_bytes), 0);
#ifdef __CUDACC__
    if (m->device.real == DEVICE_CUDA) CUDA_CHECK(cudaHostRegister(values, n_bytes, cudaHostRegisterDefault));
#endif
    return (float *)values;
}

static inline void close_block(const Trainer *m, float *values) {
#ifdef __CUDACC__
    if (m->device.real == DEVICE_CUDA) CUDA_CHECK(cudaHostUnregister(values));
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
            for (size_t i = 0, first, end;
                 m->ranks.rank == 0 && checkpoint_stretch(layout, 0, layout->n_elements, &i, &first, &end);) {
                hash = checkpoint_hash(hash, values + first, (end - first) * sizeof(float));
            }
        }
    }
    close_block(m, values);
    return hash;
}

// The ledger of the run is the plan's, to the byte, in every phase that has occurred.
static inline void assert_as_planned(const Trainer *m) {
    for (int p = 0; p < PHASES; p++) {
        const PhaseLedger *run = &m->memory.ledger.phases[p], *planned = &m->plan.phases[p];
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
    result.peak = ledger_peak(&m->memory.ledger, TIER_DEVICE);
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

#endif
