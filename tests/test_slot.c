// test_slot.c - slot.h: blocks that go through slots from queue to queue arrive whole, in every order of the queues;
// and with any one of the four calls left out they do not.
#include "device_helpers.h"

#include "../dev/slot.h"

enum { BLOCKS = 9, BYTES = 64 };
enum { FETCH, FILLED, READY, DONE, NO_CALL };

typedef struct {
    char *slot, *to;
} Read;

// The reader's work on a queue: it takes the slot's bytes away.
static void take_away(void *argument) {
    const Read *read = (const Read *)argument;
    memcpy(read->to, read->slot, BYTES);
}

// All blocks through two slots, filled on FETCH and read on STASH; one of the calls may be left out. Whether all came
// out as they went in.
static bool blocks_arrive(Order order, int left_out) {
    Device device;
    char in[BLOCKS][BYTES], out[BLOCKS][BYTES], room[2][BYTES];
    Slot slots[2];
    open_cpu(&device, order);
    memset(room, 0, sizeof(room));
    memset(out, 0, sizeof(out));
    for (int i = 0; i < 2; i++) slot_open(&slots[i], &device, room[i]);
    for (int b = 0; b < BLOCKS; b++) {
        memset(in[b], 'a' + b, BYTES);
        Slot *slot = &slots[b % 2];
        if (left_out != FETCH) slot_fetch(&device, slot, QUEUE_FETCH);
        device_copy(&device, QUEUE_FETCH, slot->data, in[b], BYTES);
        if (left_out == NO_CALL && b % 2) {
            slot_send(&device, slot, QUEUE_FETCH, QUEUE_STASH);  // the two that follow, in one
        } else {
            if (left_out != FILLED) slot_filled(&device, slot, QUEUE_FETCH);
            if (left_out != READY) slot_ready(&device, slot, QUEUE_STASH);
        }
        const Read read = {slot->data, out[b]};
        device_call(&device, QUEUE_STASH, take_away, &read, sizeof(read));
        if (left_out != DONE) slot_done(&device, slot, QUEUE_STASH);
    }
    close_cpu(&device);
    return memcmp(in, out, sizeof(in)) == 0;
}

static void test_blocks_arrive_in_every_order(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) assert_true(blocks_arrive(EVERY_ORDER[i], NO_CALL));
}

// None of the four calls can be spared: some order of the queues shows it.
static void test_every_call_is_needed(void **state) {
    (void)state;
    for (int left_out = 0; left_out < NO_CALL; left_out++) {
        bool always = true;
        for (uint64_t seed = 0; seed < 50; seed++) {
            const Order order = {QUEUE_SEEDED, seed};
            always = always && blocks_arrive(order, left_out);
        }
        if (always) fail_msg("call %d can be left out", left_out);
    }
}

// What was made in a slot by the compute queue and is sent away stays until it has gone.
static void test_a_slot_that_is_sent(void **state) {
    (void)state;
    for (int i = 0; i < N_ORDERS; i++) {
        Device device;
        char room[BYTES], out[BLOCKS][BYTES], right[BYTES];
        Slot slot;
        open_cpu(&device, EVERY_ORDER[i]);
        slot_open(&slot, &device, room);
        for (int b = 0; b < BLOCKS; b++) {
            slot_fetch(&device, &slot, QUEUE_COMPUTE);
            memset(slot.data, 'a' + b, BYTES);
            slot_send(&device, &slot, QUEUE_COMPUTE, QUEUE_STASH);
            device_copy(&device, QUEUE_STASH, out[b], slot.data, BYTES);
            slot_done(&device, &slot, QUEUE_STASH);
        }
        close_cpu(&device);
        for (int b = 0; b < BLOCKS; b++) {
            memset(right, 'a' + b, BYTES);
            assert_memory_equal(out[b], right, BYTES);
        }
    }
}

// A slot holds a block once it was said to; an open one holds none, not even block 0. Each has two events of its own.
static void test_what_a_slot_holds(void **state) {
    (void)state;
    Device device;
    Slot slots[2];
    char room[1];
    const Order order = {QUEUE_EAGER, 0};
    open_cpu(&device, order);
    memset(slots, 0x5a, sizeof(slots));
    for (int i = 0; i < 2; i++) slot_open(&slots[i], &device, room);
    assert_ptr_equal(slots[0].data, room);
    assert_false(slot_holds(&slots[0], 0));
    slots[0].valid = true;
    slots[0].block = 3;
    assert_true(slot_holds(&slots[0], 3));
    assert_false(slot_holds(&slots[0], 0));
    slots[0].valid = false;
    assert_false(slot_holds(&slots[0], 3));
    const DeviceEvent *const events[] = {slots[0].filled, slots[0].drained, slots[1].filled, slots[1].drained};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < i; j++) assert_ptr_not_equal(events[i], events[j]);
    }
    close_cpu(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_arrive_in_every_order),
        cmocka_unit_test(test_every_call_is_needed),
        cmocka_unit_test(test_a_slot_that_is_sent),
        cmocka_unit_test(test_what_a_slot_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
