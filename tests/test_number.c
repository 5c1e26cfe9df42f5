// test_number.c - number.h: rounding of every 16-bit number, rows in every type, and the functions that vectorise, each
// within its stated error.
#include "test_helpers.h"

#include "../dev/number.h"
#include "../dev/random.h"

// Every bf16 comes back; between each and the next, to the nearest, ties to the even one. All of them: subnormal,
// infinite (beyond the largest) and NaN, which also stays NaN where it has none of its upper 16 bits. Beside 1, the
// relative error is nearly the unit roundoff, and it's nowhere larger.
static void test_bf16_rounding(void **state) {
    (void)state;
    double worst = 0;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = sign; h < sign + 0x8000; h++) {
            uint16_t back = number_to_bf16(number_from_bf16((uint16_t)h));
            if (h - sign > 0x7f80) {
                assert_true(isnan(number_from_bf16((uint16_t)h)) && back == (h | 0x40));
                assert_int_equal(number_to_bf16(number_of_bits(h << 16 | 0x1234)), h | 0x40);
                continue;
            }
            assert_int_equal(back, h);
            for (int i = 0; i < 5; i++) {
                static const uint32_t LOW[5] = {1, 0x7fff, 0x8000, 0x8001, 0xffff};
                uint16_t rounded = number_to_bf16(number_of_bits(h << 16 | LOW[i]));
                if (h - sign == 0x7f80) assert_true(isnan(number_from_bf16(rounded)));
                else assert_int_equal(rounded, h + (i > 2 || (i == 2 && h & 1)));
                double x = (double)number_of_bits(h << 16 | LOW[i]);
                double error = fabs((double)number_from_bf16(rounded) / x - 1);
                if (h - sign >= 0x80 && h - sign < 0x7f7f) worst = fmax(worst, error);
            }
        }
    }
    assert_true(worst <= 0x1p-8 && worst > 0.99 * 0x1p-8);
}

// Every number of fp16, and between neighbours: to the nearest, ties to even, infinity from 65520 on.
static void test_fp16_rounding(void **state) {
    (void)state;
    assert_true(number_from_fp16(0x3c00) == 1);
    assert_true(number_from_fp16(0x7bff) == 65504);
    assert_true(number_from_fp16(1) == 0x1p-24f);
    assert_true(number_from_fp16(0x0400) == 0x1p-14f);
    assert_true(number_from_fp16(0x7c00) == INFINITY);
    assert_true(number_from_fp16(0x8001) < 0);
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = sign; h < sign + 0x8000; h++) {
            float x = number_from_fp16((uint16_t)h);
            if (h - sign > 0x7c00) {
                assert_true(isnan(x) && isnan(number_from_fp16(number_to_fp16(x))));
                continue;
            }
            assert_int_equal(number_to_fp16(x), h);
            if (h - sign >= 0x7bff) continue;
            float next = number_from_fp16((uint16_t)(h + 1)), middle = (x + next) / 2;
            assert_true(fabsf(x) < fabsf(next) && (h == sign || (x < 0) == (sign > 0)));
            assert_int_equal(number_to_fp16(middle), h + (h & 1));
            assert_int_equal(number_to_fp16(nextafterf(middle, x)), h);
            assert_int_equal(number_to_fp16(nextafterf(middle, next)), h + 1);
        }
        float one = sign ? -1.0f : 1.0f;
        assert_int_equal(number_to_fp16(one * 65519.996f), sign | 0x7bff);
        assert_int_equal(number_to_fp16(one * 65520.0f), sign | 0x7c00);
        assert_int_equal(number_to_fp16(one * 1e30f), sign | 0x7c00);
        assert_int_equal(number_to_fp16(one * INFINITY), sign | 0x7c00);
        assert_int_equal(number_to_fp16(one * 1e-30f), sign);
    }
}

// Within 1.5 units in the last place, over all of its range; 0 below it, finite above, NaN for NaN.
static void test_exp(void **state) {
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i <= 3000000; i++) {
        float x = -87.33654f + (float)i * (175.70654f / 3e6f);
        if (i % 3 == 0) x *= (float)exp2(-(double)(i % 31));
        double exact = exp((double)x);
        worst = fmax(worst, fabs((double)number_exp(x) - exact) / ldexp(1, ilogb(exact) - 23));
    }
    assert_true(worst <= 1.5);
    assert_true(number_exp(0) == 1);
    assert_true(number_exp(-0.0f) == 1);
    assert_true(number_exp(-FLT_TRUE_MIN) == 1);
    assert_true(number_exp(-87.337f) == 0);
    assert_true(number_exp(-1e30f) == 0);
    assert_true(number_exp(-INFINITY) == 0);
    assert_true(number_exp(89) == number_exp(INFINITY));
    assert_true(number_exp(89) > 2e38f);
    assert_true(number_exp(89) <= FLT_MAX);
    assert_true(isnan(number_exp(NAN)) && isnan(number_exp(-NAN)));
}

