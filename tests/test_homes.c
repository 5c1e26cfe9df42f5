// test_homes.c - what homes take of each tier, by the README's formulas; and the update's pieces.
//
// The pieces here are more than there are sets of buffers, so that every set is used again, in all orders of queues.
// The oracle grid (test_ranks.c) has models of so few pieces that it never does.
#include "trainer_helpers.h"

enum { STEPS = 2, LAYERS = 2 * UPDATE_SETS + 1 };

static RunResult run_with(const char *flags, QueueOrder order, uint64_t seed) {
    Trainer *m = open_trainer("--device cpu -e %dx48x3 --vocab 67 -t 32 -b 1 -i random -g 0 -v 0 -l 0.01 -u 0 "
                              "--swap-dir build %s", (int)LAYERS, flags);
    queues_close(m->device.queues);
    m->device.queues = queues_open(order, seed);
    trainer_start(m);
    RunResult result = run_steps(m, STEPS);
    trainer_close(m);
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
    for (int type = 0; type < 2; type++) {
        snprintf(flags, sizeof(flags), "-p %s", types[type]);
        const RunResult resident = run_with(flags, QUEUE_THREADS, 0);
        for (size_t i = 0; i < sizeof(homes) / sizeof(homes[0]); i++) {
            snprintf(flags, sizeof(flags), "-p %s %s", types[type], homes[i]);
            expect_same(&resident, flags, QUEUE_THREADS, 0);
            expect_same(&resident, flags, QUEUE_EAGER, 0);
            expect_same(&resident, flags, QUEUE_LAZY, 0);
            for (uint64_t seed = 1; seed <= 3; seed++) expect_same(&resident, flags, QUEUE_SEEDED, seed);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Bytes

typedef struct {
    size_t bytes[TIERS][KINDS];
} Homes;

// The README's formulas ("Bytes of a rank") for the kinds that have homes, in the update, for GPT-2's 124M in bf16.
static Homes formulas(size_t N, int stage, const Tier tiers[3]) {
    enum { C = 768, L = 12, S = 2 };
    const size_t E = round_up((size_t)50304 * C + 1024 * C + 2 * C, N * 4096);
    const size_t layer = round_up((size_t)12 * C * C + 13 * C, N * 4096), P = E + L * layer, slots = E + 2 * layer;
    const size_t of_states = stage >= 1 ? N : 1, of_gradients = stage >= 2 ? N : 1, of_weights = stage >= 3 ? N : 1;
    const Tier optimizer = tiers[0], gradients = tiers[1], weights = tiers[2];
    Homes h;
    memset(&h, 0, sizeof(h));
    h.bytes[weights][KIND_WEIGHTS] += S * P / of_weights;
    h.bytes[gradients][KIND_GRADIENTS] += 4 * P / of_gradients;
    h.bytes[optimizer][KIND_MASTER] += 4 * P / of_states;
    h.bytes[optimizer][KIND_MOMENTS] += 8 * P / of_states;
    if (weights != TIER_DEVICE || of_weights > 1) h.bytes[TIER_DEVICE][KIND_WEIGHTS] += S * slots;
    if (gradients != TIER_DEVICE || of_gradients > 1) h.bytes[TIER_DEVICE][KIND_GRADIENTS] += 4 * slots;
    h.bytes[TIER_DEVICE][KIND_GRADIENTS] += round_up(P / (512 * N), 64);
    if (N > 1) {
        const size_t X = size_min(((size_t)1 << 20) / (N - 1) / 4096 * 4096, E / N);
        h.bytes[TIER_DEVICE][KIND_COLLECTIVE] += 4 * (N - 1) * X;
        if (of_gradients > 1 && gradients != TIER_DEVICE) h.bytes[TIER_DEVICE][KIND_COLLECTIVE] += 4 * X;
    }
    const Tier at = optimizer == TIER_DEVICE ? TIER_DEVICE : TIER_HOST;
    const size_t U = size_min((size_t)1 << 20, E / of_states);
    if (weights != at) h.bytes[at][KIND_WEIGHTS] += 3 * U * S;
    if (gradients != at) h.bytes[at][KIND_GRADIENTS] += 3 * U * 4;
    if (optimizer != at) {
        h.bytes[at][KIND_MASTER] += 3 * U * 4;
        h.bytes[at][KIND_MOMENTS] += 3 * U * 8;
    }
    return h;
}

static void test_bytes_of_a_rank(void **state) {
    (void)state;
    static const Kind kinds[] = {KIND_WEIGHTS, KIND_GRADIENTS, KIND_MASTER, KIND_MOMENTS, KIND_COLLECTIVE};
    static const Tier places[][3] = {  // of optimizer, gradients and weights
        {TIER_DEVICE, TIER_DEVICE, TIER_DEVICE}, {TIER_HOST, TIER_DEVICE, TIER_DEVICE},
        {TIER_DISK, TIER_HOST, TIER_HOST},       {TIER_DISK, TIER_DISK, TIER_DISK},
        {TIER_DEVICE, TIER_HOST, TIER_DISK},
    };
    static const char *const names[] = {"optimizer", "gradients", "weights"};
    for (size_t i = 0; i < 4 * 4 * sizeof(places) / sizeof(places[0]); i++) {
        const size_t N = (size_t)1 << (i % 4);
        const int stage = (int)(i / 4 % 4);
        const Tier *tiers = places[i / 16];
        char offload[128] = "";
        if (N == 1 && stage > 0) continue;
        for (int k = 0; k < 3; k++) {
            if (tiers[k] == TIER_DEVICE) continue;
            snprintf(offload + strlen(offload), sizeof(offload) - strlen(offload), "%s%s=%s",
                     offload[0] ? "," : " --offload ", names[k], TIER_NAMES[tiers[k]]);
        }
        Trainer *m = open_trainer("--plan --device cpu --ranks %zu -z %d -e d12 --vocab 50257 --max-length 1024 "
                                  "-p bf16 -b 1 -t 64 -i random -v 0 -g 0%s", N, stage, offload);
        const Homes expected = formulas(N, stage, tiers);
        for (int t = 0; t < TIERS; t++) {
            for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
                size_t planned = m->plan.phases[PHASE_UPDATE].kinds[t][kinds[k]];
                if (planned == expected.bytes[t][kinds[k]]) continue;
                fail_msg("%zu ranks, -z %d%s: %s on the %s: %zu bytes, by the formula %zu", N, stage, offload,
                         KIND_NAMES[kinds[k]], TIER_NAMES[t], planned, expected.bytes[t][kinds[k]]);
            }
        }
        trainer_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets_are_used_again),
                                       cmocka_unit_test(test_bytes_of_a_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
