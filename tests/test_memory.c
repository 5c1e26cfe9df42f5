// test_memory.c - memory.h: places and counts of what is taken, phases and their peaks, and that whatever differs from
// the plan ends the run.
//
// Everything that runs operations is run in a child process, since it is to die (and OpenMP does not survive a fork).
#include "test_helpers.h"

#include "../dev/memory.h"

// ---------------------------------------------------------------------------------------------------------------
// The ledger alone

static Memory *planning_memory(void) {
    Memory *memory = (Memory *)calloc(1, sizeof(Memory));
    assert_non_null(memory);
    static Device device;
    device.kind = device.real = DEVICE_CPU;
    memory_open_plan(memory, &device);
    return memory;
}

static void test_takes_are_counted(void **state) {
    (void)state;
    Memory *memory = planning_memory();
    memory_begin(memory, PHASE_SETUP);
    char *kept = (char *)memory_keep(memory, TIER_DEVICE, KIND_WEIGHTS, 100, "weights");
    char *more = (char *)memory_keep(memory, TIER_DEVICE, KIND_MOMENTS, 64, "moments");
    assert_int_equal(more - kept, 128);
    memory_end(memory);
    memory_begin(memory, PHASE_FORWARD);
    char *a = (char *)memory_push(memory, TIER_DEVICE, KIND_ACTIVATIONS, 65, "a");
    size_t mark = memory_mark(memory, TIER_DEVICE);
    char *b = (char *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 1, "b");
    assert_int_equal(a - b, 64);  // the stack grows down
    memory_release(memory, TIER_DEVICE, mark);
    assert_ptr_equal(memory_push(memory, TIER_DEVICE, KIND_LOGITS, 1000, "c"), a - 1024);
    memory_release(memory, TIER_DEVICE, 0);
    memory_push(memory, TIER_HOST, KIND_DATA, 10, "d");
    memory_release(memory, TIER_HOST, 0);
    memory_end(memory);
    const PhaseLedger *setup = &memory->ledger.phases[PHASE_SETUP], *forward = &memory->ledger.phases[PHASE_FORWARD];
    assert_int_equal(setup->peak[TIER_DEVICE], 192);
    assert_int_equal(forward->peak[TIER_DEVICE], 192 + 128 + 1024);
    assert_int_equal(forward->kinds[TIER_DEVICE][KIND_LOGITS], 1024);
    assert_int_equal(forward->kinds[TIER_DEVICE][KIND_SCRATCH], 0);  // gone at the moment of the peak
    assert_int_equal(forward->kinds[TIER_DEVICE][KIND_ACTIVATIONS], 128);
    assert_int_equal(forward->peak[TIER_HOST], 64);
    assert_int_equal(ledger_peak(&memory->ledger, TIER_DEVICE), 1344);
    assert_int_equal(ledger_peak_phase(&memory->ledger, TIER_DEVICE), PHASE_FORWARD);
    assert_int_equal(memory_slab_used(&memory->slabs[TIER_DEVICE]), 192);
    // A later phase has a peak of its own, not the highest so far.
    memory_begin(memory, PHASE_UPDATE);
    memory_end(memory);
    assert_int_equal(memory->ledger.phases[PHASE_UPDATE].peak[TIER_DEVICE], 192);
    memory_close(memory);
    free(memory);
}

static void test_steps_have_peaks_of_their_own(void **state) {
    (void)state;
    Memory *memory = planning_memory();
    memory_begin(memory, PHASE_FORWARD);
    memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 1 << 20, "large");
    memory_release(memory, TIER_DEVICE, 0);
    memory_end(memory);
    memory_step(memory);
    memory_begin(memory, PHASE_UPDATE);
    memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 640, "small");
    memory_release(memory, TIER_DEVICE, 0);
    memory_end(memory);
    assert_int_equal(memory->step_peak[TIER_DEVICE], 640);
    memory_close(memory);
    free(memory);
}

