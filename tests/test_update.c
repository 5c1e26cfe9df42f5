// test_update.c - the update's pieces: more of them than there are sets of buffers, so that every set is used again, in
// all orders of the queues. The oracle grid (test_ranks.c) has models of so few pieces that it never does.
#include "trainer_helpers.h"

enum { STEPS = 2, LAYERS = 2 * UPDATE_SETS + 1 };

static RunResult run_with(const char *flags, QueueOrder order, uint64_t seed) {
    Trainer *m = open_trainer("--device cpu -e %dx48x3 --vocab 67 -t 32 -b 1 -i random -g 0 -v 0 -l 0.01 -u 0 "
                              "--swap-dir build %s", (int)LAYERS, flags);
    queues_close(m->context.device->queues);
    m->context.device->queues = queues_open(order, seed);
    start_trainer(m);
    RunResult result = run_steps(m, STEPS);
    close_trainer(m);
    return result;
}

static void expect_same(const RunResult *resident, const char *flags, QueueOrder order, uint64_t seed) {
    char what[512];
    snprintf(what, sizeof(what), "%s, order %d, seed %llu", flags, (int)order, (unsigned long long)seed);
    RunResult result = run_with(flags, order, seed);
    assert_same_run(resident, &result, what);
}

static void test_sets_are_used_again(void **state) {
    (void)state;
    static const char *const homes[] = {
        "--offload optimizer=host",
        "--offload optimizer=disk",
        "--offload optimizer=host --update device",
        "--offload optimizer=disk,gradients=host,weights=disk",
        "--offload optimizer=disk,gradients=disk,weights=host --update device",
        "--offload gradients=disk,weights=disk",
    };
    static const char *const types[] = {"fp32", "bf16"};
    char flags[256];
    for (int dtype = 0; dtype < 2; dtype++) {
        snprintf(flags, sizeof(flags), "-p %s", types[dtype]);
        const RunResult resident = run_with(flags, QUEUE_THREADS, 0);
        for (size_t i = 0; i < sizeof(homes) / sizeof(homes[0]); i++) {
            snprintf(flags, sizeof(flags), "-p %s %s", types[dtype], homes[i]);
            expect_same(&resident, flags, QUEUE_THREADS, 0);
            expect_same(&resident, flags, QUEUE_EAGER, 0);
            expect_same(&resident, flags, QUEUE_LAZY, 0);
            for (uint64_t seed = 1; seed <= 3; seed++) expect_same(&resident, flags, QUEUE_SEEDED, seed);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets_are_used_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
