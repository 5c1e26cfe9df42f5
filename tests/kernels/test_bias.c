// test_bias.c - kernels/bias.h: sums over rows.
#include "cases.h"

#include "naive_product.h"

#include "../../dev/kernels/bias.h"

typedef struct {
    Buffer *dbias, *dout;
} BiasBackwardBuffers;

static void call_bias_backward(const Run *run, const Context *context, const void *operands) {
    const BiasBackwardBuffers *x = (const BiasBackwardBuffers *)operands;
    const size_t rows = run->n[0], OC = run->n[2];
    bias_backward(context, data(x->dbias), data(x->dout), rows, OC, run->variant);
}

// Variants: replaced, added to.
static void test_bias_backward(Run *run) {
    const size_t rows = run->n[0], IC = run->n[1], OC = run->n[2];
    BiasBackwardBuffers x;
    x.dbias = made(run, "dbias", run->variant ? CHANGED : MADE, IN_FP32, OC, rows);
    x.dout = given(run, "dout", run->dtype, rows * OC, 1);
    for (size_t i = 0; i < rows * OC; i++) term(x.dbias, i % OC, x.dout->given[i], fabs(x.dout->given[i]));
    execute(run, call_bias_backward, &x);
    double *bias = array(run, OC);
    const NaiveMatmul inputs = {array(run, rows * IC), array(run, OC * IC), bias};
    const Forward forward = {naive_matmul, &inputs, x.dout->given, rows * OC, (double)(rows * IC * OC)};
    differences(run, &forward, bias, x.dbias);
}

static const Operation BIAS_OPERATIONS[] = {
    {"bias_backward", test_bias_backward, MATMUL_SHAPES, {"replace", "add"}, DIFFERENCES, NULL},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest BIAS_TESTS[] = {NO_MORE_TESTS};
static const Group BIAS_GROUP = {BIAS_OPERATIONS, BIAS_TESTS};
KERNEL_MAIN(BIAS_GROUP)