// Sizes are rounded up and places are multiples of what was asked for; what is lost between counts as the taker's.
static void test_places_are_aligned(void **state) {
    (void)state;
    Memory *memory = planning_memory();
    char *base = memory->slabs[TIER_HOST].base, *end = base + memory->slabs[TIER_HOST].capacity;
    assert_ptr_equal(memory_keep(memory, TIER_HOST, KIND_DATA, 1, "a"), base);
    assert_ptr_equal(memory_keep_aligned(memory, TIER_HOST, KIND_FILES, 1, 4096, "b"), base + 4096);
    assert_ptr_equal(memory_keep(memory, TIER_HOST, KIND_DATA, 0, "nothing"), base + 8192);
    assert_ptr_equal(memory_keep(memory, TIER_HOST, KIND_DATA, 65, "c"), base + 8192);
    assert_int_equal(memory->slabs[TIER_HOST].kinds[KIND_FILES], 8192 - 64);
    assert_int_equal(memory->slabs[TIER_HOST].kinds[KIND_DATA], 64 + 128);
    assert_int_equal(memory_slab_used(&memory->slabs[TIER_HOST]), 8192 + 128);
    assert_ptr_equal(memory_push(memory, TIER_HOST, KIND_SCRATCH, 1, "d"), end - 64);
    const size_t mark = memory_mark(memory, TIER_HOST);
    assert_ptr_equal(memory_push_aligned(memory, TIER_HOST, KIND_SCRATCH, 1, 4096, "e"), end - 4096);
    assert_int_equal(memory->slabs[TIER_HOST].kinds[KIND_SCRATCH], 4096);
    memory_release(memory, TIER_HOST, mark);
    assert_int_equal(memory->slabs[TIER_HOST].kinds[KIND_SCRATCH], 64);
    memory_release(memory, TIER_HOST, mark);  // to where it is
    assert_ptr_equal(memory_push(memory, TIER_HOST, KIND_SCRATCH, 64, "f"), end - 128);
    memory_close(memory);
    free(memory);
}

// A plan's stack is as deep as it has to be, and the ledger says how deep.
static void test_a_plan_may_stack_any_number(void **state) {
    (void)state;
    Memory *memory = planning_memory();
    for (int i = 0; i < 1000; i++) memory_push(memory, TIER_DEVICE, (Kind)(i % KINDS), 64, "one of many");
    assert_int_equal(memory->ledger.depth[TIER_DEVICE], 1000);
    assert_int_equal(memory->ledger.depth[TIER_HOST], 0);
    memory_release(memory, TIER_DEVICE, 400);
    assert_int_equal(memory_slab_used(&memory->slabs[TIER_DEVICE]), 400 * 64);
    assert_int_equal(memory->slabs[TIER_DEVICE].kinds[KIND_WEIGHTS], 34 * 64);  // 0, 12, ... 396
    memory_release(memory, TIER_DEVICE, 0);
    for (int k = 0; k < KINDS; k++) assert_int_equal(memory->slabs[TIER_DEVICE].kinds[k], 0);
    assert_int_equal(memory->ledger.depth[TIER_DEVICE], 1000);
    memory_close(memory);
    free(memory);
}

// A phase that was cut short is as if it had never begun; one that has occurred before stays as it was.
static void test_a_phase_that_is_cut_short(void **state) {
    (void)state;
    Memory *memory = planning_memory();
    for (int time = 0; time < 3; time++) {
        memory_begin(memory, PHASE_SAMPLE);
        memory_push(memory, TIER_DEVICE, KIND_SCRATCH, time == 1 ? 128 : 64, "a");
        memory_release(memory, TIER_DEVICE, 0);
        if (time == 1) memory_end(memory);
        else memory_abandon(memory);
        const PhaseLedger *phase = &memory->ledger.phases[PHASE_SAMPLE];
        assert_int_equal(phase->occurred, time > 0);
        assert_int_equal(phase->peak[TIER_DEVICE], time > 0 ? 128 : 0);
    }
    memory_close(memory);
    free(memory);
}

static void repeat_a_phase(void *other) {
    Memory *memory = planning_memory();
    for (int time = 0; time < 2; time++) {
        memory_begin(memory, PHASE_HEAD);
        memory_push(memory, TIER_DEVICE, time ? *(Kind *)other : KIND_SCRATCH, 64, "a");
        memory_release(memory, TIER_DEVICE, 0);
        memory_end(memory);
    }
}

static void test_a_phase_is_the_same_every_time(void **state) {
    (void)state;
    Kind same = KIND_SCRATCH, other = KIND_LOGITS;
    expect_exit(repeat_a_phase, &same, 0, "");
    expect_die(repeat_a_phase, &other, "phase head takes other buffers the second time|is a bug");
}

static void stack_deeper_than_planned(void *unused) {
    (void)unused;
    Memory *memory = planning_memory();
    memory_push(memory, TIER_HOST, KIND_SCRATCH, 4096, "a");
    Ledger plan = memory->ledger;
    plan.phases[PHASE_SETUP].peak[TIER_HOST] = 4096;
    memory_reserve(memory, memory->device, &plan, ".", 0);
    memory_push(memory, TIER_HOST, KIND_SCRATCH, 64, "a");
    memory_push(memory, TIER_HOST, KIND_SCRATCH, 64, "b");
}

static void test_a_run_stacks_no_more_than_planned(void **state) {
    (void)state;
    expect_die(stack_deeper_than_planned, NULL, "host memory: b is buffer 2 on the stack, the plan has 1|is a bug");
}

// ---------------------------------------------------------------------------------------------------------------
// A run of two phases by hand, with one fault each

