// test_memory.c - the ledger, the plan, the witness: whatever differs from the plan must end the run.
//
// Everything that runs operations is run in a child process, since it is to die (and OpenMP does not survive a fork).
#include "test_helpers.h"

#include "../dev/memory.h"

// Every push of the trainer goes through here, so that a test can make any one of them 128 bytes larger.
typedef struct {
    long next, victim;
    size_t extra;
} Sabotage;
static Sabotage sabotage = {0, -1, 0};

static inline void *sabotaged_push(Memory *memory, Tier tier, Kind kind, size_t n_bytes, const char *owner) {
    if (memory->planned && sabotage.next++ == sabotage.victim) n_bytes += sabotage.extra;
    return memory_push(memory, tier, kind, n_bytes, owner);
}
#define memory_push sabotaged_push

#include "trainer_helpers.h"

#undef memory_push

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

// ---------------------------------------------------------------------------------------------------------------
// The same with the whole trainer: any of its takes, 128 bytes larger than planned

static const char *const SABOTAGED = "-e 2x32x2 --vocab 67 -t 24 -b 2 -i random -m 2 -r 2 --head-chunks 2 -p bf16";

static void run_everything(void *argument) {
    sabotage.victim = *(long *)argument;
    sabotage.extra = 128;
    sabotage.next = 0;
    Trainer *m = open_trainer("%s -g 20", SABOTAGED);
    StepRow row;
    start_trainer(m);
    train_step(m, &row);
    validate(m);
    sample(m);
    fprintf(stderr, "%ld takes", sabotage.next);
    close_trainer(m);
}

static void test_any_take_larger_than_planned_ends_the_run(void **state) {
    (void)state;
    char message[256];
    long victim = -1;
    assert_int_equal(run_child(run_everything, &victim, message, sizeof(message)), 0);
    long n_takes = strtol(message, NULL, 10);
    assert_true(n_takes > 100);
    for (int i = 0; i < 40; i++) {
        victim = i < 20 ? i * 3 : n_takes - 1 - (n_takes - 61) * (40 - i - 1) / 20;
        assert_true(victim < n_takes);
        expect_die(run_everything, &victim, "planned|is a bug");
    }
}

// Beyond the ledger in a real phase: a kernel that writes 8 bytes in front of the lowest buffer.
static void touch_beyond(void *argument) {
    (void)argument;
    Trainer *m = open_trainer("%s -g 0 -v 0", SABOTAGED);
    start_trainer(m);
    memory_begin(m->context.memory, PHASE_FORWARD);
    m->dresidual = memory_push(m->context.memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS,
                               m->config.B * m->config.T * m->config.shape.C * 2, "dresidual");
    batch_train(&m->batch, 0, 0);
    model_forward(m, m->config.B, m->config.T, true);
    Slab *slab = &m->context.memory->slabs[TIER_DEVICE];
    const size_t peak = run_of(m)->plan.ledger.phases[PHASE_FORWARD].peak[TIER_DEVICE];
    memset(slab->base + slab->capacity - peak + slab->kept - 8, 1, 8);
    memory_end(m->context.memory);
}

static void test_touching_beyond_the_ledger_ends_the_run(void **state) {
    (void)state;
    expect_die(touch_beyond, NULL, "forward|the ledger says");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_are_counted),
        cmocka_unit_test(test_steps_have_peaks_of_their_own),
        cmocka_unit_test(test_what_differs_from_the_plan_ends_the_run),
        cmocka_unit_test(test_any_take_larger_than_planned_ends_the_run),
        cmocka_unit_test(test_touching_beyond_the_ledger_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
