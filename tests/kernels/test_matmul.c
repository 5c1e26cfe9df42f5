// test_matmul.c - kernels/matmul.h: the three products, on our own tiles, on the library, and by CUDA's own kernel.
#include "cases.h"

#include "naive_product.h"

typedef struct {
    Buffer *out, *in, *weight, *bias;
} MatmulForwardBuffers;

static void call_matmul_forward(const Run *run, const Context *context, const void *operands) {
    const MatmulForwardBuffers *x = (const MatmulForwardBuffers *)operands;
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    matmul_forward(context, data(x->out), data(x->in), data(x->weight), run->variant ? data(x->bias) : ANY(NULL), rows,
                   IC, OC);
}

// Variants: without and with bias.
static void test_matmul_forward(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    MatmulForwardBuffers x;
    x.out = made(run, "out", MADE, run->dtype, rows * OC, IC);
    x.in = given(run, "in", run->dtype, rows * IC, 1);
    x.weight = given(run, "weight", run->dtype, OC * IC, 1);
    x.bias = given(run, "bias", run->dtype, OC, run->variant);
    const NaiveMatmul inputs = {x.in->given, x.weight->given, x.bias->given};
    naive_matmul_sized(run->n, x.out->want, x.out->size, &inputs);
    execute(run, call_matmul_forward, &x);
}

typedef struct {
    Buffer *din, *dout, *weight;
} MatmulBackwardInputBuffers;

static void call_matmul_backward_input(const Run *run, const Context *context, const void *operands) {
    const MatmulBackwardInputBuffers *x = (const MatmulBackwardInputBuffers *)operands;
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    matmul_backward_input(context, data(x->din), data(x->dout), data(x->weight), rows, IC, OC);
}

static void test_matmul_backward_input(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    MatmulBackwardInputBuffers x;
    x.din = made(run, "din", MADE, run->dtype, rows * IC, OC);
    x.dout = given(run, "dout", run->dtype, rows * OC, 1);
    x.weight = given(run, "weight", run->dtype, OC * IC, 1);
    const NaiveMatrix dout = {x.dout->given, OC, 1}, weight = {x.weight->given, IC, 1};
    naive_product(x.din->want, x.din->size, rows, IC, OC, dout, weight);
    execute(run, call_matmul_backward_input, &x);
    double *in = array(run, rows * IC);
    const NaiveMatmul inputs = {in, x.weight->given, array(run, OC)};
    const Forward forward = {naive_matmul, &inputs, x.dout->given, rows * OC, (double)(rows * IC * OC)};
    differences(run, &forward, in, x.din);
}

typedef struct {
    Buffer *dweight, *dout, *in;
} MatmulBackwardWeightBuffers;

static void call_matmul_backward_weight(const Run *run, const Context *context, const void *operands) {
    const MatmulBackwardWeightBuffers *x = (const MatmulBackwardWeightBuffers *)operands;
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    matmul_backward_weight(context, data(x->dweight), data(x->dout), data(x->in), rows, IC, OC, run->variant);
}

// Variants: replaced, added to.
static void test_matmul_backward_weight(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    MatmulBackwardWeightBuffers x;
    x.dweight = made(run, "dweight", run->variant ? CHANGED : MADE, IN_FP32, OC * IC, rows);
    x.dout = given(run, "dout", run->dtype, rows * OC, 1);
    x.in = given(run, "in", run->dtype, rows * IC, 1);
    const NaiveMatrix dout = {x.dout->given, 1, OC}, in = {x.in->given, IC, 1};
    naive_product(x.dweight->want, x.dweight->size, OC, IC, rows, dout, in);
    execute(run, call_matmul_backward_weight, &x);
    double *weight = array(run, OC * IC);
    const NaiveMatmul inputs = {x.in->given, weight, array(run, OC)};
    const Forward forward = {naive_matmul, &inputs, x.dout->given, rows * OC, (double)(rows * IC * OC)};
    differences(run, &forward, weight, x.dweight);
}

// A thread per element is slow on the emulator, and knows no tiles: small shapes show all of it.
static bool matmul_is_slow(const Case *c) {
    return c->other_way && c->shape.n[0] * c->shape.n[1] * c->shape.n[2] > 1 << 17;
}

static const Operation MATMUL_OPERATIONS[] = {
    {"matmul_forward", test_matmul_forward, MATMUL_SHAPES, {"", "bias"}, PRODUCT, matmul_is_slow},
    {"matmul_backward_input", test_matmul_backward_input, MATMUL_SHAPES, {""},
     PRODUCT | DIFFERENCES, matmul_is_slow},
    {"matmul_backward_weight", test_matmul_backward_weight, MATMUL_SHAPES,
     {"replace", "add"}, PRODUCT | DIFFERENCES, matmul_is_slow},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest MATMUL_TESTS[] = {NO_MORE_TESTS};
static const Group MATMUL_GROUP = {MATMUL_OPERATIONS, MATMUL_TESTS};
KERNEL_MAIN(MATMUL_GROUP)
