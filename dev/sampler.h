// sampler.h - the next token from the logits of all.
#ifndef SAMPLER_H
#define SAMPLER_H

#include <math.h>
#include <stddef.h>

// Draws from softmax(logits / temperature); temperature 0 takes the largest. Padding has no chance.
static inline int sample_token(const float *logits, size_t V, double temperature, double uniform) {
    size_t best = 0;
    for (size_t v = 1; v < V; v++) {
        if (logits[v] > logits[best]) best = v;
    }
    if (temperature <= 0.0) return (int)best;
    double sum = 0.0, at = 0.0;
    for (size_t v = 0; v < V; v++) sum += exp((double)(logits[v] - logits[best]) / temperature);
    for (size_t v = 0; v < V; v++) {
        at += exp((double)(logits[v] - logits[best]) / temperature);
        if (at > uniform * sum) return (int)v;
    }
    return (int)best;
}

#endif
