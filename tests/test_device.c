// test_device.c - device.h: plain operations on memory, events and joins in every order of the queues, costs that PLAN
// counts, and that PLAN touches nothing.
#include "device_helpers.h"

#include "../dev/device.h"

static void *const NOWHERE = (void *)((uintptr_t)1 << 56);  // a touch of it ends the program

static void test_plain_operations(void **state) {
    (void)state;
    Device device;
    const Order order = {QUEUE_EAGER, 0};
    open_cpu(&device, order);
    char a[8] = "abcdefg", b[8];
    device_upload(&device, b, a, 8);
    assert_string_equal(b, "abcdefg");
    device_zero(&device, a + 2, 3);
    assert_memory_equal(a, "ab\0\0\0fg", 8);
    device_download(&device, b, a, 8);
    assert_memory_equal(b, a, 8);
    device_zero(&device, a, 0);
    assert_int_equal(a[0], 'a');
    device_wait(&device);
    assert_true(device.flops == 0);
    assert_true(device.bytes == 0);
    close_cpu(&device);
}

// Reads and writes of every operation, each byte once; no memory is behind the addresses.
static void test_plan_counts_and_touches_nothing(void **state) {
    (void)state;
    Device cpu, plan;
    DeviceEvent *joins[QUEUES];
    memset(&cpu, 0, sizeof(cpu));
    cpu.kind = cpu.real = DEVICE_CPU;
    cpu.threads = 7;
    cpu.name = "name";
    cpu.compute_capability = 89;
    cpu.flops = 5;
    device_stand_in(&plan, &cpu);
    assert_int_equal(plan.kind, DEVICE_PLAN);
    assert_int_equal(plan.real, DEVICE_CPU);
    assert_int_equal(plan.threads, 7);
    assert_string_equal(plan.name, "name");
    assert_int_equal(plan.compute_capability, 89);
    assert_null(plan.queues);
    assert_true(plan.flops == 0);
    device_zero(&plan, NOWHERE, 100);
    assert_true(plan.bytes == 100);
    device_upload(&plan, NOWHERE, NOWHERE, 10);
    assert_true(plan.bytes == 120);
    device_download(&plan, NOWHERE, NOWHERE, 10);
    assert_true(plan.bytes == 140);
    device_copy(&plan, QUEUE_FETCH, NOWHERE, NOWHERE, (size_t)1 << 40);
    assert_true(plan.bytes == 140 + 0x1p41);
    device_count(&plan, 3, 4);
    assert_true(plan.flops == 3);
    assert_true(plan.bytes == 144 + 0x1p41);
    device_call(&plan, QUEUE_STASH, (void (*)(void *))(uintptr_t)NOWHERE, NULL, 0);
    for (int q = 0; q < QUEUES; q++) joins[q] = device_event(&plan);
    device_join(&plan, joins);
    device_wait_event(&plan, joins[0]);
    device_wait(&plan);
    assert_true(plan.bytes == 144 + 0x1p41);
}

typedef struct {
    int *log, *n, number;
} Mark;

static void append(void *argument) {
    const Mark *mark = (const Mark *)argument;
    mark->log[(*mark->n)++] = mark->number;
}

// A chain over three queues, each link behind an event of the one before: in every order it runs in this one.
static void test_events_order_queues(void **state) {
    (void)state;
    static const Queue queues[] = {QUEUE_FETCH, QUEUE_COLLECTIVE, QUEUE_STASH};
    for (int i = 0; i < N_ORDERS; i++) {
        Device device;
        int log[64], n = 0;
        open_cpu(&device, EVERY_ORDER[i]);
        DeviceEvent *event = device_event(&device), *end = device_event(&device);
        for (int link = 0; link < 30; link++) {
            const Mark mark = {log, &n, link};
            if (link > 0) device_await(&device, queues[link % 3], event);
            device_call(&device, queues[link % 3], append, &mark, sizeof(mark));
            device_record(&device, queues[link % 3], event);
        }
        device_record(&device, queues[29 % 3], end);
        device_wait_event(&device, end);
        assert_true(device_event_passed(&device, end));
        assert_int_equal(n, 30);
        for (int link = 0; link < 30; link++) assert_int_equal(log[link], link);
        close_cpu(&device);
    }
}

