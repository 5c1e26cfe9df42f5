// matmul_shape.h - one product of matrices: sizes, how they are stored, in which types, what is done to the sum.
//
// Shapes are compared as bytes, so they are made by matmul_shape(), which leaves none of them undefined.
#ifndef MATMUL_SHAPE_H
#define MATMUL_SHAPE_H

#include "../number.h"

// One product C (M, N) = A (M, K) . B (K, N), each stored in rows of its own columns, or transposed.
typedef struct {
    size_t M, N, K;
    bool a_transposed, b_transposed;  // A stored (K, M), B stored (N, K)
    Dtype a_dtype, b_dtype, c_dtype;
    bool bias, add;  // C = A . B + bias (in a_dtype); C += A . B
    bool gradient;   // C is a gradient's sum: the product comes with `add` and without, and takes the same either way
    int alignment;   // bytes that all addresses are multiples of, at most 16; only CUDA asks
} MatmulShape;

static inline MatmulShape matmul_shape(Dtype dtype, Dtype c_dtype, size_t M, size_t N, size_t K) {
    MatmulShape shape;
    memset(&shape, 0, sizeof(shape));
    shape.M = M;
    shape.N = N;
    shape.K = K;
    shape.a_dtype = shape.b_dtype = dtype;
    shape.c_dtype = c_dtype;
    return shape;
}

#endif
