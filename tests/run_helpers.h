// run_helpers.h - the whole program within another: a trainer that is opened, planned, started, and closed with its
// run.
#ifndef RUN_HELPERS_H
#define RUN_HELPERS_H

#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../train_gpt.cu"
#pragma GCC diagnostic pop

// The run that a trainer is part of.
static inline Run *run_of(const Trainer *trainer) {
    return (Run *)(void *)((char *)(uintptr_t)trainer - offsetof(Run, trainer));
}

static inline void start_trainer(Trainer *trainer) { run_start(run_of(trainer)); }

static inline void close_trainer(Trainer *trainer) { run_close(run_of(trainer)); }

// Elements of all blocks, for N ranks.
static inline size_t padded_elements(const ModelShape *shape, size_t N) {
    BlockLayout embedding, layer;
    layout_blocks(shape, N, &embedding, &layer);
    return embedding.n_elements + shape->L * layer.n_elements;
}

// Plans an open run; gives its trainer.
static inline Trainer *plan_trainer(Run *r) {
    plan_make(&r->planner, &r->job.config, r->device.matmul, &r->plan);
    return &r->trainer;
}

#endif
