// test_ranks.c - ranks.h: one process alone, a launcher that the program was not built for, and among real ranks: their
// numbers, what they tell each other, who is heard, and that one that dies takes the others along.
//
// The program starts itself again as several ranks. What is wrong there ends all of them with a message.
#include "launch_helpers.h"

#include <math.h>
#include <time.h>

#include "../dev/ranks.h"

// ---------------------------------------------------------------------------------------------------------------
// One process

static void test_one_process(void **state) {
    (void)state;
    Ranks ranks;
    double own[3] = {1, -0.0, NAN}, all[3] = {0};
    char data[4] = "abc";
    memset(&ranks, 0x5a, sizeof(ranks));
    ranks_open(&ranks);
    assert_int_equal(ranks.rank, 0);
    assert_int_equal(ranks.size, 1);
    assert_int_equal(ranks.local_rank, 0);
    assert_int_equal(ranks.local_size, 1);
    assert_true(ranks.processors == 1);
    assert_int_equal(ranks.n_sent, 0);
    ranks_gather(&ranks, all, own, 3);
    assert_memory_equal(all, own, sizeof(own));
    ranks_to_root(&ranks, 0, data, sizeof(data));
    assert_string_equal(data, "abc");
    ranks_barrier(&ranks);
    ranks_close(&ranks);
}

// For a plan they are only a number: nobody is asked or waited for.
static void test_ranks_of_a_plan(void **state) {
    (void)state;
    Ranks ranks;
    ranks_open_plan(&ranks, 65536);
    assert_int_equal(ranks.size, 65536);
    assert_int_equal(ranks.local_size, 65536);
    assert_int_equal(ranks.rank, 0);
    ranks_barrier(&ranks);
    ranks_close(&ranks);
}

static void open_as_one_of_three(void *unused) {
    (void)unused;
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    Ranks ranks;
    ranks_open(&ranks);
}

// Three were started, and this program finds itself alone.
static void test_another_launcher(void **state) {
    (void)state;
#ifdef USE_MPI
    expect_die(open_as_one_of_three, NULL, "the launcher started 3 ranks, MPI found 1|built with another MPI");
#else
    expect_die(open_as_one_of_three, NULL, "3 ranks were started|built without MPI|make setup");
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// Real ranks

static void talk(int N) {
    Ranks ranks;
    double own[2], all[2 * 16], part = 0;
    ranks_open(&ranks);
    CHECK(ranks.size == N);
    CHECK(ranks.local_size == N);
    CHECK(ranks.rank >= 0 && ranks.rank < N);
    own[0] = ranks.rank;
    own[1] = ranks.processors;
    ranks_gather(&ranks, all, own, 2);
    for (int r = 0; r < N; r++) {
        CHECK(all[2 * r] == r);
        CHECK(all[2 * r + 1] > 0);
        CHECK(all[2 * r + 1] <= 1);
        part += all[2 * r + 1];
    }
    // All may run on the same processors here (--bind-to none), so their parts make one.
    CHECK(fabs(part - 1) < 1e-9);
    for (int from = 0; from < N; from++) {
        char data[100000];
        memset(data, 'a' + ranks.rank, sizeof(data));
        if (ranks.rank == 0 || ranks.rank == from) ranks_to_root(&ranks, from, data, sizeof(data));
        const char right = (char)('a' + (ranks.rank == 0 ? from : ranks.rank));
        for (size_t i = 0; i < sizeof(data); i++) CHECK(data[i] == right);
    }
    // Who comes late keeps the others waiting.
    struct timespec pause = {0, 300 * 1000 * 1000}, start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (ranks.rank == N - 1) nanosleep(&pause, NULL);
    ranks_barrier(&ranks);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK((double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec) > 0.2);
    printf("heard\n");
    fflush(stdout);
    ranks_close(&ranks);
    ranks_open(&ranks);  // another run in the same process
    CHECK(ranks.size == N);
    ranks_close(&ranks);
    ranks_end();
}

static void test_ranks_talk(void **state) {
    (void)state;
    need_ranks();
    for (int N = 2; N <= 4; N++) {
        char *output = run_command(0, LAUNCH " %d %s --talk %d", N, test_program, N);
        assert_string_equal(output, "heard\n");  // rank 0 alone
        free(output);
    }
}

static void die_alone(void) {
    Ranks ranks;
    ranks_open(&ranks);
    if (ranks.rank == 1) die("what is wrong");
    sleep(60);
}

static void test_one_that_dies_ends_all(void **state) {
    (void)state;
    need_ranks();
    const time_t start = time(NULL);
    char *output = run_command(1, LAUNCH " 3 %s --die", test_program);
    assert_says_once(output, "train_gpt: rank 1: what is wrong\n");
    free(output);
    assert_true(time(NULL) - start < 50);
}

int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 3 && strcmp(argv[1], "--talk") == 0) {
        talk(atoi(argv[2]));
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--die") == 0) {
        die_alone();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_process),
        cmocka_unit_test(test_ranks_of_a_plan),
        cmocka_unit_test(test_another_launcher),
        cmocka_unit_test(test_ranks_talk),
        cmocka_unit_test(test_one_that_dies_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
