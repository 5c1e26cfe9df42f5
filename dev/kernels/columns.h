// columns.h - sums over the rows of a matrix (gradients of biases, of LayerNorm's parameters): how rows are shared out.
//
// On CUDA they go through partial sums: a group is a block's share of the rows, its warps take every COLUMNS_WARPS-th
// of them and are added in order, then the groups are, in order (columns_total). Groups are a function of the number of
// rows alone, so bits don't depend on the GPU; and PLAN can count their bytes.
#ifndef COLUMNS_H
#define COLUMNS_H

#include "../number.h"

enum { COLUMNS_WARPS = 8, COLUMNS_GROUPS = 256 };

// Groups for sums over `rows` rows on CUDA, each of at least `least` of them.
static inline size_t columns_groups(size_t rows, size_t least) {
    return size_max(1, size_min(COLUMNS_GROUPS, size_ceil_div(rows, least)));
}

#ifdef __CUDACC__
#include "columns.cuh"
#endif

#endif
