// test_matmul.c - kernels/matmul.h: the three products, on our own tiles, on the library, and by CUDA's own kernel.
#include "cases.h"

#include "naive_product.h"

static void call_matmul_forward(const Run *run, const Context *context) {
    const Product *x = (const Product *)run->operands;
    matmul_forward(context, data(x->made), data(x->in), data(x->weight), run->variant ? data(x->bias) : ANY(NULL),
                   run->n[0], run->n[1], run->n[2]);
}

// Variants: without and with bias.
static void test_matmul_forward(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    Product x;
    x.made = made(run, "out", MADE, run->dtype, rows * OC, IC);
    x.in = given(run, "in", run->dtype, rows * IC, 1);
    x.weight = given(run, "weight", run->dtype, OC * IC, 1);
    x.bias = given(run, "bias", run->dtype, OC, run->variant);
    const Naive naive = {x.made->want, NULL, {x.in->given, x.weight->given, x.bias->given, x.made->size}};
    naive_matmul(run->n, &naive);
    execute(run, &x);
}

static void call_matmul_backward_input(const Run *run, const Context *context) {
    const Product *x = (const Product *)run->operands;
    matmul_backward_input(context, data(x->made), data(x->dout), data(x->weight), run->n[0], run->n[1], run->n[2]);
}

static void test_matmul_backward_input(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    Product x;
    x.made = made(run, "din", MADE, run->dtype, rows * IC, OC);
    x.dout = given(run, "dout", run->dtype, rows * OC, 1);
    x.weight = given(run, "weight", run->dtype, OC * IC, 1);
    const NaiveMatrix dout = {x.dout->given, OC, 1}, weight = {x.weight->given, IC, 1};
    naive_product(x.made->want, x.made->size, rows, IC, OC, dout, weight);
    execute(run, &x);
    const Naive naive = {array(run, rows * OC), x.dout->given,
                         {array(run, rows * IC), x.weight->given, array(run, OC), array(run, rows * OC)}};
    differences(run, naive_matmul, &naive, rows * OC, 0, x.made, (double)(rows * IC * OC));
}

static void call_matmul_backward_weight(const Run *run, const Context *context) {
    const Product *x = (const Product *)run->operands;
    matmul_backward_weight(context, data(x->made), data(x->dout), data(x->in), run->n[0], run->n[1], run->n[2],
                           run->variant);
}

// Variants: replaced, added to.
static void test_matmul_backward_weight(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    Product x;
    x.made = made(run, "dweight", run->variant ? CHANGED : MADE, IN_FP32, OC * IC, rows);
    x.dout = given(run, "dout", run->dtype, rows * OC, 1);
    x.in = given(run, "in", run->dtype, rows * IC, 1);
    const NaiveMatrix dout = {x.dout->given, 1, OC}, in = {x.in->given, IC, 1};
    naive_product(x.made->want, x.made->size, OC, IC, rows, dout, in);
    execute(run, &x);
    const Naive naive = {array(run, rows * OC), x.dout->given,
                         {x.in->given, array(run, OC * IC), array(run, OC), array(run, rows * OC)}};
    differences(run, naive_matmul, &naive, rows * OC, 1, x.made, (double)(rows * IC * OC));
}

// A thread per element is slow on the emulator, and knows no tiles: small shapes show all of it.
static bool matmul_is_slow(const Case *c) {
    return c->other_way && c->shape.n[0] * c->shape.n[1] * c->shape.n[2] > 1 << 17;
}

static const Operation MATMUL_OPERATIONS[] = {
    {"matmul_forward", test_matmul_forward, call_matmul_forward, MATMUL_SHAPES, {"", "bias"}, PRODUCT, matmul_is_slow},
    {"matmul_backward_input", test_matmul_backward_input, call_matmul_backward_input, MATMUL_SHAPES, {""},
     PRODUCT | DIFFERENCES, matmul_is_slow},
    {"matmul_backward_weight", test_matmul_backward_weight, call_matmul_backward_weight, MATMUL_SHAPES,
     {"replace", "add"}, PRODUCT | DIFFERENCES, matmul_is_slow},
};
static const Group MATMUL_GROUP = {MATMUL_OPERATIONS, GROUP_COUNT(MATMUL_OPERATIONS), NULL, 0};
KERNEL_MAIN(MATMUL_GROUP)
