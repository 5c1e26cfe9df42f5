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

typedef struct {
    double mean, rstd, absolute;  // rstd: 1 / sqrt(variance + epsilon); absolute: the mean of |x|
} NaiveStatistics;

static NaiveStatistics naive_statistics(const double *row, size_t C) {
    NaiveStatistics s = {0, 0, 0};
    double squares = 0;
    for (size_t c = 0; c < C; c++) {
        s.mean += row[c] / (double)C;
        s.absolute += fabs(row[c]) / (double)C;
    }
    for (size_t c = 0; c < C; c++) squares += (row[c] - s.mean) * (row[c] - s.mean);
    s.rstd = 1 / sqrt(squares / (double)C + 1e-5);
    return s;
}

typedef struct {
    const double *x, *w, *b;
} NaiveLayerNorm;

static void naive_layernorm(const size_t *n, double *y, const void *inputs) {
    const NaiveLayerNorm *of = (const NaiveLayerNorm *)inputs;
    const size_t C = n[1];
    for (size_t r = 0; r < n[0]; r++) {
        const double *x = of->x + r * C;
        const NaiveStatistics s = naive_statistics(x, C);
        for (size_t c = 0; c < C; c++) y[r * C + c] = (x[c] - s.mean) * s.rstd * of->w[c] + of->b[c];
    }
}

typedef struct {
    Buffer *y, *x, *a, *b;       // x = a + b, or given
    Buffer *w, *bias, *mean, *rstd;
} LayerNormForwardBuffers;

static LayerNorm layernorm_of(const Run *run, const LayerNormForwardBuffers *x) {
    const LayerNorm ln = {data(x->w), data(x->bias), data(x->mean), data(x->rstd), run->n[0], run->n[1]};
    return ln;
}

static void call_layernorm_forward(const Run *run, const Context *context, const void *operands) {
    const LayerNormForwardBuffers *x = (const LayerNormForwardBuffers *)operands;
    const LayerNorm ln = layernorm_of(run, x);
    if (run->variant) layernorm_recompute(context, data(x->y), data(x->x), &ln);
    else layernorm_forward(context, data(x->y), data(x->x), &ln);
}

// Says what the mean and rstd of a row have to be, and returns them.
static NaiveStatistics want_statistics(const LayerNormForwardBuffers *x, const double *row, size_t r, size_t C) {
    const NaiveStatistics s = naive_statistics(row, C);
    const double shift = GROWTH * U32 * s.absolute * s.rstd;  // an error of the mean adds its square to the variance
    want(x->mean, r, s.mean, s.absolute);
    want(x->rstd, r, s.rstd, s.rstd * (2 + shift * shift / U32));
    return s;
}

// Variants: forward; recompute, from the statistics that a forward left.
static void test_layernorm_forward(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    LayerNormForwardBuffers x;
    x.y = made(run, "y", MADE, run->dtype, rows * C, 1);
    x.mean = made(run, "mean", run->variant ? GIVEN : MADE, IN_FP32, rows, C);
    x.rstd = made(run, "rstd", run->variant ? GIVEN : MADE, IN_FP32, rows, C);
    x.x = given_rows(run, "x", rows, C);
    x.w = given(run, "w", run->dtype, C, 1);
    x.bias = given(run, "b", run->dtype, C, 1);
    const double *in = x.x->given, *w = x.w->given, *b = x.bias->given;
    const NaiveLayerNorm inputs = {in, w, b};
    naive_layernorm(run->n, x.y->want, &inputs);
    for (size_t r = 0; r < rows; r++) {
        const NaiveStatistics s = want_statistics(&x, in + r * C, r, C);
        x.mean->given[r] = s.mean;
        x.rstd->given[r] = s.rstd;
        for (size_t c = 0; c < C; c++) {
            const double deviation = fabs(in[r * C + c] - s.mean);
            x.y->size[r * C + c] = fabs(w[c]) * s.rstd * (s.absolute + 4 * deviation) + fabs(b[c]);
        }
    }
    execute(run, call_layernorm_forward, &x);
}

static void call_layernorm_residual(const Run *run, const Context *context, const void *operands) {
    const LayerNormForwardBuffers *x = (const LayerNormForwardBuffers *)operands;
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
    LayerNormForwardBuffers x;
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
        const NaiveStatistics s = want_statistics(&x, sum, r, C);
        for (size_t c = 0; c < C; c++) {
            const double d = sum[c] - s.mean;
            want(x.y, r * C + c, d * s.rstd * w[c] + bias[c],
                 fabs(w[c]) * s.rstd * (s.absolute + 4 * fabs(d)) + fabs(bias[c]));
        }
    }
    execute(run, call_layernorm_residual, &x);
}

typedef struct {
    Buffer *dx, *dw, *db, *dy, *x, *mean, *rstd, *w;
} LayerNormBackwardBuffers;

static void call_layernorm_backward(const Run *run, const Context *context, const void *operands) {
    const LayerNormBackwardBuffers *x = (const LayerNormBackwardBuffers *)operands;
    const LayerNorm ln = {data(x->w), NULL, data(x->mean), data(x->rstd), run->n[0], run->n[1]};
    const LayerNormGradients gradients = {data(x->dw), data(x->db), run->variant == 2};
    layernorm_backward(context, data(x->dx), &gradients, data(x->dy), data(x->x), &ln, run->variant > 0);
}

// Variants: all replaced; dx added to; dx, dw and db added to.
static void test_layernorm_backward(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    LayerNormBackwardBuffers x;
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
        double sum = 0, sum_n = 0, size = 0, size_n = 0;
        const NaiveStatistics s = naive_statistics(in, C);
        const double mean = element_round(IN_FP32, s.mean), rstd = element_round(IN_FP32, s.rstd);
        x.mean->given[r] = mean;
        x.rstd->given[r] = rstd;
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
    execute(run, call_layernorm_backward, &x);
    double *b = array(run, C);
    const NaiveLayerNorm inputs = {x.x->given, x.w->given, b};
    const Forward forward = {naive_layernorm, &inputs, x.dy->given, rows * C, (double)(rows * C)};
    differences(run, &forward, x.x->given, x.dx);
    differences(run, &forward, x.w->given, x.dw);
    differences(run, &forward, b, x.db);
}

static const Operation LAYERNORM_OPERATIONS[] = {
    {"layernorm_forward", test_layernorm_forward, LAYERNORM_SHAPES, {"", "recompute"}, 0,
     NULL},
    {"layernorm_residual", test_layernorm_residual, LAYERNORM_SHAPES,
     {"", "apart", "sum is b"}, 0, NULL},
    {"layernorm_backward", test_layernorm_backward, LAYERNORM_SHAPES,
     {"replace", "add dx", "add"}, DIFFERENCES, NULL},
    NO_MORE_OPERATIONS};

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
    NO_MORE_TESTS};
static const Group LAYERNORM_GROUP = {LAYERNORM_OPERATIONS, LAYERNORM_TESTS};
KERNEL_MAIN(LAYERNORM_GROUP)
