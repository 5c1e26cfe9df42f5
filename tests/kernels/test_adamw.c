// test_adamw.c - kernels/adamw.h: updates of every length, what they do with special values, and skipped ones.
#include "cases.h"

#include "../../dev/kernels/adamw.h"

// n, n_decay
static const Shape ADAMW_SHAPES[] = {{{1, 1}},       {{1023, 1023}}, {{1024, 1}},    {{1025, 1024}}, {{2049, 1025}},
                                     {{4095, 0}},    {{4096, 2000}}, {{4097, 4097}}, {{0}}};
static const float ADAMW_LR = 3e-3f, ADAMW_DECAY = 0.1f, ADAMW_SCALE = 0.37f;
enum { ADAMW_T = 3 };

static double naive_flush(double x) { return fabs(x) < (double)FLT_MIN ? 0 : x; }

typedef struct {
    Buffer *weights, *master, *m, *v, *gradients;
} AdamWBuffers;

static void call_adamw(const Run *run, const Context *context, const void *operands) {
    const AdamWBuffers *x = (const AdamWBuffers *)operands;
    const AdamW step = adamw_step(ADAMW_LR, ADAMW_DECAY, ADAMW_T, ADAMW_SCALE, run->variant == 0);
    const AdamWOperands of = {data(x->weights), context->dtype == FP32 ? ANY(NULL) : data(x->master), data(x->m),
                              data(x->v), data(x->gradients), run->n[0], run->n[1]};
    adamw(context->device, &step, context->dtype, &of);
}

// Variants: applied; skipped, when nothing may change. Every 7th and 11th element has gradients and moments that are
// zero or so small that the new moments are.
static void test_adamw(Run *run) {
    const size_t n = run->n[0], n_decay = run->n[1], terms = run->variant ? 0 : 1;
    const bool fp32 = run->dtype == IN_FP32;
    const Role role = run->variant ? GIVEN : CHANGED;
    AdamWBuffers x;
    x.weights = made(run, "weights", role == CHANGED && !fp32 ? MADE : role, run->dtype, n, terms);
    x.master = made(run, "master weights", fp32 ? GIVEN : role, IN_FP32, n, fp32 ? 0 : terms);
    x.m = made(run, "m", role, IN_FP32, n, terms);
    x.v = made(run, "v", role, IN_FP32, n, terms);
    x.gradients = given(run, "gradients", IN_FP32, n, 1);
    Buffer *w = fp32 ? x.weights : x.master;
    double *m = x.m->given, *v = x.v->given, *g = x.gradients->given;
    const double b1 = (double)0.9f, b2 = (double)0.95f, lr = (double)ADAMW_LR;
    for (size_t i = 0; i < n; i++) {
        v[i] = element_round(IN_FP32, 0.01 * v[i] * v[i]);
        if (i % 7 == 6) m[i] = v[i] = g[i] = 0;
        if (i % 11 == 10) {
            m[i] = v[i] = element_round(IN_FP32, 1e-38);
            g[i] = element_round(IN_FP32, 1e-25);
        }
        double gradient = g[i] * (double)ADAMW_SCALE, decay = i < n_decay ? (double)ADAMW_DECAY : 0;
        double new_m = naive_flush(b1 * m[i] + (1 - b1) * gradient);
        double new_v = naive_flush(b2 * v[i] + (1 - b2) * gradient * gradient);
        double m_size = b1 * fabs(m[i]) + (1 - b1) * fabs(gradient);
        double step = 1 / (1 - pow(b1, ADAMW_T)) / (sqrt(new_v / (1 - pow(b2, ADAMW_T))) + 1e-8);
        want(x.m, i, new_m, new_m == 0 ? 0 : m_size);
        want(x.v, i, new_v, new_v);
        want(w, i, w->given[i] - lr * (new_m * step + decay * w->given[i]),
             fabs(w->given[i]) + lr * (2 * m_size * step + fabs(w->given[i])));
    }
    execute(run, call_adamw, &x);
    for (size_t i = 0; i < n && !fp32; i++) {
        want(x.weights, i, element_round(run->dtype, x.master->got[i]), EXACT);
    }
}

