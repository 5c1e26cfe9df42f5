// test_devices.c - devices.h: which device a name means, what a planned one is taken to have, what it says of itself,
// and that the rate of products is measured in memory that is given back.
#include "test_helpers.h"

#include "../dev/devices.h"

typedef struct {
    const char *name;
    double memory;
    Device device;
} Opening;

static void open_it(void *argument) {
    Opening *o = (Opening *)argument;
    Ranks ranks;
    ranks_open_plan(&ranks, 1);
    device_open(&o->device, o->name, &o->memory, &ranks);
}

// Memory as owners see it, in GiB; what was given on the command line stays.
static void test_devices_to_plan_for(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int capability;
        double gib;
    } right[] = {{"plan:h200", 90, 139}, {"plan:h100", 90, 79}, {"plan:a100", 80, 79}, {"plan:rtx4090", 89, 23.5},
                 {"plan:rtx3090", 86, 23.5}};
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        for (int given = 0; given < 2; given++) {
            Opening o = {right[i].name, given ? 12345 : 0, {0}};
            char text[256];
            open_it(&o);
            assert_int_equal(o.device.real, DEVICE_CUDA);
            assert_null(o.device.cuda);
            assert_string_equal(o.device.name, right[i].name + 5);
            assert_int_equal(o.device.compute_capability, right[i].capability);
            assert_true(o.memory == (given ? 12345 : right[i].gib * 1073741824.0));
            device_describe(&o.device, BF16, text, sizeof(text));
            char words[128];
            snprintf(words, sizeof(words), "%s (not here), compute capability %d.%d; bf16", right[i].name + 5,
                     right[i].capability / 10, right[i].capability % 10);
            assert_string_equal(text, words);
            assert_true(device_multiplies_bf16(&o.device));
            device_close(&o.device);
        }
    }
}

static void test_the_cpu(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "plan:cpu", "plan"};
    for (int i = 0; i < 3; i++) {
        Opening o = {names[i], 0, {0}};
        char text[256], beginning[64];
        open_it(&o);
        assert_int_equal(o.device.kind, DEVICE_CPU);
        assert_int_equal(o.device.real, DEVICE_CPU);
        assert_non_null(o.device.queues);
        assert_true(o.memory == 0);
        assert_true(o.device.threads >= 1);
        snprintf(beginning, sizeof(beginning), "CPU, %d thread%s, ", o.device.threads, o.device.threads > 1 ? "s" : "");
        for (int dtype = FP32; dtype < DTYPES; dtype++) {
            const bool native = dtype == FP32 || (dtype == BF16 && device_multiplies_bf16(&o.device));
            char end[64];
            snprintf(end, sizeof(end), "; %s%s", number_name((Dtype)dtype), native ? "" : " storage, fp32 arithmetic");
            device_describe(&o.device, (Dtype)dtype, text, sizeof(text));
            assert_memory_equal(text, beginning, strlen(beginning));
            assert_string_equal(strrchr(text, ';'), end);
        }
        assert_true(device_available(&o.device) > 1 << 20);
        device_close(&o.device);
    }
}

static void test_names_that_mean_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"gpu", "", "CPU", "cpus", "plan:", "plan:h100 ", "plan:gtx", "plan:cuda",
                                        "planned"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        Opening o = {names[i], 0, {0}};
        char words[128];
        snprintf(words, sizeof(words), "train_gpt: --device %s: |usage:", names[i]);
        expect_exit(open_it, &o, 2, words);
    }
#ifndef __CUDACC__
    Opening cuda = {"cuda", 0, {0}};
    expect_die(open_it, &cuda, "built without CUDA|CUDA=1|--device cpu");
#endif
}

// PLAN stands in for another device; without products of its own, it shares the other's.
static void test_a_stand_in(void **state) {
    (void)state;
    Opening o = {"cpu", 0, {0}};
    Device plan;
    open_it(&o);
    device_open_plan(&plan, &o.device, o.device.matmul);
    assert_int_equal(plan.kind, DEVICE_PLAN);
    assert_ptr_equal(plan.matmul, o.device.matmul);
    device_close_plan(&plan, o.device.matmul);
    device_open_plan(&plan, &o.device, NULL);
    assert_non_null(plan.matmul);
    assert_ptr_not_equal(plan.matmul, o.device.matmul);
    device_close_plan(&plan, NULL);
    device_close(&o.device);
}

// A rate that any processor reaches and none exceeds; nothing stays taken, and no event is used up.
static void test_the_rate_of_products(void **state) {
    (void)state;
    Opening o = {"cpu", 0, {0}};
    open_it(&o);
    for (int dtype = FP32; dtype < DTYPES; dtype++) {
        const double rate = device_best_rate(&o.device, (Dtype)dtype, 64);
        assert_true(rate > 1e5);
        assert_true(rate < 1e15);
    }
    assert_int_equal(o.device.n_events, 0);
    assert_null(o.device.host);
    device_close(&o.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_that_mean_nothing),  // in children, so before any team of threads
        cmocka_unit_test(test_devices_to_plan_for),
        cmocka_unit_test(test_the_cpu),
        cmocka_unit_test(test_a_stand_in),
        cmocka_unit_test(test_the_rate_of_products),
    };
    setenv("OMP_NUM_THREADS", "1", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
