// test_classifier.c - kernels/classifier.h: losses, their gradients, and the sum of losses.
#include "cases.h"

#include "tokens.h"

#include "naive_halves.h"
#include "naive_softmax.h"

#include "../../dev/kernels/classifier.h"

// rows, V, Vp
static const Shape CLASSIFIER_SHAPES[] = {
    {{1, 1, 128}},   {{1, 1, 1}},     {{3, 19, 128}},    {{5, 19, 19}},     {{31, 67, 128}},   {{33, 257, 384}},
    {{2, 300, 384}}, {{3, 300, 300}}, {{7, 1025, 1152}}, {{2, 1025, 1025}}, {{2, 2049, 2176}}, {{65, 16, 16}}, {{0}}};

typedef struct {
    const double *logits, *targets;
} NaiveClassifier;

static void naive_classifier(const size_t *n, double *losses, const void *inputs) {
    const NaiveClassifier *x = (const NaiveClassifier *)inputs;
    for (size_t r = 0; r < n[0]; r++) {
        const double *logits = x->logits + r * n[2], target = x->targets[r];
        losses[r] = target < 0 ? 0 : naive_log_sum(logits, n[1]) - logits[(size_t)target];
    }
}

typedef struct {
    Buffer *losses, *logits, *targets;
} ClassifierBuffers;

static void call_classifier(const Run *run, const Context *context, const void *operands) {
    const ClassifierBuffers *x = (const ClassifierBuffers *)operands;
    const size_t rows = run->n[0];
    const Classifier c = {data(x->losses), data(x->logits), data(x->targets), rows, run->n[1], run->n[2]};
    if (run->variant) classifier_forward_backward(context, &c, 1.0f / (float)rows);
    else classifier_forward(context, &c);
}

// Variants: losses; losses and gradient. Padding, and every 5th row, which has no target, are NaN: not read.
static void test_classifier(Run *run) {
    const size_t rows = run->n[0], V = run->n[1], Vp = run->n[2];
    const double scale = (double)(1.0f / (float)rows);
    ClassifierBuffers x;
    x.losses = made(run, "losses", MADE, IN_FP32, rows, 1);
    x.logits = buffer(run, "logits", run->variant ? CHANGED : GIVEN, run->dtype, rows * Vp, 3);
    x.targets = given_tokens(run, rows, V);
    Buffer *dlogits = x.logits;  // in their place
    dlogits->want = array(run, rows * Vp);
    dlogits->size = array(run, rows * Vp);
    dlogits->terms = run->variant;
    double *scales = array(run, rows), *targets = x.targets->given;
    for (size_t r = 0; r < rows; r++) {
        double *logits = x.logits->given + r * Vp;
        if (r % 5 == 4) targets[r] = -1;
        for (size_t v = targets[r] < 0 ? 0 : V; v < Vp; v++) logits[v] = NAN;
        if (targets[r] < 0) continue;
        double log_sum = naive_log_sum(logits, V), hit = logits[(size_t)targets[r]], top = logits[0];
        for (size_t v = 1; v < V; v++) top = fmax(top, logits[v]);
        scales[r] = scale;
        want(x.losses, r, log_sum - hit, 4 + (top - hit) + (log_sum - top));
        for (size_t v = 0; v < V; v++) {  // exp(x - top - ...): an error of that difference becomes a relative one
            double p = scale * exp(logits[v] - log_sum);
            want(dlogits, r * Vp + v, p, p * (4 + (top - logits[v]) + (log_sum - top)));
        }
        term(dlogits, r * Vp + (size_t)targets[r], -scale, scale);
    }
    execute(run, call_classifier, &x);
    const NaiveClassifier inputs = {x.logits->given, targets};
    const Forward forward = {naive_classifier, &inputs, scales, rows, (double)(rows * V * 20)};
    dlogits->role = MADE;  // for differences(): not added to
    if (run->variant) differences(run, &forward, x.logits->given, dlogits);
}

// losses
static const Shape SUM_SHAPES[] = {{{1}}, {{2}}, {{100}}, {{255}}, {{256}}, {{257}}, {{1000}}, {{10000}}, {{0}}};

typedef struct {
    Buffer *sum, *losses;
} ClassifierSumBuffers;

static void call_classifier_sum(const Run *run, const Context *context, const void *operands) {
    const ClassifierSumBuffers *x = (const ClassifierSumBuffers *)operands;
    classifier_sum(context->device, data(x->sum), data(x->losses), run->n[0], run->variant);
}

// Exactly: there is one order. Variants: replaced, added to.
static void test_classifier_sum(Run *run) {
    ClassifierSumBuffers x;
    x.sum = made(run, "sum", run->variant ? CHANGED : MADE, IN_FP64, 1, run->n[0]);
    x.losses = given(run, "losses", IN_FP32, run->n[0], 3);
    double partials[HALVES] = {0};
    for (size_t i = 0; i < run->n[0]; i++) {
        x.losses->given[i] *= exp2((double)(i % 61));  // so different that their sum is rounded: the order shows
        partials[i % HALVES] += x.losses->given[i];
    }
    want(x.sum, 0, x.sum->want[0] + naive_halves(partials), EXACT);
    execute(run, call_classifier_sum, &x);
}

