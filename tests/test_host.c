// test_host.c - host.h: before the host touches bytes of its memory that a queue still uses, it waits for that queue,
// and for no other; what the queue only reads the host may read at once.
//
// On queues that are as late as is legal (QUEUE_LAZY) what has run shows what was waited for.
#include "device_helpers.h"

#include "../dev/host.h"

enum { BYTES = 64, PLACES = 40 };

typedef struct {
    Device device;
    char memory[PLACES][BYTES];   // the host's, which queues may use
    char elsewhere[PLACES][BYTES];
} Fixture;

static void open_fixture(Fixture *f, QueueOrder order) {
    const Order lazy = {order, 0};
    memset(f->memory, 'm', sizeof(f->memory));
    memset(f->elsewhere, 'e', sizeof(f->elsewhere));
    open_cpu(&f->device, lazy);
    host_memory(&f->device, f->memory, sizeof(f->memory));
}

static void close_fixture(Fixture *f) {
    host_memory(&f->device, NULL, 0);
    close_cpu(&f->device);
}

// Whether a copy into a place has run.
static bool has_run(const char *place, char from) { return place[0] == from && place[BYTES - 1] == from; }

static void test_a_queue_that_reads(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f, QUEUE_LAZY);
    device_copy(&f.device, QUEUE_STASH, f.elsewhere[0], f.memory[3], BYTES);
    assert_true(host_reads(&f.device, f.memory[3], BYTES));
    assert_false(has_run(f.elsewhere[0], 'm'));
    assert_true(host_writes(&f.device, f.memory[2], BYTES));  // the bytes before it
    assert_true(host_writes(&f.device, f.memory[4], BYTES));  // and after it
    assert_true(host_writes(&f.device, f.memory[3] + 5, 0));  // none of it
    assert_false(has_run(f.elsewhere[0], 'm'));
    assert_true(host_writes(&f.device, f.memory[3] + BYTES - 1, 1));
    assert_true(has_run(f.elsewhere[0], 'm'));
    close_fixture(&f);
}

static void test_a_queue_that_writes(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f, QUEUE_LAZY);
    device_copy(&f.device, QUEUE_FETCH, f.memory[3], f.elsewhere[0], BYTES);
    assert_true(host_reads(&f.device, f.memory[4], BYTES));
    assert_false(has_run(f.memory[3], 'e'));
    assert_true(host_reads(&f.device, f.memory[0], 3 * BYTES + 1));  // its first byte
    assert_true(has_run(f.memory[3], 'e'));
    close_fixture(&f);
}

// Only the queue that uses the bytes is waited for.
static void test_other_queues_stay_behind(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f, QUEUE_LAZY);
    device_copy(&f.device, QUEUE_FETCH, f.memory[1], f.elsewhere[1], BYTES);
    device_copy(&f.device, QUEUE_STASH, f.memory[2], f.elsewhere[2], BYTES);
    device_copy(&f.device, QUEUE_COLLECTIVE, f.memory[3], f.elsewhere[3], BYTES);
    assert_true(host_writes(&f.device, f.memory[2], 1));
    assert_false(has_run(f.memory[1], 'e'));
    assert_true(has_run(f.memory[2], 'e'));
    assert_false(has_run(f.memory[3], 'e'));
    close_fixture(&f);
}

// More uses than a queue remembers (16): the oldest become one, of all bytes between them. None is forgotten.
static void test_more_uses_than_are_remembered(void **state) {
    (void)state;
    for (int place = 0; place < PLACES; place++) {
        Fixture f;
        open_fixture(&f, QUEUE_LAZY);
        for (int i = 0; i < PLACES; i++) {
            device_copy(&f.device, QUEUE_FETCH, f.memory[i * 7 % PLACES], f.elsewhere[i], BYTES);
        }
        assert_true(host_reads(&f.device, f.memory[place], BYTES));
        assert_true(has_run(f.memory[place], 'e'));
        close_fixture(&f);
    }
}

