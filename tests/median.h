// median.h - what the benchmarks report of several measurements.
#ifndef MEDIAN_H
#define MEDIAN_H

#include <stdlib.h>

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// Sorts x (n).
static inline double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof(double), compare_doubles);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

#endif
