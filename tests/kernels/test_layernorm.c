// test_layernorm.c - kernels/layernorm.h: forward, with the residual before it, again, and backward.
#include "cases.h"

#include "../../dev/kernels/layernorm.h"

// rows, C
static const Shape LAYERNORM_SHAPES[] = {{{1, 1}},    {{2, 3}},    {{31, 15}},  {{32, 48}}, {{33, 51}},
                                         {{63, 64}},  {{65, 1}},   {{97, 3}},   {{5, 768}}, {{3, 1030}},
                                         {{2, 2049}}, {{193, 16}}, {{129, 17}}, {{127, 95}}, {{9, 1600}}, {{3, 2176}},
                                         {{0}}};

// Rows of different means and spreads, and every 8th constant.
static Buffer *given_rows(Run *run, const char *name, size_t rows, size_t C) {
    Buffer *buffer = given(run, name, run->dtype, rows * C, 1);
    double *x = buffer->given;
    for (size_t i = 0; i < rows * C; i++) {
        size_t r = i / C;
        x[i] = (r % 8 == 5 ? 0 : x[i] * (1 + (double)(r % 3))) + 5 * ((double)(r % 4) - 1.3);
        x[i] = element_round(run->dtype, x[i]);
    }
    return buffer;
}

// mean, 1 / sqrt(variance + epsilon) and mean of |x| of a row.
static void naive_statistics(const double *x, size_t C, double *mean, double *rstd, double *absolute) {
    double squares = 0;
    *mean = *absolute = 0;
    for (size_t c = 0; c < C; c++) {
        *mean += x[c] / (double)C;
        *absolute += fabs(x[c]) / (double)C;
    }
    for (size_t c = 0; c < C; c++) squares += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1 / sqrt(squares / (double)C + 1e-5);
}

// in: x, w, b
static void naive_layernorm(const size_t *n, const Naive *x) {
    const size_t C = n[1];
    const double *in = x->in[0], *w = x->in[1], *b = x->in[2];
    for (size_t r = 0; r < n[0]; r++) {
        double mean, rstd, absolute;
        naive_statistics(in + r * C, C, &mean, &rstd, &absolute);
        for (size_t c = 0; c < C; c++) x->out[r * C + c] = (in[r * C + c] - mean) * rstd * w[c] + b[c];
    }
}

typedef struct {
    Buffer *y, *x, *a, *b;       // x = a + b, or given
    Buffer *w, *bias, *mean, *rstd;
} LayerNormForward;

static LayerNorm layernorm_of(const Run *run, const LayerNormForward *x) {
    const LayerNorm ln = {data(x->w), data(x->bias), data(x->mean), data(x->rstd), run->n[0], run->n[1]};
    return ln;
}

static void call_layernorm_forward(const Run *run, const Context *context) {
    const LayerNormForward *x = (const LayerNormForward *)run->operands;
    const LayerNorm ln = layernorm_of(run, x);
    if (run->variant) layernorm_recompute(context, data(x->y), data(x->x), &ln);
    else layernorm_forward(context, data(x->y), data(x->x), &ln);
}

// What mean and rstd of a row have to be.
static void want_statistics(const LayerNormForward *x, const double *row, size_t r, size_t C, double *m, double *s,
                            double *absolute) {
    naive_statistics(row, C, m, s, absolute);
    const double shift = GROWTH * U32 * *absolute * *s;  // an error of the mean adds its square to the variance
    want(x->mean, r, *m, *absolute);
    want(x->rstd, r, *s, *s * (2 + shift * shift / U32));
}