// A use among those that became one is a write if any of them was.
static void test_merged_uses_write_if_any_does(void **state) {
    (void)state;
    for (int writer = 0; writer < 4; writer++) {
        Fixture f;
        open_fixture(&f, QUEUE_LAZY);
        for (int i = 0; i < DEVICE_USES + 4; i++) {
            if (i == writer) device_copy(&f.device, QUEUE_FETCH, f.memory[i], f.elsewhere[i], BYTES);
            else device_copy(&f.device, QUEUE_FETCH, f.elsewhere[i], f.memory[i], BYTES);
        }
        assert_true(host_reads(&f.device, f.memory[writer], BYTES));
        assert_true(has_run(f.memory[writer], 'e'));
        close_fixture(&f);
    }
}

// Memory that is not the host's slab is nobody's business here, and the last is given back once all queues have left
// it.
static void test_memory_begins_and_ends(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f, QUEUE_LAZY);
    device_copy(&f.device, QUEUE_FETCH, f.elsewhere[1], f.elsewhere[2], BYTES);
    for (int q = 0; q < QUEUES; q++) assert_int_equal(f.device.uses[q].n, 0);
    device_copy(&f.device, QUEUE_FETCH, f.elsewhere[0], f.memory[PLACES - 1], BYTES);
    assert_int_equal(f.device.uses[QUEUE_FETCH].n, 1);
    host_memory(&f.device, f.elsewhere, sizeof(f.elsewhere));
    assert_true(has_run(f.elsewhere[0], 'm'));
    assert_int_equal(f.device.uses[QUEUE_FETCH].n, 0);
    device_copy(&f.device, QUEUE_FETCH, f.memory[0], f.elsewhere[0], BYTES);
    assert_int_equal(f.device.uses[QUEUE_FETCH].n, 1);
    close_fixture(&f);
    assert_null(f.device.host);
}

// In any order: what the host then writes is what stays.
static void test_every_order(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        Fixture f;
        open_fixture(&f, EVERY_ORDER[i].order);
        for (int round = 0; round < 50; round++) {
            char *place = f.memory[round % 5];
            device_copy(&f.device, (Queue)(1 + round % 3), place, f.elsewhere[0], BYTES);
            assert_true(host_writes(&f.device, place, BYTES));
            assert_true(has_run(place, 'e'));
            memset(place, 'h', BYTES);
        }
        close_cpu(&f.device);
        for (int p = 0; p < 5; p++) assert_true(has_run(f.memory[p], 'h'));
    }
}

static struct {
    int n;
    const void *pointer;
    size_t n_bytes;
    bool write;
} seen;

static void watch(const void *pointer, size_t n_bytes, bool write) {
    seen.n++;
    seen.pointer = pointer;
    seen.n_bytes = n_bytes;
    seen.write = write;
}

static void test_who_watches_is_told(void **state) {
    (void)state;
    Fixture f;
    const DeviceObserver observer = {NULL, watch, NULL};
    open_fixture(&f, QUEUE_EAGER);
    f.device.observer = &observer;
    memset(&seen, 0, sizeof(seen));
    host_reads(&f.device, f.memory[1], 5);
    assert_int_equal(seen.n, 1);
    assert_ptr_equal(seen.pointer, f.memory[1]);
    assert_int_equal(seen.n_bytes, 5);
    assert_false(seen.write);
    host_writes(&f.device, f.memory[2], BYTES);
    assert_int_equal(seen.n, 2);
    assert_true(seen.write);
    host_writes(&f.device, f.memory[2], 0);
    assert_int_equal(seen.n, 2);
    close_fixture(&f);
}

static void test_a_plan_has_no_memory(void **state) {
    (void)state;
    Device cpu, plan;
    memset(&cpu, 0, sizeof(cpu));
    device_stand_in(&plan, &cpu);
    void *nowhere = (void *)((uintptr_t)1 << 56);
    assert_false(host_reads(&plan, nowhere, 100));
    assert_false(host_writes(&plan, nowhere, 100));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_queue_that_reads),
        cmocka_unit_test(test_a_queue_that_writes),
        cmocka_unit_test(test_other_queues_stay_behind),
        cmocka_unit_test(test_more_uses_than_are_remembered),
        cmocka_unit_test(test_merged_uses_write_if_any_does),
        cmocka_unit_test(test_memory_begins_and_ends),
        cmocka_unit_test(test_every_order),
        cmocka_unit_test(test_who_watches_is_told),
        cmocka_unit_test(test_a_plan_has_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
