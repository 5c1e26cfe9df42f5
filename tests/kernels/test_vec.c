// test_vec.c - kernels/vec.h: each lane is its own number, and the multiply-add is fused.
#include "../test_helpers.h"

#include "../../dev/kernels/vec.h"
#include "../../dev/random.h"

static void test_lanes(void **state) {
    (void)state;
    enum { MARK = 7 };
    float a[VEC], b[VEC], c[VEC], got[VEC + 2];
    for (int trial = 0; trial < 1000; trial++) {
        for (int i = 0; i < VEC; i++) {
            const uint64_t at = (uint64_t)(trial * VEC + i);
            a[i] = (float)random_uniform(1, 0, at) - 0.5f;
            b[i] = (float)random_uniform(1, 1, at) - 0.5f;
            c[i] = -a[i] * b[i];  // what is left is what the product's rounding took
        }
        got[0] = got[VEC + 1] = MARK;
        vec_store(got + 1, vec_fma(vec_load(a), vec_load(b), vec_load(c)));
        for (int i = 0; i < VEC; i++) assert_true(got[1 + i] == fmaf(a[i], b[i], c[i]));
        assert_true(got[0] == MARK);
        assert_true(got[VEC + 1] == MARK);
        vec_store(got + 1, vec_all(a[0]));
        for (int i = 0; i < VEC; i++) assert_true(got[1 + i] == a[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
