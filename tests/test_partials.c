// test_partials.c - partials.h: the one order of sums, and maxima.
#include "test_helpers.h"

#include "../dev/partials.h"
#include "../dev/random.h"

// The one order: partial sum i % PARTIALS, one after the other, then halves; cutting a row at a multiple of PARTIALS
// changes nothing.
static void test_partial_sums(void **state) {
    (void)state;
    float x[200], y[200];
    for (size_t i = 0; i < 200; i++) {
        x[i] = (float)random_uniform(1, 0, i);
        y[i] = (float)random_uniform(1, 1, i);
    }
    for (size_t n = 0; n <= 200; n++) {
        float partials[3][PARTIALS] = {{0}}, wanted[3][PARTIALS] = {{0}};
        size_t cut = n / 2 / PARTIALS * PARTIALS;
        for (size_t i = 0; i < n; i++) {
            float d = x[i] - 0.4f;
            wanted[0][i % PARTIALS] += x[i];
            wanted[1][i % PARTIALS] = fmaf(x[i], y[i], wanted[1][i % PARTIALS]);
            wanted[2][i % PARTIALS] = fmaf(d, d, wanted[2][i % PARTIALS]);
        }
        for (int part = 0; part < 2; part++) {
            size_t first = part ? cut : 0, m = part ? n - cut : cut;
            partials_add(partials[0], x + first, m);
            partials_add_products(partials[1], x + first, y + first, m);
            partials_add_squared_differences(partials[2], x + first, 0.4f, m);
        }
        assert_memory_equal(partials, wanted, sizeof(partials));
        for (int width = PARTIALS / 2; width > 0; width /= 2) {
            for (int l = 0; l < width; l++) wanted[0][l] += wanted[0][l + width];
        }
        assert_true(partials_total(partials[0]) == wanted[0][0]);
    }
}

// The largest of any number of values and of what came before; NaN is passed over.
static void test_maximum(void **state) {
    (void)state;
    float x[100];
    for (size_t n = 0; n <= 100; n += n < 20 ? 1 : 16) {
        for (size_t top = 0; top < n; top++) {
            for (size_t i = 0; i < n; i++) x[i] = i == top ? -1 : i % 3 ? -5 : NAN;
            assert_true(partials_maximum(-INFINITY, x, n) == -1);
            assert_true(partials_maximum(0, x, n) == 0);
        }
        assert_true(partials_maximum(-7, x, 0) == -7);
    }
    for (size_t i = 0; i < 100; i++) x[i] = NAN;
    assert_true(partials_maximum(-7, x, 100) == -7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partial_sums),
        cmocka_unit_test(test_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