// Variants: forward; recompute, from the statistics that a forward left.
static void test_layernorm_forward(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    LayerNormForward x = {made(run, "y", MADE, run->dtype, rows * C, 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    x.mean = made(run, "mean", run->variant ? GIVEN : MADE, IN_FP32, rows, C);
    x.rstd = made(run, "rstd", run->variant ? GIVEN : MADE, IN_FP32, rows, C);
    x.x = given_rows(run, "x", rows, C);
    x.w = given(run, "w", run->dtype, C, 1);
    x.bias = given(run, "b", run->dtype, C, 1);
    const double *in = x.x->given, *w = x.w->given, *b = x.bias->given;
    const Naive naive = {x.y->want, NULL, {x.x->given, x.w->given, x.bias->given}};
    naive_layernorm(run->n, &naive);
    for (size_t r = 0; r < rows; r++) {
        double m, s, absolute;
        want_statistics(&x, in + r * C, r, C, &m, &s, &absolute);
        x.mean->given[r] = m;
        x.rstd->given[r] = s;
        for (size_t c = 0; c < C; c++) {
            x.y->size[r * C + c] = fabs(w[c]) * s * (absolute + 4 * fabs(in[r * C + c] - m)) + fabs(b[c]);
        }
    }
    execute(run, &x);
}

static void call_layernorm_residual(const Run *run, const Context *context) {
    const LayerNormForward *x = (const LayerNormForward *)run->operands;
    const LayerNorm ln = layernorm_of(run, x);
    if (run->variant != 1) {
        layernorm_forward_residual(context, data(x->y), data(x->x), data(x->a), data(x->b), &ln);
        return;
    }
    residual_forward(context, data(x->x), data(x->a), data(x->b), run->n[0] * run->n[1]);
    layernorm_forward(context, data(x->y), data(x->x), &ln);
}

// Variants: in one visit; the two operations; in one visit, the sum in the place of b.
static void test_layernorm_residual(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    const bool in_place = run->variant == 2;
    LayerNormForward x;
    x.y = made(run, "y", MADE, run->dtype, rows * C, 1);
    x.mean = made(run, "mean", MADE, IN_FP32, rows, C);
    x.rstd = made(run, "rstd", MADE, IN_FP32, rows, C);
    x.x = in_place ? NULL : made(run, "x", MADE, run->dtype, rows * C, 1);
    x.a = given_rows(run, "a", rows, C);
    x.b = made(run, "b", in_place ? CHANGED : GIVEN, run->dtype, rows * C, in_place);
    if (in_place) x.x = x.b;
    x.w = given(run, "w", run->dtype, C, 1);
    x.bias = given(run, "bias", run->dtype, C, 1);
    const double *w = x.w->given, *bias = x.bias->given;
    for (size_t i = 0; i < rows * C; i++) {
        x.b->given[i] = element_round(run->dtype, draw(run));
        want(x.x, i, element_round(run->dtype, x.a->given[i] + x.b->given[i]), EXACT);
    }
    for (size_t r = 0; r < rows; r++) {
        const double *sum = x.x->want + r * C;
        double m, s, absolute;
        want_statistics(&x, sum, r, C, &m, &s, &absolute);
        for (size_t c = 0; c < C; c++) {
            const double d = sum[c] - m;
            want(x.y, r * C + c, d * s * w[c] + bias[c], fabs(w[c]) * s * (absolute + 4 * fabs(d)) + fabs(bias[c]));
        }
    }
    execute(run, &x);
}

typedef struct {
    Buffer *dx, *dw, *db, *dy, *x, *mean, *rstd, *w;
} LayerNormBackward;

static void call_layernorm_backward(const Run *run, const Context *context) {
    const LayerNormBackward *x = (const LayerNormBackward *)run->operands;
    const LayerNorm ln = {data(x->w), NULL, data(x->mean), data(x->rstd), run->n[0], run->n[1]};
    const LayerNormGradients gradients = {data(x->dw), data(x->db), run->variant == 2};
    layernorm_backward(context, data(x->dx), &gradients, data(x->dy), data(x->x), &ln, run->variant > 0);
}

// Variants: all replaced; dx added to; dx, dw and db added to.
static void test_layernorm_backward(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    LayerNormBackward x;
    x.dx = made(run, "dx", run->variant ? CHANGED : MADE, run->dtype, rows * C, 1);
    x.dw = made(run, "dw", run->variant == 2 ? CHANGED : MADE, IN_FP32, C, rows);
    x.db = made(run, "db", run->variant == 2 ? CHANGED : MADE, IN_FP32, C, rows);
    x.dy = given(run, "dy", run->dtype, rows * C, 1);
    x.x = given_rows(run, "x", rows, C);
    x.mean = given(run, "mean", IN_FP32, rows, 1);
    x.rstd = given(run, "rstd", IN_FP32, rows, 1);
    x.w = given(run, "w", run->dtype, C, 1);
    for (size_t r = 0; r < rows; r++) {
        const double *dy = x.dy->given + r * C, *in = x.x->given + r * C, *w = x.w->given;
        double sum = 0, sum_n = 0, size = 0, size_n = 0, mean, rstd, absolute;
        naive_statistics(in, C, &mean, &rstd, &absolute);
        x.mean->given[r] = mean = element_round(IN_FP32, mean);
        x.rstd->given[r] = rstd = element_round(IN_FP32, rstd);
        for (size_t c = 0; c < C; c++) {
            double dn = dy[c] * w[c] / (double)C, normal = (in[c] - mean) * rstd;
            sum += dn;
            size += fabs(dn);
            sum_n += dn * normal;
            size_n += fabs(dn * normal);
            term(x.dw, c, dy[c] * normal, fabs(dy[c] * normal));
            term(x.db, c, dy[c], fabs(dy[c]));
        }
        for (size_t c = 0; c < C; c++) {  // the last addend: finite differences do not see how the mean was rounded
            double dn = dy[c] * w[c], normal = (in[c] - mean) * rstd;
            term(x.dx, r * C + c, rstd * (dn - sum - normal * sum_n),
                 rstd * (fabs(dn) + size + fabs(normal) * size_n) +
                     rstd * rstd * fabs(mean) * (size_n + fabs(normal) * size));
        }
    }
    execute(run, &x);
    const Naive naive = {array(run, rows * C), x.dy->given, {x.x->given, x.w->given, array(run, C)}};
    differences(run, naive_layernorm, &naive, rows * C, 0, x.dx, (double)(rows * C));
    differences(run, naive_layernorm, &naive, rows * C, 1, x.dw, (double)(rows * C));
    differences(run, naive_layernorm, &naive, rows * C, 2, x.db, (double)(rows * C));
}

static const Operation LAYERNORM_OPERATIONS[] = {
    {"layernorm_forward", test_layernorm_forward, call_layernorm_forward, LAYERNORM_SHAPES, {"", "recompute"}, 0,
     NULL},
    {"layernorm_residual", test_layernorm_residual, call_layernorm_residual, LAYERNORM_SHAPES,
     {"", "apart", "sum is b"}, 0, NULL},
    {"layernorm_backward", test_layernorm_backward, call_layernorm_backward, LAYERNORM_SHAPES,
     {"replace", "add dx", "add"}, DIFFERENCES, NULL},
};

static void test_layernorm_residual_in_one_visit(void **state) {
    (void)state;
    same_bits(&LAYERNORM_OPERATIONS[1], 0, 1);
}

#ifndef __CUDACC__
// The forward again, from its own statistics, gives its bits.
static void test_layernorm_recompute(void **state) {
    (void)state;
    enum { ROWS = 3, C = 1030 };
    static float x[ROWS * C], w[C], b[C], y[2][ROWS * C], mean[ROWS], rstd[ROWS];
    Device device = cpu_device(1);
    for (Dtype dtype = FP32; dtype < DTYPES; dtype = (Dtype)(dtype + 1)) {
        for (size_t i = 0; i < ROWS * C; i++) element_put((Element)dtype, x, i, random_uniform(1, 0, i) - 0.3);
        for (size_t c = 0; c < C; c++) {
            element_put((Element)dtype, w, c, random_uniform(2, 0, c));
            element_put((Element)dtype, b, c, random_uniform(3, 0, c));
        }
        const Context context = {&device, NULL, dtype};
        const LayerNorm ln = {w, b, mean, rstd, ROWS, C};
        layernorm_forward(&context, y[0], x, &ln);
        layernorm_recompute(&context, y[1], x, &ln);
        assert_memory_equal(y[0], y[1], ROWS * C * number_size(dtype));
    }
}

#endif

static const struct CMUnitTest LAYERNORM_TESTS[] = {
    cmocka_unit_test(test_layernorm_residual_in_one_visit),
#ifndef __CUDACC__
    cmocka_unit_test(test_layernorm_recompute),
#endif
};
static const Group LAYERNORM_GROUP = GROUP(LAYERNORM_OPERATIONS, LAYERNORM_TESTS);
KERNEL_MAIN(LAYERNORM_GROUP)
