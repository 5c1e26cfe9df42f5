// test_random.c - random.h: known answers, moments of normal numbers, and orders that are bijections.
#include "test_helpers.h"

#include "../dev/random.h"

// The first outputs of splitmix64 from state 0, as its authors publish them: its state grows by the golden ratio's
// fraction, which random_mix() adds itself.
static void test_mixing_is_that_of_splitmix64(void **state) {
    (void)state;
    static const uint64_t outputs[] = {0xe220a8397b1dcdafull, 0x6e789e6aa1b965f4ull, 0x06c45d188009454full};
    for (uint64_t i = 0; i < 3; i++) assert_int_equal(random_mix(i * 0x9e3779b97f4a7c15ull), outputs[i]);
}

// Every one of seed, stream and index changes about half of the bits, and swapping two of them is another number.
static void test_every_key_counts(void **state) {
    (void)state;
    int changed[3] = {0};
    enum { N = 1000 };
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t bits = random_bits(i, 5, 7);
        changed[0] += __builtin_popcountll(bits ^ random_bits(i + 1, 5, 7));
        changed[1] += __builtin_popcountll(bits ^ random_bits(i, 6, 7));
        changed[2] += __builtin_popcountll(bits ^ random_bits(i, 5, 8));
        assert_int_equal(bits, random_bits(i, 5, 7));
        if (i != 5) assert_int_not_equal(bits, random_bits(5, i, 7));
        assert_int_not_equal(bits, random_bits(i, 7, 5));
    }
    // 64,000 coins: 32,000 heads, 126 being the deviation; 6 of them.
    for (int k = 0; k < 3; k++) assert_in_range(changed[k], 32000 - 760, 32000 + 760);
}

// Sixteen drawers of equal width: chi-squared of 15 degrees, 50 being beyond one in 40,000.
static void test_uniform(void **state) {
    (void)state;
    enum { N = 1000000 };
    double n[16] = {0}, chi = 0, sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        const double u = random_uniform(7, 11, i);
        assert_true(u >= 0);
        assert_true(u < 1);
        n[(int)(16 * u)]++;
        sum += u;
    }
    for (int k = 0; k < 16; k++) chi += (n[k] - N / 16) * (n[k] - N / 16) / (N / 16);
    assert_true(chi < 50);
    assert_true(chi > 2);
    assert_true(fabs(sum / N - 0.5) <= 5 * sqrt(1 / 12.0 / N));  // the deviation of a mean
}

// 10^6 pairs: moments within 5 standard deviations of those of independent normal numbers, also of neighbours.
static void test_normal(void **state) {
    (void)state;
    enum { N = 1000000 };
    double sum[4] = {0}, product = 0, neighbours = 0, streams = 0, before = 0;
    for (uint64_t i = 0; i < N; i++) {
        float pair[2], other[2] = {0};
        random_normal_pair(7, 9, i, pair);
        if (i < N / 4) random_normal_pair(7, 10, i, other);
        for (int k = 0; k < 2; k++) {
            double x = (double)pair[k], power = 1;
            for (int p = 0; p < 4; p++) sum[p] += (power *= x);
        }
        product += (double)pair[0] * (double)pair[1];
        neighbours += (double)pair[0] * before;
        streams += (double)pair[0] * (double)other[0];
        before = (double)pair[1];
    }
    const double moments[4] = {0, 1, 0, 3}, variances[4] = {1, 2, 15, 96};  // of x, x^2, x^3 and x^4
    for (int p = 0; p < 4; p++) {
        assert_true(fabs(sum[p] / (2.0 * N) - moments[p]) <= 5 * sqrt(variances[p] / (2.0 * N)));
    }
    const double deviation = sqrt((double)N);
    assert_true(fabs(product) <= 5 * deviation);
    assert_true(fabs(neighbours) <= 5 * deviation);
    assert_true(fabs(streams) <= 2.5 * deviation);
}

// Every index once, in an order that leaves about one where it was.
static void test_permute(void **state) {
    (void)state;
    static const uint64_t MORE[] = {500, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 300000};
    static bool is_taken[300000];
    for (uint64_t k = 1; k < 270; k++) {
        uint64_t n = k <= 257 ? k : MORE[k - 258], fixed = 0;
        memset(is_taken, 0, sizeof(is_taken));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = random_permute(k, 3, n, i);
            assert_true(at < n);
            assert_false(is_taken[at]);
            is_taken[at] = true;
            fixed += at == i;
        }
        assert_true(n < 20 || fixed < 10);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(random_permute(1, 1, (1ull << 40) + 1, i << 30) <= 1ull << 40);
        assert_true(random_permute(1, 1, 1000, i) < 1000);
    }
}

// Neighbours go apart: of two that follow each other, either may be the larger (n / 2 ascents, the variance of their
// number being n / 12), and a third of the way lies between them.
static void test_a_permutation_has_no_pattern(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1000, 1024, 4096, 100000};
    for (int i = 0; i < 4; i++) {
        const double n = (double)sizes[i];
        double ascents = 0, distance = 0;
        for (uint64_t k = 0; k + 1 < sizes[i]; k++) {
            const double a = (double)random_permute(7, 3, sizes[i], k),
                         b = (double)random_permute(7, 3, sizes[i], k + 1);
            ascents += b > a;
            distance += fabs(b - a);
        }
        assert_true(fabs(ascents - n / 2) < 5 * sqrt(n / 12));
        assert_true(fabs(distance / n - n / 3) < 5 * n / sqrt(18 * n) * 1.5);  // neighbouring pairs share a number
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixing_is_that_of_splitmix64),
        cmocka_unit_test(test_every_key_counts),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_permute),
        cmocka_unit_test(test_a_permutation_has_no_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