// Within 3 units in the last place for results above 1e-38, and between 0 and 1 everywhere.
static void test_sigmoid(void **state) {
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i <= 3000000; i++) {
        float x = -87.3f + (float)i * (174.6f / 3e6f);
        if (i % 3 == 0) x *= (float)exp2(-(double)(i % 41));
        double exact = 1.0 / (1.0 + exp(-(double)x)), y = (double)number_sigmoid(x);
        worst = fmax(worst, fabs(y - exact) / ldexp(1, ilogb(exact) - 23));
        assert_true(y >= 0 && y <= 1);
    }
    assert_true(worst <= 3);
    assert_true(number_sigmoid(0) == 0.5f);
    assert_true(number_sigmoid(INFINITY) == 1);
    assert_true(number_sigmoid(-INFINITY) < 1e-38f);
    assert_true(isnan(number_sigmoid(NAN)) && isnan(number_sigmoid(-NAN)));
}

// A row of any length at any place, in every type: what is stored comes back rounded, neighbours stay as they were, and
// fp32 is never copied.
static void test_rows_are_loaded_and_stored(void **state) {
    (void)state;
    enum { N = 74, MARK = 0x55 };
    static const float values[] = {1, -2.5f, 1.00390625f, 0.1f, 3e38f, -1e-40f, 65504, 0};
    static const float as_bf16[] = {1, -2.5f, 1, 0.10009765625f, 226 * 0x1p120f, -0x1p-133f, 65536, 0};
    static const float as_fp16[] = {1, -2.5f, 1.00390625f, 0.0999755859375f, INFINITY, 0, 65504, 0};
    const float *const as[DTYPES] = {values, as_bf16, as_fp16};
    for (int dtype = FP32; dtype < DTYPES; dtype++) {
        for (size_t at = 0; at < 3; at++) {
            for (size_t n = 0; n <= 67; n += n < 9 ? 1 : 29) {
                _Alignas(64) unsigned char stored[4 * N], before[4 * N];
                float block[NUMBER_BLOCK], back[NUMBER_BLOCK];
                memset(stored, MARK, sizeof(stored));
                memset(before, MARK, sizeof(before));
                float *target = number_target((Dtype)dtype, stored, at, block);
                assert_ptr_equal(target, dtype == FP32 ? (float *)(void *)stored + at : block);
                for (size_t i = 0; i < n; i++) target[i] = values[i % 8];
                number_store((Dtype)dtype, stored, at, n, target);
                const float *row = number_load((Dtype)dtype, stored, at, n, back);
                assert_ptr_equal(row, dtype == FP32 ? (float *)(void *)stored + at : back);
                for (size_t i = 0; i < n; i++) {
                    assert_true(row[i] == as[dtype][i % 8]);
                    assert_true(number_get((Dtype)dtype, stored, at + i) == as[dtype][i % 8]);
                }
                const size_t size = dtype == FP32 ? 4 : 2;
                assert_memory_equal(stored, before, at * size);
                assert_memory_equal(stored + (at + n) * size, before, sizeof(stored) - (at + n) * size);
                number_put((Dtype)dtype, stored, at + n, -2.5f);
                assert_true(number_get((Dtype)dtype, stored, at + n) == -2.5f);
                assert_memory_equal(stored + (at + n + 1) * size, before, 2 * size);
                assert_ptr_equal(number_pointer((Dtype)dtype, stored, 5), stored + 5 * size);
            }
        }
    }
}

static void test_types(void **state) {
    (void)state;
    assert_int_equal(number_size(FP32), 4);
    assert_int_equal(number_size(BF16), 2);
    assert_int_equal(number_size(FP16), 2);
    static const char *const names[DTYPES] = {"fp32", "bf16", "fp16"};
    for (int dtype = FP32; dtype < DTYPES; dtype++) assert_string_equal(number_name((Dtype)dtype), names[dtype]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_fp16_rounding),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_rows_are_loaded_and_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
