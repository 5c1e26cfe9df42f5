// test_bias.c - kernels/bias.h: sums over rows.
#include "cases.h"

#include "naive_product.h"

#include "../../dev/kernels/bias.h"

static void call_bias_backward(const Run *run, const Context *context) {
    const Product *x = (const Product *)run->operands;
    bias_backward(context, data(x->made), data(x->dout), run->n[0], run->n[2], run->variant);
}

// Variants: replaced, added to.
static void test_bias_backward(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    Product x;
    x.made = made(run, "dbias", run->variant ? CHANGED : MADE, IN_FP32, OC, rows);
    x.dout = given(run, "dout", run->dtype, rows * OC, 1);
    for (size_t i = 0; i < rows * OC; i++) term(x.made, i % OC, x.dout->given[i], fabs(x.dout->given[i]));
    execute(run, &x);
    const Naive naive = {array(run, rows * OC), x.dout->given,
                         {array(run, rows * IC), array(run, OC * IC), array(run, OC), array(run, rows * OC)}};
    differences(run, naive_matmul, &naive, rows * OC, 2, x.made, (double)(rows * IC * OC));
}

static const Operation BIAS_OPERATIONS[] = {
    {"bias_backward", test_bias_backward, call_bias_backward, MATMUL_SHAPES, {"replace", "add"}, DIFFERENCES, NULL},
};
static const Group BIAS_GROUP = {BIAS_OPERATIONS, GROUP_COUNT(BIAS_OPERATIONS), NULL, 0};
KERNEL_MAIN(BIAS_GROUP)
