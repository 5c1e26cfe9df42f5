// test_columns.c - kernels/columns.h: how rows are shared out over groups.
#include "../test_helpers.h"

#include "../../dev/kernels/columns.h"

// A group at least, no more than there are sums for, and as many as have `least` rows each (the last one fewer).
static void test_groups(void **state) {
    (void)state;
    for (size_t least = 1; least <= 64; least *= 2) {
        for (size_t rows = 0; rows < 40000; rows += rows < 1000 ? 1 : 997) {
            const size_t groups = columns_groups(rows, least);
            assert_in_range(groups, 1, COLUMNS_GROUPS);
            if (groups > 1) assert_true((groups - 1) * least < rows);
            if (groups < COLUMNS_GROUPS) assert_true(groups * least >= rows);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
