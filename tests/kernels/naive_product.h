// naive_product.h - a product of matrices with its bias, for what computes its parts.
#ifndef NAIVE_PRODUCT_H
#define NAIVE_PRODUCT_H

#include "cases.h"

// rows, IC, OC; the last ones are cut in all directions (MATMUL_M, MATMUL_N, MATMUL_K).
static const Shape MATMUL_SHAPES[] = {
    {{1, 1, 1}},      {{1, 5, 6}},       {{5, 6, 7}},     {{7, 1, 15}},     {{6, 15, 1}},    {{15, 16, 17}},
    {{16, 17, 48}},   {{17, 48, 16}},    {{48, 7, 97}},   {{97, 97, 5}},    {{1, 385, 257}}, {{193, 191, 193}},
    {{192, 192, 17}}, {{191, 5, 192}},   {{5, 257, 385}}, {{255, 48, 191}}, {{256, 256, 48}}, {{257, 255, 97}},
    {{385, 17, 256}}, {{48, 256, 255}},  {{385, 193, 7}}, {{3, 768, 1030}}, {{600, 3, 800}}, {{513, 130, 65}},
    {{1030, 9, 1030}}, {{9, 1030, 1030}}, {{1030, 1030, 9}}, {{0}}};

// The operands of a product, of which each operation has some.
typedef struct {
    Buffer *made, *dout, *in, *weight, *bias;
} Product;

// A matrix whose element (i, j) is x[i di + j dj].
typedef struct {
    const double *x;
    size_t di, dj;
} NaiveMatrix;

// Adds a (M,K) . b (K,N) to c (M,N), and |a| . |b| to size.
static inline void naive_product(double *c, double *size, size_t M, size_t N, size_t K, NaiveMatrix a, NaiveMatrix b) {
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++) {
            double sum = 0, absolute = 0;
            for (size_t k = 0; k < K; k++) {
                double product = a.x[i * a.di + k * a.dj] * b.x[k * b.di + j * b.dj];
                sum += product;
                absolute += fabs(product);
            }
            c[i * N + j] += sum;
            size[i * N + j] += absolute;
        }
    }
}

// in: in, weight, bias, and for out's size
static inline void naive_matmul(const size_t *n, const Naive *x) {
    const NaiveMatrix in = {x->in[0], n[1], 1}, weight = {x->in[1], 1, n[1]};
    for (size_t i = 0; i < n[0] * n[2]; i++) {
        x->out[i] = x->in[2][i % n[2]];
        x->in[3][i] = fabs(x->out[i]);
    }
    naive_product(x->out, x->in[3], n[0], n[2], n[1], in, weight);
}

#endif
