// test_collective.c - collective.h: sums over ranks in rank order, whatever the number of ranks; and among real ranks,
// pieces and shards that arrive in their places, and the bytes that a rank sends.
//
// The program starts itself again as several ranks. What is wrong there ends all of them with a message.
#include "device_helpers.h"
#include "launch_helpers.h"

#include "../dev/collective.h"

// ---------------------------------------------------------------------------------------------------------------
// One process that takes the part of any rank

static float value_of(int rank, size_t i) {
    return (float)((random_uniform(1, (uint64_t)rank, i) - 0.5) * pow(2, (double)(i % 40)));
}

// The sum of N numbers from the first on, each rounding to fp32.
static float in_rank_order(int N, size_t i) {
    volatile float sum = value_of(0, i);
    for (int rank = 1; rank < N; rank++) sum = sum + value_of(rank, i);
    return sum;
}

// Every rank of 1 to 9 gets the same bits, though its own number comes first for none but rank 0; added to what was
// there, or in its place; from another buffer, or into its own.
static void test_sums_are_in_rank_order(void **state) {
    (void)state;
    enum { MOST = 2500, N_MOST = 9 };
    static const size_t lengths[] = {0, 1, 1023, 1024, 1025, MOST};
    static float own[MOST], received[(N_MOST - 1) * MOST], out[MOST + 1];
    for (int i = 0; i < N_MOST * N_MOST * 6 * 4; i++) {
        const int N = i % N_MOST + 1, rank = i / N_MOST % N_MOST, add = i / (N_MOST * N_MOST * 6) % 2;
        const int in_place = i / (N_MOST * N_MOST * 12);
        const size_t n = lengths[i / (N_MOST * N_MOST) % 6];
        Device device;
        Ranks ranks;
        if (rank >= N || (in_place && add)) continue;
        open_cpu(&device, EVERY_ORDER[i % N_ORDERS]);
        ranks_open_plan(&ranks, N);
        ranks.rank = rank;
        float *to = in_place ? own : out;
        for (size_t k = 0; k <= n && k < MOST; k++) out[k] = 3.0f + (float)k;
        out[n] = 77;
        for (size_t k = 0; k < n; k++) {
            own[k] = value_of(rank, k);
            for (int peer = 0, place = 0; peer < N; peer++) {
                if (peer != rank) received[(size_t)place++ * n + k] = value_of(peer, k);
            }
        }
        const CollectiveSum call = {to, own, received, n, rank, N, add};
        const float last = n > 0 ? collective_sum_element(&call, n - 1) : 0;  // as CUDA's threads do
        collective_sum(&ranks, &device, to, own, received, n, add);
        close_cpu(&device);
        if (n > 0) assert_true(to[n - 1] == last);
        for (size_t k = 0; k < n; k++) {
            const float sum = in_rank_order(N, k);
            volatile float right = add ? 3.0f + (float)k + sum : sum;
            if (to[k] != right) fail_msg("rank %d of %d, element %zu: %.9g, not %.9g", rank, N, k, to[k], right);
        }
        if (!in_place) assert_true(out[n] == 77);
        assert_int_equal(ranks.n_sent, 0);
    }
}

// What rank 2 of 5 receives lies in the order 0, 1, 3, 4.
static void test_places_of_pieces(void **state) {
    (void)state;
    static const int right[5] = {0, 1, -1, 2, 3};
    for (int peer = 0; peer < 5; peer++) {
        if (peer != 2) assert_int_equal(collective_place(2, peer), right[peer]);
    }
}