typedef enum {
    FAULT_NONE,
    FAULT_LARGER,         // a take of 128 bytes more, within the capacity (another phase has a higher peak)
    FAULT_SMALLER,        // 128 bytes less
    FAULT_MORE_TAKES,     // one more, below the peak
    FAULT_OTHER_KIND,     // the same bytes under another name
    FAULT_OVER_CAPACITY,  // more than was reserved
    FAULT_TOUCH_ABOVE,    // one byte beyond the ledger's peak
    FAULT_TOUCH_BELOW,    // the topmost buffer was never used
    FAULT_WORKSPACE_TOP,  // the same, for a workspace: allowed
    FAULT_KEPT,           // 128 bytes more for the whole run
    FAULT_HOST_TOUCH,     // beyond the peak of the host's slab
    FAULTS
} Fault;

static void run_by_hand(Memory *memory, Fault fault, bool real) {
    Fault f = real ? fault : FAULT_NONE;
    Kind kind = fault == FAULT_WORKSPACE_TOP ? KIND_WORKSPACE : f == FAULT_OTHER_KIND ? KIND_LOGITS : KIND_SCRATCH;
    memory_begin(memory, PHASE_SETUP);
    char *kept = (char *)memory_keep(memory, TIER_DEVICE, KIND_WEIGHTS, f == FAULT_KEPT ? 4224 : 4096, "weights");
    if (real) memset(kept, 1, 4096);
    memory_end(memory);

    memory_begin(memory, PHASE_FORWARD);
    memory_push(memory, TIER_HOST, KIND_DATA, 64, "host");
    memory_release(memory, TIER_HOST, 0);
    char *a = (char *)memory_push(memory, TIER_DEVICE, KIND_ACTIVATIONS, 1024, "a");
    size_t mark = memory_mark(memory, TIER_DEVICE);
    if (f == FAULT_MORE_TAKES) memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 64, "extra");
    memory_release(memory, TIER_DEVICE, mark);
    size_t n = f == FAULT_LARGER ? 2176 : f == FAULT_SMALLER ? 1920 : f == FAULT_OVER_CAPACITY ? 1 << 20 : 2048;
    char *b = (char *)memory_push(memory, TIER_DEVICE, kind, n, "b");
    if (real) {
        memset(a, 2, 1024);
        if (f != FAULT_TOUCH_BELOW && f != FAULT_WORKSPACE_TOP) memset(b, 3, n);
        if (f == FAULT_TOUCH_ABOVE) b[-1] = 4;
        char *end = memory->slabs[TIER_HOST].base + memory->slabs[TIER_HOST].capacity;
        memset(end - 64, 5, 64);
        if (f == FAULT_HOST_TOUCH) end[-128] = 5;
    }
    memory_release(memory, TIER_DEVICE, 0);
    memory_end(memory);

    memory_begin(memory, PHASE_UPDATE);
    memory_push(memory, TIER_HOST, KIND_DATA, 128, "host");
    char *c = (char *)memory_push(memory, TIER_DEVICE, KIND_SCRATCH, 8192, "c");
    if (real) {
        memset(c, 6, 64);
        memset(memory->slabs[TIER_HOST].base + memory->slabs[TIER_HOST].capacity - 128, 6, 64);
    }
    memory_release(memory, TIER_DEVICE, 0);
    memory_release(memory, TIER_HOST, 0);
    memory_end(memory);
}

static void faulty_run(void *argument) {
    Fault fault = *(Fault *)argument;
    Memory *memory = planning_memory();
    run_by_hand(memory, fault, false);
    Ledger plan = memory->ledger;
    memory_reserve(memory, memory->device, &plan, ".", 0);
    run_by_hand(memory, fault, true);
    memory_close(memory);
    free(memory);
}

static void test_what_differs_from_the_plan_ends_the_run(void **state) {
    (void)state;
    static const char *const words[FAULTS] = {
        NULL, "forward|planned 7168 bytes, took 7296", "forward|planned 7168 bytes, took 7040",
        "forward|other buffers than planned", "forward|other buffers than planned", "b takes 1048576 bytes",
        "forward|the ledger says 7168 bytes, 7176 were", "forward|the ledger says 7168 bytes, 5120 were", NULL,
        "setup|planned 4096 bytes, took 4224", "host|forward|the ledger says 64 bytes, 128 were"};
    for (int f = 0; f < FAULTS; f++) {
        Fault fault = (Fault)f;
        if (words[f]) expect_die(faulty_run, &fault, words[f]);
        else expect_exit(faulty_run, &fault, 0, "");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_are_counted),
        cmocka_unit_test(test_steps_have_peaks_of_their_own),
        cmocka_unit_test(test_places_are_aligned),
        cmocka_unit_test(test_a_plan_may_stack_any_number),
        cmocka_unit_test(test_a_phase_that_is_cut_short),
        cmocka_unit_test(test_a_phase_is_the_same_every_time),
        cmocka_unit_test(test_a_run_stacks_no_more_than_planned),
        cmocka_unit_test(test_what_differs_from_the_plan_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
