// test_encoder.c - kernels/encoder.h: forward, backward, and the order of a batch's positions.
#include "cases.h"

#include "tokens.h"

#include "../../dev/kernels/encoder.h"

// B, T, C, V
static const Shape ENCODER_SHAPES[] = {{{1, 1, 1, 1}},     {{2, 3, 3, 5}},   {{3, 31, 15, 19}},  {{2, 33, 48, 67}},
                                       {{1, 64, 51, 257}}, {{2, 65, 64, 19}}, {{1, 5, 768, 300}}, {{2, 3, 1030, 7}},
                                       {{1, 2, 2049, 3}},  {{1, 127, 3, 1}}, {{5, 32, 130, 4}},  {{2, 300, 40, 2}},
                                       {{3, 100, 264, 9}}, {{0}}};

typedef struct {
    const double *tokens, *wte, *wpe;
} NaiveEncoder;

static void naive_encoder(const size_t *n, double *out, const void *inputs) {
    const NaiveEncoder *x = (const NaiveEncoder *)inputs;
    const size_t B = n[0], T = n[1], C = n[2];
    for (size_t i = 0; i < B * T * C; i++) {
        out[i] = x->wte[(size_t)x->tokens[i / C] * C + i % C] + x->wpe[i / C % T * C + i % C];
    }
}

typedef struct {
    Buffer *out, *tokens, *wte, *wpe;
} EncoderForwardBuffers;

static void call_encoder_forward(const Run *run, const Context *context, const void *operands) {
    const EncoderForwardBuffers *x = (const EncoderForwardBuffers *)operands;
    encoder_forward(context, data(x->out), data(x->tokens), data(x->wte), data(x->wpe), run->n[0], run->n[1],
                    run->n[2]);
}

static void test_encoder_forward(Run *run) {
    const size_t B = run->n[0], T = run->n[1], C = run->n[2], V = run->n[3];
    const EncoderForwardBuffers x = {made(run, "out", MADE, run->dtype, B * T * C, 1), given_tokens(run, B * T, V),
                              given(run, "wte", run->dtype, V * C, 1), given(run, "wpe", run->dtype, (T + 2) * C, 1)};
    const NaiveEncoder inputs = {x.tokens->given, x.wte->given, x.wpe->given};
    naive_encoder(run->n, x.out->want, &inputs);
    for (size_t i = 0; i < x.out->n; i++) x.out->size[i] = fabs(x.out->want[i]);
    execute(run, call_encoder_forward, &x);
}

typedef struct {
    Buffer *dwte, *dwpe, *dout, *tokens, *positions;
    size_t n_distinct;
} EncoderBackwardBuffers;

static void call_encoder_backward(const Run *run, const Context *context, const void *operands) {
    const EncoderBackwardBuffers *x = (const EncoderBackwardBuffers *)operands;
    const size_t B = run->n[0], T = run->n[1], C = run->n[2];
    const EncoderTokens tokens = {data(x->tokens), data(x->positions), x->n_distinct, B, T};
    encoder_backward(context, data(x->dwte), data(x->dwpe), data(x->dout), &tokens, T + 2, C, run->variant);
}

// Variants: dwpe replaced, added to.
static void test_encoder_backward(Run *run) {
    const size_t B = run->n[0], T = run->n[1], C = run->n[2], V = run->n[3];
    EncoderBackwardBuffers x;
    x.dwte = made(run, "dwte", CHANGED, IN_FP32, V * C, B * T);
    x.dwpe = made(run, "dwpe", run->variant ? CHANGED : MADE, IN_FP32, (T + 2) * C, B);
    x.dout = given(run, "dout", run->dtype, B * T * C, 1);
    x.tokens = given_tokens(run, B * T, V);
    // Positions by token, and where each token's begin.
    const double *tokens = x.tokens->given, *dout = x.dout->given;
    double *sorted = array(run, B * T + V + 1);
    size_t n_sorted = 0;
    x.n_distinct = 0;
    for (size_t v = 0; v < V; v++) {
        sorted[B * T + x.n_distinct] = (double)n_sorted;
        for (size_t i = 0; i < B * T; i++) {
            if (tokens[i] == (double)v) sorted[n_sorted++] = (double)i;
        }
        x.n_distinct += (double)n_sorted > sorted[B * T + x.n_distinct];
    }
    sorted[B * T + x.n_distinct] = (double)(B * T);
    x.positions = given(run, "positions", IN_INT32, B * T + x.n_distinct + 1, 0);
    memcpy(x.positions->given, sorted, x.positions->n * sizeof(double));
    for (size_t i = 0; i < B * T * C; i++) {
        term(x.dwte, (size_t)tokens[i / C] * C + i % C, dout[i], fabs(dout[i]));
        term(x.dwpe, i / C % T * C + i % C, dout[i], fabs(dout[i]));
    }
    execute(run, call_encoder_backward, &x);
    // Sums don't depend on the values of what is differentiated by.
    double *wte = array(run, V * C), *wpe = array(run, (T + 2) * C);
    const NaiveEncoder inputs = {tokens, wte, wpe};
    const Forward forward = {naive_encoder, &inputs, dout, B * T * C, (double)(B * T * C)};
    differences(run, &forward, wte, x.dwte);
    differences(run, &forward, wpe, x.dwpe);
}

// Positions by token: each once, ascending within a token, tokens ascending, none left out.
static void test_encoder_sort(void **state) {
    (void)state;
    enum { MOST = 1000, V = 700 };
    static const size_t SIZES[][2] = {{1, 1}, {1, V}, {MOST, 1}, {MOST, 2}, {MOST, 60}, {MOST, V}, {64, V}};
    int32_t tokens[MOST], positions[2 * MOST + 2], counts[V];
    for (size_t c = 0; c < sizeof(SIZES) / sizeof(SIZES[0]); c++) {
        const size_t n = SIZES[c][0], n_tokens = SIZES[c][1];
        bool is_there[V] = {false};
        size_t want = 0, k = 0;
        for (size_t i = 0; i < n; i++) {
            tokens[i] = (int32_t)(V - 1 - random_bits(9, c, i) % n_tokens);
            want += !is_there[tokens[i]];
            is_there[tokens[i]] = true;
        }
        memset(counts, 0xee, sizeof(counts));
        memset(positions, 0xee, sizeof(positions));
        assert_int_equal(encoder_sort(positions, counts, tokens, n, V), want);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(positions[i], 0, n - 1);
            const bool begins = i == 0 || tokens[positions[i]] != tokens[positions[i - 1]];
            if (begins) assert_int_equal(positions[n + k++], i);
            if (i > 0 && begins) assert_true(tokens[positions[i - 1]] < tokens[positions[i]]);
            if (i > 0 && !begins) assert_true(positions[i - 1] < positions[i]);
        }
        assert_int_equal(k, want);
        assert_int_equal(positions[n + want], n);
        assert_int_equal((uint32_t)positions[n + want + 1], 0xeeeeeeee);
    }
}

static const Operation ENCODER_OPERATIONS[] = {
    {"encoder_forward", test_encoder_forward, ENCODER_SHAPES, {""}, ONE_ORDER, NULL},
    {"encoder_backward", test_encoder_backward, ENCODER_SHAPES, {"replace", "add"},
     ONE_ORDER | DIFFERENCES, NULL},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest ENCODER_TESTS[] = {cmocka_unit_test(test_encoder_sort), NO_MORE_TESTS};
static const Group ENCODER_GROUP = {ENCODER_OPERATIONS, ENCODER_TESTS};
KERNEL_MAIN(ENCODER_GROUP)
