// schedule.h - the learning rate as a function of the number of applied updates.
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *kind;  // cosine, linear, constant, wsd (warm-up, stable, then linear decay over the last fifth)
    double lr;         // highest
    double final_fraction;
    int64_t warmup, steps;
} Schedule;

// Learning rate of update t = 0 ... steps-1. Warm-up: lr (t + 1) / warmup.
static inline double schedule_lr(const Schedule *s, int64_t t) {
    if (t < s->warmup) return s->lr * (double)(t + 1) / (double)s->warmup;
    int64_t start = s->warmup;
    if (strcmp(s->kind, "constant") == 0) return s->lr;
    if (strcmp(s->kind, "wsd") == 0 && s->steps - s->steps / 5 > start) start = s->steps - s->steps / 5;
    if (t < start) return s->lr;
    double done = s->steps > start ? (double)(t - start) / (double)(s->steps - start) : 1.0;
    if (done > 1.0) done = 1.0;
    double lowest = s->lr * s->final_fraction;
    if (strcmp(s->kind, "cosine") == 0)
        return lowest + 0.5 * (1.0 + cos(3.14159265358979323846 * done)) * (s->lr - lowest);
    return lowest + (1.0 - done) * (s->lr - lowest);
}

#endif
