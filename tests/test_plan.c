// test_plan.c - plan.h: what is tried, and in which order, when a run does not fit, and that the first that fits is
// told. The pass over a run is the test's own: it takes what a formula says of the configuration.
#include "test_helpers.h"

#include "../dev/plan.h"

static int n_passes;  // planned so far

// In units of bytes. Whatever is tried makes one of the terms smaller.
enum { UNIT = 4096 };

static size_t on_device(const Config *c) {
    size_t n = (size_t)(LEVEL_BLOCKS - c->recompute) * (c->recompute_layers == c->shape.L ? 100 : 0) * c->B;
    if (c->recompute_layers < c->shape.L) n += 400 * c->B;
    if (c->attention == ATTENTION_PLAIN) n += 50 * c->B;
    n += 160 * c->B / c->head_chunks;
    if (c->place.optimizer == TIER_DEVICE) n += 1000;
    if (c->place.activations == TIER_DEVICE) n += 10 * c->B;
    if (c->place.gradients == TIER_DEVICE) n += 500;
    if (c->place.weights == TIER_DEVICE) n += 250;
    return n;
}

static size_t on_host(const Config *c) {
    size_t n = 1;
    if (c->place.optimizer == TIER_HOST) n += 1000;
    if (c->place.activations == TIER_HOST) n += 10 * c->B;
    if (c->place.gradients == TIER_HOST) n += 500;
    if (c->place.weights == TIER_HOST) n += 250;
    return n;
}

static void pass(const Config *config, Device *device, Memory *memory, Ranks *ranks, Plan *plan) {
    n_passes++;
    assert_int_equal(device->kind, DEVICE_PLAN);
    assert_int_equal(device->real, DEVICE_CPU);
    assert_int_equal(ranks->size, 3);
    memory_begin(memory, PHASE_FORWARD);
    memory_push(memory, TIER_DEVICE, KIND_SCRATCH, on_device(config) * UNIT, "all");
    memory_push(memory, TIER_HOST, KIND_SCRATCH, on_host(config) * UNIT, "all");
    memory_release(memory, TIER_DEVICE, 0);
    memory_release(memory, TIER_HOST, 0);
    memory_end(memory);
    device_count(device, 7, 11);
    plan->flops = device->flops;
    plan->bytes = device->bytes;
}

typedef struct {
    Device device;
    Planner planner;
    Config config;
} Fixture;

static void open_fixture(Fixture *f) {
    memset(f, 0, sizeof(*f));
    f->device.kind = f->device.real = DEVICE_CPU;
    f->planner.device = &f->device;
    f->planner.n_ranks = 3;
    f->planner.pass = pass;
    f->config.shape.L = f->config.recompute_layers = 4;
    f->config.B = 4;
    f->config.T = 64;
    f->config.micro_batches = f->config.head_chunks = 1;
}

static void test_a_plan_is_what_the_pass_takes(void **state) {
    (void)state;
    Fixture f;
    Plan plan, again;
    open_fixture(&f);
    memset(&plan, 0x5a, sizeof(plan));
    plan_make(&f.planner, &f.config, NULL, &plan);
    assert_int_equal(ledger_peak(&plan.ledger, TIER_DEVICE), (1200 + 640 + 1000 + 40 + 500 + 250) * UNIT);
    assert_int_equal(ledger_peak(&plan.ledger, TIER_HOST), UNIT);
    assert_int_equal(ledger_peak(&plan.ledger, TIER_DISK), 0);
    assert_true(plan.ledger.phases[PHASE_FORWARD].occurred);
    assert_false(plan.ledger.phases[PHASE_SETUP].occurred);
    assert_true(plan.flops == 7);
    assert_true(plan.bytes == 11);
    plan_make(&f.planner, &f.config, NULL, &again);  // a pure function
    assert_memory_equal(&plan, &again, sizeof(plan));
}

// Relaxes until nothing is left, and tells each step as flags.
static void expect_steps(Fixture *f, const Budget *budget, const char *const *right) {
    Config c = f->config;
    for (int i = 0;; i++) {
        Plan plan;
        char text[256];
        plan_make(&f->planner, &c, NULL, &plan);
        if (!plan_relax(&c, budget, &plan.ledger)) {
            assert_null(right[i]);
            return;
        }
        config_flags(&c, &f->config, 3, text, sizeof(text));
        if (!right[i] || strcmp(text, right[i]) != 0) fail_msg("step %d: %s, not %s", i, text, right[i]);
        assert_int_equal(c.B * c.micro_batches, f->config.B * f->config.micro_batches);  // the same tokens per step
    }
}

// The cheapest in time first. A host that is full sends the states to the disk, one with room does not.
static void test_what_is_tried_with_room_on_the_host(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    f.config.recompute_layers = 2;
    f.config.attention = ATTENTION_PLAIN;
    f.config.B = 2;
    const Budget budget = {{0, SIZE_MAX, 0}, false};
    static const char *const steps[] = {
        "-b 2 -t 64 -r 0",  // for all layers, which is nothing yet
        "-b 2 -t 64 -r 1",
        "-b 2 -t 64 -r 2",
        "-b 2 -t 64 -r 3",
        "-b 2 -t 64 -r 3 --attention fused",
        "-b 2 -t 64 -r 3 --head-chunks 2 --attention fused",
        "-b 2 -t 64 -r 3 --head-chunks 4 --attention fused",
        "-b 2 -t 64 -r 3 --head-chunks 8 --attention fused",
        "-b 2 -t 64 -r 3 --head-chunks 16 --attention fused",
        "-b 2 -t 64 -r 3 --head-chunks 16 --offload optimizer=host --attention fused",
        "-b 1 -t 64 -r 3 -d 384 --head-chunks 16 --offload optimizer=host --attention fused",
        "-b 1 -t 64 -r 3 -d 384 --head-chunks 16 --offload optimizer=host,activations=host --attention fused",
        "-b 1 -t 64 -r 3 -d 384 --head-chunks 16 --offload optimizer=host,gradients=host,activations=host "
        "--attention fused",
        "-b 1 -t 64 -r 3 -d 384 --head-chunks 16 --offload optimizer=host,gradients=host,weights=host,"
        "activations=host --attention fused",
        NULL};
    expect_steps(&f, &budget, steps);
}

