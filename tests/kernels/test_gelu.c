// test_gelu.c - kernels/gelu.h: forward, backward, and backward with the sums for the bias.
#include "cases.h"

#include "elements.h"

#include "../../dev/kernels/gelu.h"

static double naive_gelu_u(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }

static void naive_gelu(const size_t *n, double *y, const void *inputs) {
    const double *x = (const double *)inputs;
    for (size_t i = 0; i < n[0]; i++) y[i] = x[i] / (1 + exp(-2 * naive_gelu_u(x[i])));
}

// The derivative at x, and the error of it in units of u: 1 - t^2 is as good as t, and 0 where t is rounded to 1.
static double naive_gelu_slope(double x, double *size) {
    const double t = tanh(naive_gelu_u(x)), slope = 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
    *size = 1 + (fabs(x) < 6 ? 2 * fabs(x) * slope : 0);
    return (1 + t) / 2 + x / 2 * (1 - t * t) * slope;
}

// Also where tanh does not change any more.
static Buffer *given_gelu(Run *run) {
    static const double SPECIAL[] = {0, -0.0, 1e-30, -1e-30, 10, -10, 1e18, -1e18, 1e20, -1e20, 5.5, -5.5, 1, -1, 3e-5};
    Buffer *x = given(run, "x", run->dtype, run->n[0], 2);
    for (size_t i = 0; i < sizeof(SPECIAL) / sizeof(SPECIAL[0]) && run->n[0] > 16; i++) {
        const double special = run->dtype == IN_FP16 ? fmax(-6e4, fmin(6e4, SPECIAL[i])) : SPECIAL[i];
        x->given[i] = element_round(run->dtype, special);
    }
    return x;
}

typedef struct {
    Buffer *out, *in;
} GeluForwardBuffers;

static void call_gelu_forward(const Run *run, const Context *context, const void *operands) {
    const GeluForwardBuffers *x = (const GeluForwardBuffers *)operands;
    gelu_forward(context, data(x->out), data(x->in), run->n[0]);
}

static void test_gelu_forward(Run *run) {
    GeluForwardBuffers x;
    x.out = made(run, "y", MADE, run->dtype, run->n[0], 1);
    x.in = given_gelu(run);
    naive_gelu(run->n, x.out->want, x.in->given);
    for (size_t i = 0; i < run->n[0]; i++) {
        // The absolute error of the exponent is exp's relative one.
        const double exponent = fmin(fabs(2 * naive_gelu_u(x.in->given[i])), 88);
        x.out->size[i] = fabs(x.out->want[i]) * (1 + exponent) + 1e-29;  // exp saturates
    }
    execute(run, call_gelu_forward, &x);
}

typedef struct {
    Buffer *dx, *dbias, *dy, *in;
} GeluBackwardBuffers;

static void call_gelu_backward(const Run *run, const Context *context, const void *operands) {
    const GeluBackwardBuffers *x = (const GeluBackwardBuffers *)operands;
    gelu_backward(context, data(x->dx), data(x->dy), data(x->in), run->n[0]);
}

// Variants: apart; dx is dy.
static void test_gelu_backward(Run *run) {
    const size_t n = run->n[0];
    GeluBackwardBuffers x;
    x.dx = run->variant == 0 ? made(run, "dx", MADE, run->dtype, n, 1) : NULL;
    x.dy = given_or_changed(run, "dy", run->variant == 1, n);
    if (run->variant) x.dx = x.dy;
    x.in = given_gelu(run);
    for (size_t i = 0; i < n; i++) {
        double size, slope = naive_gelu_slope(x.in->given[i], &size);
        x.dy->given[i] = element_round(run->dtype, draw(run));
        want(x.dx, i, x.dy->given[i] * slope, fabs(x.dy->given[i]) * size);
    }
    execute(run, call_gelu_backward, &x);
    const Forward forward = {naive_gelu, x.in->given, x.dy->given, n, 1};
    if (run->variant == 0 && n < 17) differences(run, &forward, x.in->given, x.dx);
}

static void call_gelu_backward_bias(const Run *run, const Context *context, const void *operands) {
    const GeluBackwardBuffers *x = (const GeluBackwardBuffers *)operands;
    const size_t rows = run->n[0], C = run->n[1];
    if (run->variant < 2) {
        gelu_backward_bias(context, data(x->dx), data(x->dbias), data(x->dy), data(x->in), rows, C, run->variant == 1);
        return;
    }
    gelu_backward(context, data(x->dx), data(x->dy), data(x->in), rows * C);
    bias_backward(context, data(x->dbias), data(x->dx), rows, C, false);
}

// rows, C
static const Shape GELU_BIAS_SHAPES[] = {{{1, 1}},    {{2, 3}},    {{31, 15}},  {{32, 48}}, {{33, 51}},
                                         {{63, 64}},  {{65, 1}},   {{97, 3}},   {{5, 768}}, {{3, 1030}},
                                         {{2, 2049}}, {{193, 16}}, {{129, 17}}, {{127, 95}}, {{9, 1600}}, {{3, 2176}},
                                         {{0}}};

// dx in the place of dy, (rows, C), and the sums of its columns as it was stored. Variants: replaced, added to; the two
// operations.
static void test_gelu_backward_bias(Run *run) {
    const size_t rows = run->n[0], C = run->n[1];
    GeluBackwardBuffers x;
    x.dx = x.dy = made(run, "dx", CHANGED, run->dtype, rows * C, 1);
    x.dbias = made(run, "dbias", run->variant == 1 ? CHANGED : MADE, IN_FP32, C, rows);
    x.in = given(run, "x", run->dtype, rows * C, 2);
    for (size_t i = 0; i < rows * C; i++) {
        double size, slope = naive_gelu_slope(x.in->given[i], &size);
        want(x.dx, i, x.dx->given[i] * slope, fabs(x.dx->given[i]) * size);
    }
    execute(run, call_gelu_backward_bias, &x);
    for (size_t i = 0; i < rows * C; i++) term(x.dbias, i % C, x.dx->got[i], fabs(x.dx->got[i]));
}

static const Operation GELU_OPERATIONS[] = {
    {"gelu_forward", test_gelu_forward, ELEMENT_SHAPES, {""}, ONE_ORDER, NULL},
    {"gelu_backward", test_gelu_backward, ELEMENT_SHAPES, {"apart", "dx is dy"},
     ONE_ORDER | DIFFERENCES, NULL},
    {"gelu_backward_bias", test_gelu_backward_bias, GELU_BIAS_SHAPES,
     {"replace", "add", "apart"}, 0, NULL},
    NO_MORE_OPERATIONS};

static void test_gelu_backward_bias_in_one_visit(void **state) {
    (void)state;
    same_bits(&GELU_OPERATIONS[2], 0, 2);
}

static const struct CMUnitTest GELU_TESTS[] = {cmocka_unit_test(test_gelu_backward_bias_in_one_visit), NO_MORE_TESTS};
static const Group GELU_GROUP = {GELU_OPERATIONS, GELU_TESTS};
KERNEL_MAIN(GELU_GROUP)
