// test_attention.c - kernels/attention.h: fused and plain, forward and backward.
#include "cases.h"

#include "naive_softmax.h"

#include "../../dev/kernels/attention.h"

// B, T, NH, HS, spread of the inputs (1 if 0)
static const Shape ATTENTION_SHAPES[] = {
    {{1, 1, 1, 1}},   {{2, 2, 1, 5}},   {{1, 5, 2, 3}},       {{1, 99, 1, 1}},      {{1, 31, 3, 8}},
    {{2, 32, 2, 16}}, {{1, 33, 2, 17}}, {{1, 63, 1, 20}},     {{1, 65, 1, 64}},     {{1, 96, 1, 80}},
    {{1, 97, 2, 16}}, {{2, 64, 2, 40}}, {{1, 95, 2, 5, 4}},   {{1, 193, 1, 96}},    {{2, 127, 1, 1}},
    {{1, 7, 3, 128}}, {{1, 288, 1, 16}}, {{1, 193, 3, 17, 8}}, {{1, 129, 2, 64, 2}}, {{1, 100, 1, 128}},
    {{1, 1, 1, 64}},  {{3, 33, 1, 24}}, {{1, 63, 2, 8}},      {{1, 64, 1, 64}},     {{1, 127, 1, 64, 8}},
    {{1, 128, 1, 128}}, {{1, 129, 1, 96}}, {{1, 193, 1, 80}}, {{1, 257, 1, 64}},    {{1, 255, 1, 120, 4}}, {{0}}};

// Row i of head h of sequence b: p (T) its probabilities, 0 after i; their log-sum-exp; and the relative error of p in
// units of u, which is that of exp() and the absolute one of the scores.
static void naive_attention_row(const size_t *n, const double *qkv, size_t row, double *p, double *lse, double *error) {
    const size_t T = n[1], HS = n[3], C = n[2] * HS, i = row % T, b = row / T / n[2], h = row / T % n[2];
    const double *q = qkv + (b * T + i) * 3 * C + h * HS, *k = qkv + b * T * 3 * C + C + h * HS;
    double size = 0;
    for (size_t j = 0; j <= i; j++) {
        double sum = 0, absolute = 0;
        for (size_t c = 0; c < HS; c++) {
            sum += q[c] * k[j * 3 * C + c];
            absolute += fabs(q[c] * k[j * 3 * C + c]);
        }
        p[j] = sum / sqrt((double)HS);
        size = fmax(size, absolute / sqrt((double)HS) + fabs(sum));
    }
    *lse = naive_log_sum(p, i + 1);
    *error = 4 + size + fabs(*lse);
    for (size_t j = 0; j < T; j++) p[j] = j <= i ? exp(p[j] - *lse) : 0;
}

// Where channel 0 of a row's head begins in out, and, for each of q, k and v, in qkv.
static size_t out_offset(const size_t *n, size_t row) {
    const size_t T = n[1], NH = n[2], HS = n[3];
    return (row / T / NH * T + row % T) * NH * HS + row / T % NH * HS;
}

static size_t qkv_offset(const size_t *n, size_t row, size_t t, size_t part) {
    const size_t T = n[1], NH = n[2], HS = n[3];
    return ((row / T / NH * T + t) * 3 + part) * NH * HS + row / T % NH * HS;
}

// On tensor cores each P, and each dS, is rounded to the storage type before it is multiplied: an error of as much of
// every term. As a factor for sizes.
static double attention_rounds(const Run *run) {
    bool rounds = run->device->real == DEVICE_CUDA && run->variant == ATTENTION_FUSED && !run->c.unaligned &&
                  attention_mma_takes(run->c.dtype, run->n[3]);
    return rounds ? (run->dtype == IN_FP16 ? U_FP16 : U16) / U32 / GROWTH : 0;
}

// out (rows, HS) from qkv. size: of its terms, or NULL; p: the probabilities to use (rows, T), or NULL; more: what to
// add to the size's factor.
static void naive_attention_out(const size_t *n, double *out, double *size, const double *qkv, const double *p,
                                double more) {
    const size_t T = n[1], HS = n[3];
    double own[T], lse, error;
    for (size_t row = 0; row < n[0] * n[2] * T; row++) {
        const size_t first = out_offset(n, row);
        naive_attention_row(n, qkv, row, own, &lse, &error);
        const double *of_row = p ? p + row * T : own;
        for (size_t c = 0; c < HS; c++) {
            double sum = 0, absolute = 0;
            for (size_t j = 0; j <= row % T; j++) {
                double product = of_row[j] * qkv[qkv_offset(n, row, j, 2) + c];
                sum += product;
                absolute += fabs(product);
            }
            out[first + c] = sum;
            if (size) size[first + c] = absolute * ((p ? 1 : error) + more);
        }
    }
}

