// test_schedule.c - schedule.h: the learning rate of every kind at its corners, worked out by hand.
#include "test_helpers.h"

#include <float.h>

#include "../dev/schedule.h"

// Within some roundings of what was worked out by hand.
static void expect_lr(const Schedule *s, int64_t t, double right) {
    const double lr = schedule_lr(s, t);
    if (!(fabs(lr - right) <= 8 * DBL_EPSILON * right)) {
        fail_msg("%s: update %lld: %.17g, not %.17g", s->kind, (long long)t, lr, right);
    }
}

// 10 updates up to 2, then 100 down to a tenth of it.
static void test_the_warm_up(void **state) {
    (void)state;
    static const char *const kinds[] = {"cosine", "linear", "constant", "wsd"};
    for (int k = 0; k < 4; k++) {
        Schedule s = {kinds[k], 2.0, 0.1, 10, 110};
        expect_lr(&s, 0, 0.2);
        expect_lr(&s, 4, 1.0);
        expect_lr(&s, 9, 2.0);
        expect_lr(&s, 10, 2.0);
        s.warmup = 0;
        expect_lr(&s, 0, 2.0);
        s.warmup = 1;
        expect_lr(&s, 0, 2.0);
        expect_lr(&s, 1, 2.0);
        s.warmup = 1000;  // longer than the run
        expect_lr(&s, 109, 0.22);
        s.lr = 0;
        expect_lr(&s, 50, 0);
    }
}

static void test_the_way_down(void **state) {
    (void)state;
    Schedule s = {"cosine", 2.0, 0.1, 10, 110};
    expect_lr(&s, 35, 0.2 + 0.5 * (1 + 0.70710678118654752) * 1.8);  // a quarter of the way: cos(45 degrees)
    expect_lr(&s, 60, 1.1);
    expect_lr(&s, 110, 0.2);
    s.kind = "linear";
    expect_lr(&s, 35, 0.2 + 0.75 * 1.8);
    expect_lr(&s, 60, 1.1);
    expect_lr(&s, 109, 0.2 + 0.01 * 1.8);
    expect_lr(&s, 110, 0.2);
    s.kind = "constant";
    expect_lr(&s, 109, 2.0);
    expect_lr(&s, 110, 2.0);
    s.kind = "wsd";  // the last fifth of 110 updates are 22
    expect_lr(&s, 87, 2.0);
    expect_lr(&s, 88, 2.0);
    expect_lr(&s, 99, 1.1);
    expect_lr(&s, 110, 0.2);
    s.warmup = 86;  // it ends just before the last fifth begins
    expect_lr(&s, 87, 2.0);
    expect_lr(&s, 99, 1.1);
    s.warmup = 90;  // and within it
    expect_lr(&s, 100, 1.1);
    s.warmup = 10;
    s.final_fraction = 0;
    expect_lr(&s, 110, 0);
    s.final_fraction = 1;
    expect_lr(&s, 99, 2.0);
}

// A resumed run may go beyond its steps; and a run of no steps, or of none after the warm-up, has its lowest rate.
static void test_beyond_the_end(void **state) {
    (void)state;
    static const char *const kinds[] = {"cosine", "linear", "wsd"};
    for (int k = 0; k < 3; k++) {
        Schedule s = {kinds[k], 2.0, 0.1, 10, 110};
        expect_lr(&s, 111, 0.2);
        expect_lr(&s, INT64_MAX, 0.2);
        s.steps = 10;
        expect_lr(&s, 10, 0.2);
        s.warmup = s.steps = 0;
        expect_lr(&s, 0, 0.2);
    }
}

static void test_it_never_rises_after_the_warm_up(void **state) {
    (void)state;
    static const char *const kinds[] = {"cosine", "linear", "constant", "wsd"};
    for (int k = 0; k < 4; k++) {
        const Schedule s = {kinds[k], 0.001, 0.1, 7, 103};
        for (int64_t t = 0; t < 7; t++) assert_true(schedule_lr(&s, t + 1) > schedule_lr(&s, t) || t == 6);
        for (int64_t t = 7; t < 200; t++) {
            assert_true(schedule_lr(&s, t + 1) <= schedule_lr(&s, t));
            assert_true(schedule_lr(&s, t) >= 0.0001 * (1 - 4 * DBL_EPSILON));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_warm_up),
        cmocka_unit_test(test_the_way_down),
        cmocka_unit_test(test_beyond_the_end),
        cmocka_unit_test(test_it_never_rises_after_the_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
