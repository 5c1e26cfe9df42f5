// test_size.c - size.h: the smaller and the larger, whole parts, multiples, MiB.
#include "test_helpers.h"

#include "../dev/size.h"

static void test_sizes(void **state) {
    (void)state;
    static const size_t cases[][4] = {  // a, b, a / b upwards, a to a multiple of b
        {0, 7, 0, 0}, {1, 7, 1, 7}, {7, 7, 1, 7}, {8, 7, 2, 14}, {4095, 4096, 1, 4096}, {4097, 4096, 2, 8192},
        {((size_t)1 << 40) + 1, (size_t)1 << 20, ((size_t)1 << 20) + 1, ((size_t)1 << 40) + ((size_t)1 << 20)}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(size_ceil_div(cases[i][0], cases[i][1]), cases[i][2]);
        assert_int_equal(size_round_up(cases[i][0], cases[i][1]), cases[i][3]);
    }
    assert_int_equal(size_min(3, SIZE_MAX), 3);
    assert_int_equal(size_max(3, SIZE_MAX), SIZE_MAX);
    assert_true(size_mib(0) == 0);
    assert_true(size_mib(3 * 1024 * 1024 / 2) == 1.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