static void naive_attention(const size_t *n, double *out, const void *qkv) {
    naive_attention_out(n, out, NULL, (const double *)qkv, NULL, 0);
}

static Attention attention_of(const Run *run) {
    const size_t *n = run->n;
    const Attention attention = {(AttentionKind)run->variant, n[0], n[1], n[2] * n[3], n[2]};
    return attention;
}

// What the forward saves, lse or P.
static Buffer *made_saved(Run *run, Role role) {
    const size_t *n = run->n, T = n[1], rows = n[0] * n[2] * T, width = run->variant == ATTENTION_PLAIN ? T : 1;
    const Element element = run->variant == ATTENTION_PLAIN ? run->dtype : IN_FP32;
    const Attention attention = attention_of(run);
    assert_int_equal(attention_saved_bytes(&attention, run->c.dtype), rows * width * ELEMENT_BYTES[element]);
    return made(run, "saved", role, element, rows * width, role == GIVEN ? 0 : 1);
}

static void naive_attention_saved(Run *run, Buffer *saved, const double *qkv) {
    const size_t T = run->n[1], rows = run->n[0] * run->n[2] * T;
    double p[T], lse, error;
    for (size_t row = 0; row < rows; row++) {
        naive_attention_row(run->n, qkv, row, p, &lse, &error);
        if (run->variant == ATTENTION_FUSED) want(saved, row, lse, error);
        for (size_t j = 0; j < T && run->variant == ATTENTION_PLAIN; j++) want(saved, row * T + j, p[j], p[j] * error);
    }
    for (size_t i = 0; i < saved->n; i++) saved->given[i] = element_round(saved->element, saved->want[i]);
}

static size_t attention_outputs(const size_t *n) { return n[0] * n[1] * n[2] * n[3]; }

typedef struct {
    Buffer *out, *saved, *qkv;
} AttentionForwardBuffers;

static void call_attention_forward(const Run *run, const Context *context, const void *operands) {
    const AttentionForwardBuffers *x = (const AttentionForwardBuffers *)operands;
    const Attention attention = attention_of(run);
    attention_forward(context, &attention, data(x->out), data(x->saved), data(x->qkv));
}

static double qkv_spread(const Run *run) { return run->n[4] ? (double)run->n[4] : 1; }

// Variants: fused; plain, whose out has to be the product of P as it was stored.
static void test_attention_forward(Run *run) {
    const size_t n_out = attention_outputs(run->n);
    AttentionForwardBuffers x;
    x.out = made(run, "out", MADE, run->dtype, n_out, run->n[1]);
    x.saved = made_saved(run, MADE);
    x.qkv = given(run, "qkv", run->dtype, 3 * n_out, qkv_spread(run));
    naive_attention_saved(run, x.saved, x.qkv->given);
    execute(run, call_attention_forward, &x);
    naive_attention_out(run->n, x.out->want, x.out->size, x.qkv->given,
                        run->variant == ATTENTION_PLAIN ? x.saved->got : NULL, attention_rounds(run));
}

typedef struct {
    Buffer *dqkv, *dout, *qkv, *out, *saved;
} AttentionBackwardBuffers;

static void call_attention_backward(const Run *run, const Context *context, const void *operands) {
    const AttentionBackwardBuffers *x = (const AttentionBackwardBuffers *)operands;
    const Attention attention = attention_of(run);
    attention_backward(context, &attention, data(x->dqkv), data(x->dout), data(x->qkv), data(x->out), data(x->saved));
}