static void test_what_is_tried_without(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    f.config.recompute = LEVEL_BLOCKS;
    f.config.head_chunks = 16;
    f.config.B = 3;  // can't be halved
    const Budget full = {{0, 0, 0}, false}, shared = {{0, 0, 0}, true};
    static const char *const steps[] = {
        "-b 3 -t 64 -r 3 --head-chunks 16 --offload optimizer=host",
        "-b 3 -t 64 -r 3 --head-chunks 16 --offload optimizer=disk",
        "-b 3 -t 64 -r 3 --head-chunks 16 --offload optimizer=disk,activations=host",
        "-b 3 -t 64 -r 3 --head-chunks 16 --offload optimizer=disk,gradients=host,activations=host",
        "-b 3 -t 64 -r 3 --head-chunks 16 --offload optimizer=disk,gradients=host,weights=host,activations=host", NULL};
    expect_steps(&f, &full, steps);
    // Where both are the same memory, only the disk helps.
    static const char *const shared_steps[] = {"-b 3 -t 64 -r 3 --head-chunks 16 --offload optimizer=disk", NULL};
    expect_steps(&f, &shared, shared_steps);
}

// No more parts of the logits than there are tokens.
static void test_head_chunks_of_few_tokens(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    f.config.recompute = LEVEL_BLOCKS;
    f.config.B = 1;
    f.config.T = 3;
    const Budget shared = {{0, 0, 0}, true};
    static const char *const steps[] = {"-b 1 -t 3 -r 3 --head-chunks 2", "-b 1 -t 3 -r 3 --head-chunks 4",
                                        "-b 1 -t 3 -r 3 --head-chunks 4 --offload optimizer=disk", NULL};
    expect_steps(&f, &shared, steps);
    f.config.T = 4;
    static const char *const of_four[] = {"-b 1 -t 4 -r 3 --head-chunks 2", "-b 1 -t 4 -r 3 --head-chunks 4",
                                          "-b 1 -t 4 -r 3 --head-chunks 4 --offload optimizer=disk", NULL};
    expect_steps(&f, &shared, of_four);
}

// The first that fits, to the byte; and if none does, the least that was needed.
static void test_the_first_that_fits_is_told(void **state) {
    (void)state;
    Fixture f;
    Plan plan;
    char text[256];
    size_t least;
    open_fixture(&f);
    plan_make(&f.planner, &f.config, NULL, &plan);
    // -r 3 and four head chunks leave 160 + 1000 + 40 + 500 + 250 units.
    Budget budget = {{1950 * UNIT, 1 * UNIT, 0}, false};
    n_passes = 0;
    assert_true(plan_search(&f.planner, &f.config, &plan.ledger, &budget, TIER_DEVICE, &least, text, sizeof(text)));
    assert_string_equal(text, "-b 4 -t 64 -r 3 --head-chunks 4");
    assert_int_equal(least, 1950 * UNIT);
    assert_int_equal(n_passes, 5);
    budget.bytes[TIER_DEVICE]--;
    assert_true(plan_search(&f.planner, &f.config, &plan.ledger, &budget, TIER_DEVICE, &least, text, sizeof(text)));
    assert_string_equal(text, "-b 4 -t 64 -r 3 --head-chunks 8");
    // With everything away: 160 / 16 units of logits for one sequence.
    budget.bytes[TIER_DEVICE] = 10 * UNIT - 1;
    budget.bytes[TIER_HOST] = SIZE_MAX;
    memset(text, 'x', sizeof(text));
    assert_false(plan_search(&f.planner, &f.config, &plan.ledger, &budget, TIER_DEVICE, &least, text, sizeof(text)));
    assert_int_equal(least, 10 * UNIT);
    budget.bytes[TIER_DEVICE]++;
    assert_true(plan_search(&f.planner, &f.config, &plan.ledger, &budget, TIER_DEVICE, &least, text, sizeof(text)));
}

static void test_what_to_try_next(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    f.config.recompute_layers = 1;
    f.config.head_chunks = 7;
    f.config.seed = 3;
    Config next = plan_next(&f.config);
    assert_int_equal(next.recompute, LEVEL_BLOCKS);
    assert_int_equal(next.recompute_layers, 4);
    assert_int_equal(next.head_chunks, 8);
    assert_int_equal(next.seed, 3);
    f.config.head_chunks = 9;
    assert_int_equal(plan_next(&f.config).head_chunks, 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plan_is_what_the_pass_takes),
        cmocka_unit_test(test_what_is_tried_with_room_on_the_host),
        cmocka_unit_test(test_what_is_tried_without),
        cmocka_unit_test(test_head_chunks_of_few_tokens),
        cmocka_unit_test(test_the_first_that_fits_is_told),
        cmocka_unit_test(test_what_to_try_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
