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

// A matrix whose element (i, j) is x[i di + j dj].
typedef struct {
    const double *x;
    size_t di, dj;
} NaiveMatrix;

// Adds a (M,K) . b (K,N) to c (M,N), and |a| . |b| to size, unless that is NULL.
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
            if (size) size[i * N + j] += absolute;
        }
    }
}

typedef struct {
    const double *in, *weight, *bias;
} NaiveMatmul;

// out = in . weight^T + bias, all in rows; size: of its terms, or NULL
static inline void naive_matmul_sized(const size_t *n, double *out, double *size, const NaiveMatmul *x) {
    const size_t rows = n[0], IC = n[1], OC = n[2];
    const NaiveMatrix in = {x->in, IC, 1}, weight = {x->weight, 1, IC};
    for (size_t i = 0; i < rows * OC; i++) {
        out[i] = x->bias[i % OC];
        if (size) size[i] = fabs(out[i]);
    }
    naive_product(out, size, rows, OC, IC, in, weight);
}

static inline void naive_matmul(const size_t *n, double *out, const void *inputs) {
    naive_matmul_sized(n, out, NULL, (const NaiveMatmul *)inputs);
}

#endif
