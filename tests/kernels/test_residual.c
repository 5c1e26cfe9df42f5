// test_residual.c - kernels/residual.h: the sum, also in the place of either term.
#include "cases.h"

#include "elements.h"

#include "../../dev/kernels/residual.h"

typedef struct {
    Buffer *out, *a, *b;
} ResidualBuffers;

static void call_residual_forward(const Run *run, const Context *context, const void *operands) {
    const ResidualBuffers *x = (const ResidualBuffers *)operands;
    residual_forward(context, data(x->out), data(x->a), data(x->b), run->n[0]);
}

// Variants: apart; out is a; out is b.
static void test_residual_forward(Run *run) {
    const size_t n = run->n[0];
    ResidualBuffers x;
    x.out = run->variant == 0 ? made(run, "out", MADE, run->dtype, n, 1) : NULL;
    x.a = given_or_changed(run, "a", run->variant == 1, n);
    x.b = given_or_changed(run, "b", run->variant == 2, n);
    if (run->variant) x.out = run->variant == 1 ? x.a : x.b;
    for (size_t i = 0; i < n; i++) {
        const double a = i % 5 == 4 ? 0 : draw(run), b = draw(run);
        x.a->given[i] = element_round(run->dtype, a);
        x.b->given[i] = element_round(run->dtype, b);
        want(x.out, i, x.a->given[i] + x.b->given[i], fabs(x.a->given[i] + x.b->given[i]));
    }
    execute(run, call_residual_forward, &x);
}

static const Operation RESIDUAL_OPERATIONS[] = {
    {"residual_forward", test_residual_forward, ELEMENT_SHAPES,
     {"apart", "out is a", "out is b"}, ONE_ORDER, NULL},
    NO_MORE_OPERATIONS};
static const struct CMUnitTest RESIDUAL_TESTS[] = {NO_MORE_TESTS};
static const Group RESIDUAL_GROUP = {RESIDUAL_OPERATIONS, RESIDUAL_TESTS};
KERNEL_MAIN(RESIDUAL_GROUP)
