// test_memory.c - the ledger, the plan, the witness: whatever differs from the plan must end the run.
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
    free(memory);
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
        cmocka_unit_test(test_what_differs_from_the_plan_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