#ifndef __CUDACC__
// Five rows whose losses and gradients are known, three that are not a number, and two without a target. Errors: those
// of the sum's logarithm beside the largest logit, in fp32.
static void test_classifier_special(void **state) {
    (void)state;
    enum { ROWS = 10, V = 4, Vp = 5 };
    const float inf = INFINITY, ln2 = 0.693147181f;
    const float logits[ROWS][V] = {{10240, -10240, 0, 5}, {10240, -10240, 0, 5}, {-10240, -10240, -10240, -10240},
                                   {1, -inf, 1, -inf},    {1, -inf, 1, -inf},    {NAN, 0, 0, 0},
                                   {0, 0, 0, NAN},        {inf, 0, 0, 0},        {NAN, 1, 1, 1},
                                   {1, 1, inf, 1}};
    const int32_t targets[ROWS] = {0, 1, 2, 0, 1, 1, 0, 1, -1, -1};
    const float losses_known[ROWS] = {0, 20480, 2 * ln2, ln2, inf, NAN, NAN, NAN, 0, 0};
    const float gradients_known[ROWS][V] = {{0}, {0.5f, -0.5f, 0, 0}, {0.125f, 0.125f, -0.375f, 0.125f},
                                            {-0.25f, 0, 0.25f, 0}, {0.25f, -0.5f, 0.25f, 0}};
    Device device = cpu_device(1);
    for (Dtype dtype = FP32; dtype < DTYPES; dtype = (Dtype)(dtype + 1)) {
        float losses[ROWS], stored[ROWS * Vp];
        for (size_t i = 0; i < ROWS * Vp; i++) {
            element_put((Element)dtype, stored, i, i % Vp == V ? NAN : (double)logits[i / Vp][i % Vp]);
        }
        const Context context = {&device, NULL, dtype};
        const Classifier rows = {losses, stored, targets, ROWS, V, Vp};
        classifier_forward_backward(&context, &rows, 0.5f);
        for (size_t r = 0; r < ROWS; r++) {
            double tolerance = r < 5 ? 4 * U32 : 0, loss = (double)losses_known[r];
            if (isnan(loss)) assert_true(isnan(losses[r]));
            else assert_true((double)losses[r] == loss || fabs((double)losses[r] - loss) <= tolerance);
            for (size_t v = 0; v < V; v++) {
                double d = (double)number_get(dtype, stored, r * Vp + v), known = (double)gradients_known[r][v];
                const double more = dtype == FP32 ? 0 : U16 / 4;
                if (!isnan(loss)) assert_true(fabs(d - known) <= tolerance + more);
                else if (v > 0) assert_true(isnan(d));
            }
            assert_true(number_get(dtype, stored, r * Vp + V) == 0);
        }
    }
}

// No losses at all, and a sum of several calls.
static void test_classifier_sum_of_parts(void **state) {
    (void)state;
    Device device = cpu_device(1);
    static float losses[10000];
    double sum = 0, got = 0;
    for (size_t i = 0; i < 10000; i++) sum += (double)(losses[i] = (float)random_uniform(1, 2, i) * 11);
    classifier_sum(&device, &got, losses, 10000, false);
    assert_true(fabs(got - sum) <= 1e-12 * sum);  // another order of additions
    classifier_sum(&device, &got, losses, 0, true);
    assert_true(fabs(got - sum) <= 1e-12 * sum);
    classifier_sum(&device, &got, losses + 7, 1, true);
    assert_true(fabs(got - sum - (double)losses[7]) <= 1e-12 * sum);
    classifier_sum(&device, &got, losses, 0, false);
    assert_true(got == 0);
    device.kind = DEVICE_PLAN;
    classifier_sum(&device, NULL, NULL, 10000, false);
    assert_true(device.bytes == 40000);
}
#endif

static const Operation CLASSIFIER_OPERATIONS[] = {
    {"classifier", test_classifier, CLASSIFIER_SHAPES, {"losses", "gradient"}, DIFFERENCES, NULL},
    {"classifier_sum", test_classifier_sum, SUM_SHAPES, {"replace", "add"}, FP32_ONLY | ONE_ORDER, NULL},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest CLASSIFIER_TESTS[] = {
#ifndef __CUDACC__
    cmocka_unit_test(test_classifier_special),
    cmocka_unit_test(test_classifier_sum_of_parts),
#endif
    NO_MORE_TESTS};
static const Group CLASSIFIER_GROUP = {CLASSIFIER_OPERATIONS, CLASSIFIER_TESTS};
KERNEL_MAIN(CLASSIFIER_GROUP)