// One row of the backward from the rounded inputs that the operation gets.
static void naive_attention_backward_row(Run *run, const AttentionBackwardBuffers *x, size_t row) {
    const size_t *n = run->n, T = n[1], HS = n[3], q = qkv_offset(n, row, row % T, 0);
    const double scale = 1 / sqrt((double)HS), *qkv = x->qkv->given, *saved = x->saved->given;
    const double *dout = x->dout->given + out_offset(n, row), *out = x->out->given + out_offset(n, row);
    const double rounds = attention_rounds(run);
    double p[T], lse, error, d = 0, d_size = 0;
    naive_attention_row(n, qkv, row, p, &lse, &error);
    for (size_t c = 0; c < HS; c++) {
        d += dout[c] * out[c];
        d_size += fabs(dout[c] * out[c]);
    }
    for (size_t j = 0; j <= row % T; j++) {
        size_t k = qkv_offset(n, row, j, 1), v = qkv_offset(n, row, j, 2);
        double pj = p[j] * exp(lse - saved[row]), dp = 0, size = d_size + sqrt((double)HS) * fabs(d);
        if (run->variant == ATTENTION_PLAIN) pj = saved[row * T + j], error = 1;
        for (size_t c = 0; c < HS; c++) {
            dp += dout[c] * qkv[v + c];
            size += fabs(dout[c] * qkv[v + c]);
        }
        double ds = scale * pj * (dp - d);
        size = scale * pj * ((error + rounds) * fabs(dp - d) + size + sqrt((double)HS) * fabs(dp));
        for (size_t c = 0; c < HS; c++) {
            term(x->dqkv, q + c, ds * qkv[k + c], size * fabs(qkv[k + c]));
            term(x->dqkv, k + c, ds * qkv[q + c], size * fabs(qkv[q + c]));
            term(x->dqkv, v + c, pj * dout[c], (error + rounds) * fabs(pj * dout[c]));
        }
    }
}

// Variants: fused, plain.
static void test_attention_backward(Run *run) {
    const size_t *n = run->n, n_out = attention_outputs(n);
    AttentionBackwardBuffers x;
    x.dqkv = made(run, "dqkv", MADE, run->dtype, 3 * n_out, n[1]);
    x.dout = given(run, "dout", run->dtype, n_out, 1);
    x.qkv = given(run, "qkv", run->dtype, 3 * n_out, qkv_spread(run));
    x.out = given(run, "out", run->dtype, n_out, 1);
    x.saved = made_saved(run, GIVEN);
    naive_attention_out(n, x.out->given, NULL, x.qkv->given, NULL, 0);
    for (size_t i = 0; i < n_out; i++) x.out->given[i] = element_round(run->dtype, x.out->given[i]);
    naive_attention_saved(run, x.saved, x.qkv->given);
    for (size_t row = 0; row < n[0] * n[1] * n[2]; row++) naive_attention_backward_row(run, &x, row);
    execute(run, call_attention_backward, &x);
    const Forward forward = {naive_attention, x.qkv->given, x.dout->given, n_out, (double)(n[1] * n_out) / 2};
    differences(run, &forward, x.qkv->given, x.dqkv);
}

#ifdef __CUDACC__
// Every block of every head is somebody's, once; within a group of heads the longest walks begin first.
static void test_attention_work(void **state) {
    (void)state;
    static const uint32_t HEADS[] = {1, 2, 7, 12, 50}, GROUPS[] = {1, 3, 7, 64}, BLOCKS[] = {1, 2, 9};
    for (int c = 0; c < 5 * 4 * 3; c++) {
        const uint32_t heads = HEADS[c % 5], group = GROUPS[c / 5 % 4], n = BLOCKS[c / 20];
        bool is_taken[50 * 9] = {false};
        for (uint32_t block = 0, head, before = 0; block < heads * n; block++) {
            uint32_t nth = attention_mma_work(heads, group, n, block, &head);
            assert_true(head < heads);
            assert_true(nth < n);
            assert_false(is_taken[head * n + nth]);
            assert_true(nth >= before || block % (group * n) == 0);
            is_taken[head * n + nth] = true;
            before = nth;
        }
    }
}
#endif

// The simple kernels know no tiles, and are slow on the emulator: small shapes show all of them.
static bool attention_is_slow(const Case *c) {
    const bool simple = c->dtype == FP32 || c->variant == ATTENTION_PLAIN || c->unaligned;
    return simple && c->shape.n[1] * c->shape.n[1] * c->shape.n[3] > 1 << 21;
}

static const Operation ATTENTION_OPERATIONS[] = {
    {"attention_forward", test_attention_forward, ATTENTION_SHAPES, {"fused", "plain"}, 0,
     attention_is_slow},
    {"attention_backward", test_attention_backward, ATTENTION_SHAPES, {"fused", "plain"},
     DIFFERENCES, attention_is_slow},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest ATTENTION_TESTS[] = {
#ifdef __CUDACC__
    cmocka_unit_test(test_attention_work),
#endif
    NO_MORE_TESTS};
static const Group ATTENTION_GROUP = {ATTENTION_OPERATIONS, ATTENTION_TESTS};
KERNEL_MAIN(ATTENTION_GROUP)
