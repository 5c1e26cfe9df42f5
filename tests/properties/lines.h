// lines.h - runs from command lines, compared: what several properties need.
#ifndef LINES_H
#define LINES_H

#include "../trainer_helpers.h"

// The configurations whose numbers are compared: TINY, and ODD with head size 17, positions to spare and odd lengths.
static const char *const MODELS[] = {"-e 2x48x3 --vocab 67 -t 32 -b 2",
                                     "-e 3x51x3 --vocab 67 -t 37 --max-length 41 -b 3"};

// A run of so many steps with uniform random tokens, neither validation nor samples.
static inline RunResult run_line(int steps, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 %s", line);
    start_trainer(trainer);
    RunResult result = run_steps(trainer, steps);
    close_trainer(trainer);
    return result;
}

// Losses differ by `loss` at most and norms by the part `norm`, in each of the steps.
static inline void assert_close_runs(const RunResult *a, const RunResult *b, int steps, double loss, double norm,
                                     const char *what) {
    for (int i = 0; i < steps; i++) {
        if (!(fabs(a->losses[i] - b->losses[i]) <= loss && fabs(a->norms[i] / b->norms[i] - 1) <= norm)) {
            fail_msg("%s, step %d: losses %.9g %.9g, norms %.9g %.9g", what, i + 1, a->losses[i], b->losses[i],
                     a->norms[i], b->norms[i]);
        }
    }
}

// Two micro-batches of TINY in fp16.
static inline Trainer *fp16_trainer(const char *more) {
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 -p fp16 %s -d 128 %s", MODELS[0], more);
    start_trainer(trainer);
    return trainer;
}

#endif