static const Operation ADAMW_OPERATIONS[] = {
    {"adamw", test_adamw, ADAMW_SHAPES, {"", "skipped"}, ONE_ORDER, NULL},
    NO_MORE_OPERATIONS};

#ifndef __CUDACC__
// One element by one step, on the CPU.
static float adamw_one(const AdamW *step, float w, float g, float *m, float *v, size_t n_decay) {
    Device device = cpu_device(1);
    const AdamWOperands of = {&w, NULL, m, v, &g, 1, n_decay};
    adamw(&device, step, FP32, &of);
    return w;
}

static void test_adamw_special(void **state) {
    (void)state;
    const AdamW step = adamw_step(0.01f, 0.1f, 1, 1, true), skipped = adamw_step(0.01f, 0.1f, 1, NAN, false);
    float m = 0, v = 0;
    // Without a gradient there is decay and nothing else; without decay not even that.
    assert_true(fabs(adamw_one(&step, 3, 0, &m, &v, 1) - 3 * (1 - 0.01 * 0.1)) <= 3 * 2 * U32);
    assert_true(adamw_one(&step, 3, 0, &m, &v, 0) == 3);
    assert_true(m == 0);
    assert_true(v == 0);
    // The corrections make the first step lr, whatever the gradient.
    assert_true(fabsf(step.correction1 - 10) <= 10 * 0x1p-21f);
    assert_true(fabsf(step.correction2 - 20) <= 20 * 0x1p-21f);
    for (float g = 1e-3f; g < 1e4f; g *= 10, m = v = 0) {
        assert_true(fabs(adamw_one(&step, 1, -g, &m, &v, 0) - 1.01) <= 1e-6);
    }
    AdamW late = adamw_step(0.01f, 0, 1000000, 1, true);
    assert_true(late.correction1 == 1 && late.correction2 == 1);
    // Moments that would be subnormal are zero; the smallest normal number is kept.
    const float tiny[] = {FLT_MIN, 1.06f * FLT_MIN, 1.12f * FLT_MIN, FLT_TRUE_MIN, -FLT_MIN, -1.12f * FLT_MIN};
    for (int i = 0; i < 6; i++) {
        m = tiny[i];
        v = fabsf(tiny[i]);
        adamw_one(&step, 1, 0, &m, &v, 0);
        assert_true(m == (i % 3 == 2 ? 0.9f * tiny[i] : 0));
        assert_true(v == (i == 1 || i % 3 == 2 ? 0.95f * fabsf(tiny[i]) : 0));
    }
    // A skipped step moves nothing, and reads no gradient.
    m = 1e-40f;
    v = 1e-41f;
    assert_true(adamw_one(&skipped, 3, NAN, &m, &v, 1) == 3);
    assert_true(m == 1e-40f);
    assert_true(v == 1e-41f);
}

// Every length up to 70: whatever is left over by vectors.
static void test_adamw_lengths(void **state) {
    (void)state;
    Device device = cpu_device(1);
    for (size_t i = 0; i < 4 * 70; i++) {
        Shape shape = {{i / 4 + 1, i / 4 * (i % 3) / 2}};
        Case c = {&ADAMW_OPERATIONS[0], shape, i % 4 < 2 ? FP32 : BF16, 0, i % 2 == 1, false};
        run_case(&device, &c, NULL);
    }
}
#endif

static const struct CMUnitTest ADAMW_TESTS[] = {
#ifndef __CUDACC__
    cmocka_unit_test(test_adamw_special),
    cmocka_unit_test(test_adamw_lengths),
#endif
    NO_MORE_TESTS};
static const Group ADAMW_GROUP = {ADAMW_OPERATIONS, ADAMW_TESTS};
KERNEL_MAIN(ADAMW_GROUP)