// Whatever was called on any queue runs before what is called after a join, on any queue.
static void test_a_join_orders_everything(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        Device device;
        int log[QUEUES * 2][4], n[QUEUES * 2] = {0};
        DeviceEvent *joins[QUEUES];
        char from[QUEUES] = {0}, to[QUEUES] = {0};
        open_cpu(&device, EVERY_ORDER[i]);
        for (int q = 0; q < QUEUES; q++) joins[q] = device_event(&device);
        for (int round = 0; round < 3; round++) {
            // Each queue writes its byte; after the join, its neighbour reads it.
            for (int q = 0; q < QUEUES; q++) {
                const Mark mark = {log[q], &n[q], round};
                from[q] = (char)('a' + round);
                device_call(&device, (Queue)q, append, &mark, sizeof(mark));
                device_copy(&device, (Queue)q, &to[q], &from[q], 1);
            }
            device_join(&device, joins);
            for (int q = 0; q < QUEUES; q++) {
                device_copy(&device, (Queue)((q + 1) % QUEUES), &from[q], &to[q], 1);
            }
            device_join(&device, joins);
            for (int q = 0; q < QUEUES; q++) {  // the compute queue is the host: it has waited
                assert_int_equal(from[q], 'a' + round);
                assert_int_equal(n[q], round + 1);
            }
        }
        close_cpu(&device);
    }
}

// An event that nobody has recorded has happened.
static void test_an_event_without_a_record(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        Device device;
        open_cpu(&device, EVERY_ORDER[i]);
        DeviceEvent *event = device_event(&device);
        assert_true(device_event_passed(&device, event));
        device_await(&device, QUEUE_FETCH, event);
        device_wait_event(&device, event);
        close_cpu(&device);
    }
}

static void take_events(void *count) {
    Device device;
    memset(&device, 0, sizeof(device));
    for (int i = 0; i < *(int *)count; i++) {
        if (device_event(&device)->cuda != (size_t)i) _exit(97);
    }
    device_events_reset(&device);
    if (device_event(&device) != &device.events[0]) _exit(96);
}

static void test_events_are_counted(void **state) {
    (void)state;
    int n = DEVICE_EVENTS;
    expect_exit(take_events, &n, 0, "");
    n++;
    expect_die(take_events, &n, "more than 64 events|is a bug");
}

static void test_the_clock_runs_forward(void **state) {
    (void)state;
    double last = device_seconds();
    for (int i = 0; i < 1000; i++) {
        const double now = device_seconds();
        assert_true(now >= last);
        last = now;
    }
    const double start = device_seconds();
    usleep(20000);
    assert_true(device_seconds() - start >= 0.02);
    assert_true(device_seconds() - start < 20);
}

#ifndef __CUDACC__
static void zero_on_cuda(void *unused) {
    (void)unused;
    Device device;
    memset(&device, 0, sizeof(device));
    device.kind = device.real = DEVICE_CUDA;
    device_zero(&device, &device.flops, 1);
}

static void test_without_cuda_there_is_no_gpu(void **state) {
    (void)state;
    expect_die(zero_on_cuda, NULL, "built without CUDA|--device cpu");
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_operations),
        cmocka_unit_test(test_plan_counts_and_touches_nothing),
        cmocka_unit_test(test_events_order_queues),
        cmocka_unit_test(test_a_join_orders_everything),
        cmocka_unit_test(test_an_event_without_a_record),
        cmocka_unit_test(test_events_are_counted),
        cmocka_unit_test(test_the_clock_runs_forward),
#ifndef __CUDACC__
        cmocka_unit_test(test_without_cuda_there_is_no_gpu),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