// Each byte is sent once: (N-1)/N of a buffer. PLAN counts the same, and runs nothing.
static void test_bytes_that_a_plan_counts(void **state) {
    (void)state;
    Device cpu, plan;
    void *nowhere = (void *)((uintptr_t)1 << 56);
    memset(&cpu, 0, sizeof(cpu));
    cpu.kind = cpu.real = DEVICE_CPU;
    device_stand_in(&plan, &cpu);
    for (int N = 1; N <= 5; N++) {
        Ranks ranks;
        ranks_open_plan(&ranks, N);
        collective_gather(&ranks, &plan, (char *)nowhere, 4096);
        assert_int_equal(ranks.n_sent, (size_t)(N - 1) * 4096);
        collective_exchange(&ranks, &plan, (float *)nowhere, 8192, 4096, 4096, (float *)nowhere);
        assert_int_equal(ranks.n_sent, (size_t)(N - 1) * (4096 + 16384));
        collective_sum(&ranks, &plan, (float *)nowhere, (float *)nowhere, (float *)nowhere, 4096, false);
        assert_int_equal(ranks.n_sent, (size_t)(N - 1) * (4096 + 16384));
    }
    // The last sum, of 5: four additions each; five numbers read and one written.
    plan.flops = plan.bytes = 0;
    Ranks ranks;
    ranks_open_plan(&ranks, 5);
    collective_sum(&ranks, &plan, (float *)nowhere, (float *)nowhere, (float *)nowhere, 100, false);
    assert_true(plan.bytes == 100 * 4 * 6);
    collective_sum(&ranks, &plan, (float *)nowhere, (float *)nowhere, (float *)nowhere, 100, true);
    assert_true(plan.bytes == 100 * 4 * 6 + 100 * 4 * 7);
}

// ---------------------------------------------------------------------------------------------------------------
// Real ranks

enum { SHARD = 3 * RANKS_UNIT };  // elements

// A reduce-scatter in pieces, then a gather, several times over the same buffers.
static void run_ranks(Order order) {
    Device device;
    Ranks ranks;
    ranks_open(&ranks);
    open_cpu(&device, order);
    collective_open(&ranks, &device);
    const int N = ranks.size;
    const size_t n = (size_t)N * SHARD;
    float *whole = (float *)malloc(n * sizeof(float)), *received = (float *)malloc(n * sizeof(float));
    CHECK(whole && received);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < n; i++) whole[i] = value_of(ranks.rank, i) + (float)round;
        const size_t sent = ranks.n_sent;
        for (size_t at = 0, piece; at < SHARD; at += piece) {
            piece = at == 0 ? RANKS_UNIT : 2 * RANKS_UNIT;
            float *own = whole + (size_t)ranks.rank * SHARD + at;
            collective_exchange(&ranks, &device, whole, SHARD, at, piece, received);
            collective_sum(&ranks, &device, own, own, received, piece, false);
        }
        CHECK(ranks.n_sent - sent == (size_t)(N - 1) * SHARD * 4);
        collective_gather(&ranks, &device, (char *)whole, SHARD * sizeof(float));
        CHECK(ranks.n_sent - sent == (size_t)(N - 1) * SHARD * 8);
        device_wait_for_queues(&device);
        for (size_t i = 0; i < n; i++) {
            volatile float right = value_of(0, i) + (float)round;
            for (int rank = 1; rank < N; rank++) {
                volatile float x = value_of(rank, i) + (float)round;
                right = right + x;
            }
            if (whole[i] != right) die("rank %d: element %zu: %.9g, not %.9g", ranks.rank, i, whole[i], right);
        }
    }
    free(whole);
    free(received);
    close_cpu(&device);
    ranks_close(&ranks);
}

static void test_shards_of_real_ranks(void **state) {
    (void)state;
    need_ranks();
    for (int N = 2; N <= 4; N++) launch_ranks(N, "--ranks");
}

int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 2 && strcmp(argv[1], "--ranks") == 0) {
        for (int i = 0; i < N_ORDERS; i++) run_ranks(EVERY_ORDER[i]);
        ranks_end();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_in_rank_order),
        cmocka_unit_test(test_places_of_pieces),
        cmocka_unit_test(test_bytes_that_a_plan_counts),
        cmocka_unit_test(test_shards_of_real_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
