// naive_softmax.h - the logarithm of a sum of exponentials, for the classifier and for attention.
#ifndef NAIVE_SOFTMAX_H
#define NAIVE_SOFTMAX_H

#include <math.h>
#include <stddef.h>

static inline double naive_log_sum(const double *logits, size_t V) {
    double top = -INFINITY, sum = 0;
    for (size_t v = 0; v < V; v++) top = fmax(top, logits[v]);
    for (size_t v = 0; v < V; v++) sum += exp(logits[v] - top);
    return top + log(sum);
}

#endif
