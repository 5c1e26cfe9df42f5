// test_queue.c - the queues of the CPU device: order within a queue, events between queues, the same result in every
// legal order, and a missing await that shows.
#include "test_helpers.h"

#include <malloc.h>

#include "../dev/queue_cpu.h"

enum { SEEDS = 200 };

// Every order, with as many seeds; `i` counts them.
typedef struct {
    QueueOrder order;
    uint64_t seed;
} Way;

static int n_ways(void) { return 3 + SEEDS; }

static Way way_of(int i) {
    static const QueueOrder orders[] = {QUEUE_THREADS, QUEUE_EAGER, QUEUE_LAZY};
    Way way = {i < 3 ? orders[i] : QUEUE_SEEDED, (uint64_t)i};
    return way;
}

static Queues *open_way(int i) { return queues_open(way_of(i).order, way_of(i).seed); }

// ---------------------------------------------------------------------------------------------------------------
// One queue

// What ran, in order.
typedef struct {
    int n;
    int values[4 * QUEUE_RING];
} Trace;

typedef struct {
    Trace *trace;
    int value;
} Append;

static void run_append(void *argument) {
    Append *append = (Append *)argument;
    append->trace->values[append->trace->n++] = append->value;
    append->value = -1;  // its own copy
}

static void call_append(Queues *queues, Queue queue, Trace *trace, int value) {
    Append append = {trace, value};
    queue_call(queues, queue, run_append, &append, sizeof(append));
    append.value = -2;  // the queue has a copy
}

static void test_a_queue_keeps_its_order(void **state) {
    (void)state;
    for (int i = 0; i < n_ways(); i++) {
        Queues *queues = open_way(i);
        Trace traces[QUEUES];
        memset(traces, 0, sizeof(traces));
        for (int j = 0; j < 3000; j++) {
            for (int q = 0; q < QUEUES; q++) call_append(queues, (Queue)q, &traces[q], j);
        }
        assert_int_equal(traces[QUEUE_COMPUTE].n, 3000);  // at once
        queues_wait(queues);
        for (int q = 0; q < QUEUES; q++) {
            assert_int_equal(traces[q].n, 3000);
            for (int j = 0; j < 3000; j++) assert_int_equal(traces[q].values[j], j);
        }
        queues_close(queues);
    }
}

static void test_closing_runs_what_is_left(void **state) {
    (void)state;
    for (int i = 0; i < n_ways(); i++) {
        Queues *queues = open_way(i);
        Trace traces[QUEUES];
        memset(traces, 0, sizeof(traces));
        QueueEvent event = {0, 0};
        call_append(queues, QUEUE_STASH, &traces[QUEUE_STASH], 1);
        queue_record(queues, QUEUE_STASH, &event);
        queue_await(queues, QUEUE_FETCH, &event);
        call_append(queues, QUEUE_FETCH, &traces[QUEUE_FETCH], 2);
        for (int q = QUEUE_COLLECTIVE; q < QUEUES; q++) call_append(queues, (Queue)q, &traces[q], 3);
        queues_close(queues);
        for (int q = 1; q < QUEUES; q++) assert_int_equal(traces[q].n, 1);
        assert_int_equal(event.done, event.recorded);
    }
    for (int order = 0; order <= QUEUE_SEEDED; order++) queues_close(queues_open((QueueOrder)order, 1));
}

static void run_sleep(void *argument) {
    (void)argument;
    usleep(20000);
}

static void test_a_full_ring_blocks(void **state) {
    (void)state;
    Trace trace;
    trace.n = 0;
    Queues *queues = queues_open(QUEUE_LAZY, 0);
    for (int j = 0; j < QUEUE_RING; j++) call_append(queues, QUEUE_FETCH, &trace, j);
    assert_int_equal(trace.n, 0);
    for (int j = 1; j <= 3; j++) {
        call_append(queues, QUEUE_FETCH, &trace, QUEUE_RING + j - 1);
        assert_int_equal(trace.n, j);  // no more than is needed
    }
    queue_wait(queues, QUEUE_FETCH);
    assert_int_equal(trace.n, QUEUE_RING + 3);
    queues_close(queues);

    queues = queues_open(QUEUE_THREADS, 0);
    trace.n = 0;
    queue_call(queues, QUEUE_FETCH, run_sleep, NULL, 0);
    for (int j = 0; j < 4 * QUEUE_RING; j++) call_append(queues, QUEUE_FETCH, &trace, j);
    queue_wait(queues, QUEUE_FETCH);
    assert_int_equal(trace.n, 4 * QUEUE_RING);
    for (int j = 0; j < 4 * QUEUE_RING; j++) assert_int_equal(trace.values[j], j);
    queues_close(queues);
}

// A full ring whose oldest task awaits another queue.
static void test_a_full_ring_runs_what_it_needs(void **state) {
    (void)state;
    Trace stash, fetch;
    stash.n = fetch.n = 0;
    Queues *queues = queues_open(QUEUE_LAZY, 0);
    QueueEvent event = {0, 0};
    call_append(queues, QUEUE_STASH, &stash, 0);
    queue_record(queues, QUEUE_STASH, &event);
    call_append(queues, QUEUE_STASH, &stash, 1);
    queue_await(queues, QUEUE_FETCH, &event);
    for (int j = 0; j < QUEUE_RING; j++) call_append(queues, QUEUE_FETCH, &fetch, j);
    assert_int_equal(stash.n, 1);
    assert_int_equal(fetch.n, 0);
    queues_close(queues);
    assert_int_equal(stash.n, 2);
    assert_int_equal(fetch.n, QUEUE_RING);
}

typedef struct {
    double alignment;
    unsigned char bytes[QUEUE_ARGUMENT - sizeof(double) - sizeof(void *)];
    uint64_t *sum;
} LargeArgument;

static void run_sum(void *argument) {
    const LargeArgument *large = (const LargeArgument *)argument;
    if ((uintptr_t)argument % sizeof(long double) != 0) abort();
    *large->sum = 0;
    for (size_t i = 0; i < sizeof(large->bytes); i++) *large->sum += large->bytes[i] * (i + 1);
}

static void test_arguments_are_copied_whole(void **state) {
    (void)state;
    LargeArgument large;
    assert_int_equal(sizeof(large), QUEUE_ARGUMENT);
    for (int i = 0; i < 4; i++) {
        Queues *queues = open_way(i);
        for (int q = 0; q < QUEUES; q++) {
            uint64_t sum = 0, expected = 0;
            large.alignment = 0;
            large.sum = &sum;
            for (size_t j = 0; j < sizeof(large.bytes); j++) {
                large.bytes[j] = (unsigned char)(j * 7 + (size_t)q);
                expected += large.bytes[j] * (j + 1);
            }
            queue_call(queues, (Queue)q, run_sum, &large, sizeof(large));
            memset(&large, 0, sizeof(large));
            queue_wait(queues, (Queue)q);
            assert_int_equal(sum, expected);
        }
        queues_close(queues);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Events

static void test_an_event_that_was_never_recorded_is_done(void **state) {
    (void)state;
    for (int i = 0; i < n_ways(); i++) {
        Queues *queues = open_way(i);
        QueueEvent event = {0, 0};
        for (int q = 0; q < QUEUES; q++) queue_await(queues, (Queue)q, &event);
        queue_wait_event(queues, &event);
        queues_wait(queues);
        queues_close(queues);
        assert_int_equal(event.recorded, 0);
        assert_int_equal(event.done, 0);
    }
}

static void test_the_compute_queue_is_always_done(void **state) {
    (void)state;
    for (int i = 0; i < n_ways(); i++) {
        Queues *queues = open_way(i);
        QueueEvent event = {0, 0};
        for (int j = 0; j < 3; j++) {
            queue_record(queues, QUEUE_COMPUTE, &event);
            assert_true(event.recorded != 0);
            assert_int_equal(event.done, event.recorded);
            queue_await(queues, QUEUE_FETCH, &event);
        }
        queues_close(queues);
    }
}

// LAZY runs what a wait needs, across queues, and nothing else.
static void test_lazy_runs_what_is_needed(void **state) {
    (void)state;
    Queues *queues = queues_open(QUEUE_LAZY, 0);
    Trace trace;
    trace.n = 0;
    QueueEvent stashed = {0, 0}, exchanged = {0, 0}, fetched = {0, 0};
    call_append(queues, QUEUE_STASH, &trace, 1);
    queue_record(queues, QUEUE_STASH, &stashed);
    call_append(queues, QUEUE_STASH, &trace, -1);  // nobody needs it
    queue_await(queues, QUEUE_COLLECTIVE, &stashed);
    call_append(queues, QUEUE_COLLECTIVE, &trace, 2);
    queue_record(queues, QUEUE_COLLECTIVE, &exchanged);
    call_append(queues, QUEUE_COLLECTIVE, &trace, -1);
    call_append(queues, QUEUE_FETCH, &trace, 0);
    queue_await(queues, QUEUE_FETCH, &exchanged);
    call_append(queues, QUEUE_FETCH, &trace, 3);
    queue_record(queues, QUEUE_FETCH, &fetched);
    call_append(queues, QUEUE_FETCH, &trace, -1);
    assert_int_equal(trace.n, 0);
    queue_await(queues, QUEUE_COMPUTE, &fetched);
    assert_int_equal(trace.n, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(trace.values[i], i);
    queue_wait(queues, QUEUE_STASH);
    assert_int_equal(trace.n, 5);
    queues_wait(queues);
    assert_int_equal(trace.n, 7);
    queues_close(queues);
}

// A wait is for the most recent record at the time of the call; an earlier await keeps its own.
static void test_events_are_recorded_again(void **state) {
    (void)state;
    Queues *queues = queues_open(QUEUE_LAZY, 0);
    Trace fetch, stash, exchange;
    fetch.n = stash.n = exchange.n = 0;
    QueueEvent event = {0, 0};
    call_append(queues, QUEUE_FETCH, &fetch, 0);
    queue_record(queues, QUEUE_FETCH, &event);
    queue_await(queues, QUEUE_STASH, &event);  // the first record
    call_append(queues, QUEUE_STASH, &stash, 0);
    call_append(queues, QUEUE_FETCH, &fetch, 1);
    queue_record(queues, QUEUE_FETCH, &event);
    queue_wait(queues, QUEUE_STASH);
    assert_int_equal(fetch.n, 1);
    assert_true(event.done != event.recorded);
    queue_wait_event(queues, &event);
    assert_int_equal(fetch.n, 2);
    assert_int_equal(event.done, event.recorded);

    // Recorded again on another queue: the latest counts, also if that one gets there first.
    call_append(queues, QUEUE_FETCH, &fetch, 2);
    queue_record(queues, QUEUE_FETCH, &event);
    queue_await(queues, QUEUE_COLLECTIVE, &event);
    call_append(queues, QUEUE_COLLECTIVE, &exchange, 0);
    call_append(queues, QUEUE_STASH, &stash, 1);
    queue_record(queues, QUEUE_STASH, &event);
    queue_wait_event(queues, &event);
    assert_int_equal(fetch.n, 2);
    assert_int_equal(stash.n, 2);
    assert_int_equal(event.done, event.recorded);
    queue_wait(queues, QUEUE_COLLECTIVE);
    assert_int_equal(fetch.n, 3);
    assert_int_equal(event.done, event.recorded);
    queues_close(queues);

    // Many times, with whatever order.
    for (int i = 0; i < n_ways(); i++) {
        queues = open_way(i);
        fetch.n = 0;
        memset(&event, 0, sizeof(event));
        for (int j = 0; j < 1000; j++) {
            call_append(queues, QUEUE_FETCH, &fetch, j);
            queue_record(queues, QUEUE_FETCH, &event);
            if (j % 7 == 0) {
                queue_wait_event(queues, &event);
                assert_int_equal(fetch.n, j + 1);
            }
        }
        queues_close(queues);
        assert_int_equal(event.done, event.recorded);
    }
}

// Two tasks that wait for each other: they end only if both queues run at a time, beside the host.
static void run_meet(void *argument) {
    pthread_barrier_t *barrier;
    memcpy(&barrier, argument, sizeof(barrier));
    pthread_barrier_wait(barrier);
}

static void test_threads_run_at_a_time(void **state) {
    (void)state;
    Queues *queues = queues_open(QUEUE_THREADS, 0);
    pthread_barrier_t barrier, *pointer = &barrier;
    pthread_barrier_init(&barrier, NULL, QUEUES);
    for (int q = 1; q < QUEUES; q++) queue_call(queues, (Queue)q, run_meet, &pointer, sizeof(pointer));
    pthread_barrier_wait(&barrier);
    queues_close(queues);
    pthread_barrier_destroy(&barrier);
}

// ---------------------------------------------------------------------------------------------------------------
// A program of all queues, as the trainer's: blocks go out behind the forward pass and come back before the backward
// pass through two slots each way; the exchange adds to what was brought in. Any await can be left out.

enum { BLOCKS = 7, WORDS = 64 };
typedef enum {
    AWAIT_ARRIVED,    // compute reads a slot before it is filled
    AWAIT_LEFT,       // compute overwrites a slot before it was stored
    AWAIT_DRAINED,    // fetch overwrites a slot before it was stored
    AWAIT_STORED,     // fetch reads the store before it is written
    AWAIT_FETCHED,    // the exchange works on a slot that is not filled
    AWAIT_EXCHANGED,  // stash stores what the exchange has not yet changed
    AWAIT_READ,       // stash overwrites in the store what the collective queue has yet to read
    AWAITS
} Await;

typedef struct {
    uint64_t words[WORDS];
} Block;

typedef struct {
    Queues *queues;
    int left_out;  // an Await, or -1
    Block store[BLOCKS], in[2], out[2], sums[BLOCKS], copies[BLOCKS];
    QueueEvent stored[BLOCKS], left[2], drained[2], filled[2], exchanged[2], read[BLOCKS];
    uint64_t state;
} Pipeline;

static void pipeline_await(Pipeline *p, Await which, Queue queue, QueueEvent *event) {
    if (p->left_out != (int)which) queue_await(p->queues, queue, event);
}

typedef struct {
    Block *to;
    const Block *from;
} Exchange;

static void run_exchange(void *argument) {
    const Exchange *exchange = (const Exchange *)argument;
    uint64_t *to = exchange->to->words;
    for (int w = 0; w < WORDS; w++) to[w] = random_mix(to[w]) + exchange->from->words[w];
}

static void pipeline_forward(Pipeline *p, int b) {
    Block *out = &p->out[b % 2];
    pipeline_await(p, AWAIT_LEFT, QUEUE_COMPUTE, &p->left[b % 2]);
    for (int w = 0; w < WORDS; w++) out->words[w] = p->state = random_mix(p->state + (uint64_t)b);
    pipeline_await(p, AWAIT_READ, QUEUE_STASH, &p->read[b]);
    queue_copy(p->queues, QUEUE_STASH, &p->store[b], out, sizeof(Block));
    queue_record(p->queues, QUEUE_STASH, &p->left[b % 2]);
    queue_record(p->queues, QUEUE_STASH, &p->stored[b]);
}

static void pipeline_fetch(Pipeline *p, int b) {
    if (b < 0) return;
    Block *in = &p->in[b % 2];
    pipeline_await(p, AWAIT_DRAINED, QUEUE_FETCH, &p->drained[b % 2]);
    pipeline_await(p, AWAIT_STORED, QUEUE_FETCH, &p->stored[b]);
    queue_copy(p->queues, QUEUE_FETCH, in, &p->store[b], sizeof(Block));
    queue_record(p->queues, QUEUE_FETCH, &p->filled[b % 2]);
    pipeline_await(p, AWAIT_FETCHED, QUEUE_COLLECTIVE, &p->filled[b % 2]);
    Exchange exchange = {in, &p->store[b]};
    queue_call(p->queues, QUEUE_COLLECTIVE, run_exchange, &exchange, sizeof(exchange));
    queue_record(p->queues, QUEUE_COLLECTIVE, &p->exchanged[b % 2]);
    Exchange sum = {&p->sums[b], &p->store[b]};
    queue_call(p->queues, QUEUE_COLLECTIVE, run_exchange, &sum, sizeof(sum));
    queue_record(p->queues, QUEUE_COLLECTIVE, &p->read[b]);
}

static void pipeline_backward(Pipeline *p, int b) {
    Block *in = &p->in[b % 2];
    pipeline_fetch(p, b - 1);
    if (b % 3 != 0) {  // some blocks are not read by the host, only stored
        pipeline_await(p, AWAIT_ARRIVED, QUEUE_COMPUTE, &p->exchanged[b % 2]);
        for (int w = 0; w < WORDS; w++) p->state = random_mix(p->state ^ in->words[w]);
    }
    pipeline_await(p, AWAIT_EXCHANGED, QUEUE_STASH, &p->exchanged[b % 2]);
    queue_copy(p->queues, QUEUE_STASH, &p->copies[b], in, sizeof(Block));
    queue_record(p->queues, QUEUE_STASH, &p->drained[b % 2]);
}

// A number that depends on everything that was computed and stored.
static uint64_t pipeline_run(Queues *queues, int left_out) {
    Pipeline *p = (Pipeline *)calloc(1, sizeof(Pipeline));
    assert_non_null(p);
    p->queues = queues;
    p->left_out = left_out;
    for (int step = 0; step < 3; step++) {
        for (int b = 0; b < BLOCKS; b++) pipeline_forward(p, b);
        pipeline_fetch(p, BLOCKS - 1);
        for (int b = BLOCKS - 1; b >= 0; b--) pipeline_backward(p, b);
    }
    queues_wait(queues);
    uint64_t sum = p->state;
    for (int b = 0; b < BLOCKS; b++) {
        for (int w = 0; w < WORDS; w++) sum = random_mix(sum ^ p->store[b].words[w]) ^ p->sums[b].words[w];
        for (int w = 0; w < WORDS; w++) sum = random_mix(sum ^ p->copies[b].words[w]);
    }
    free(p);
    return sum;
}

static void test_every_order_gives_the_same(void **state) {
    (void)state;
    Queues *queues = queues_open(QUEUE_EAGER, 0);
    const uint64_t expected = pipeline_run(queues, -1);
    queues_close(queues);
    for (int i = 0; i < n_ways(); i++) {
        queues = open_way(i);
        for (int j = 0; j < (i == 0 ? 200 : 2); j++) assert_int_equal(pipeline_run(queues, -1), expected);
        queues_close(queues);
    }
}

static void test_a_missing_await_is_found(void **state) {
    (void)state;
    Queues *queues = queues_open(QUEUE_EAGER, 0);
    const uint64_t expected = pipeline_run(queues, -1);
    for (int left_out = 0; left_out < AWAITS; left_out++) assert_int_equal(pipeline_run(queues, left_out), expected);
    queues_close(queues);
    for (int left_out = 0; left_out < AWAITS; left_out++) {
        queues = queues_open(QUEUE_LAZY, 0);
        bool lazy = pipeline_run(queues, left_out) != expected;
        queues_close(queues);
        int found = 0;
        for (int seed = 0; seed < SEEDS; seed++) {
            queues = queues_open(QUEUE_SEEDED, (uint64_t)seed);
            found += pipeline_run(queues, left_out) != expected;
            queues_close(queues);
        }
        print_message("await %d left out: lazy %s, %d of %d seeds find it\n", left_out, lazy ? "finds it" : "does not",
                      found, SEEDS);
        assert_true(lazy || found > 0);
        assert_true(found > SEEDS / 10);  // not by luck
    }
}

static void test_a_seed_is_one_order(void **state) {
    (void)state;
    static Trace traces[2];
    int n_different = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        for (int again = 0; again < 3; again++) {  // the third time with another seed
            Trace *trace = &traces[again > 0];
            trace->n = 0;
            Queues *queues = queues_open(QUEUE_SEEDED, again == 2 ? seed + 1 : seed);
            for (int j = 0; j < 60; j++) call_append(queues, (Queue)(1 + j % 3), trace, j);
            queues_close(queues);
            assert_int_equal(trace->n, 60);
            bool same = memcmp(traces[0].values, traces[1].values, 60 * sizeof(int)) == 0;
            if (again == 1) assert_true(same);
            if (again == 2) n_different += !same;
        }
    }
    assert_true(n_different >= 95);
}

static void test_nothing_is_allocated_later(void **state) {
    (void)state;
    Trace trace;
    for (int i = 0; i < 4; i++) {
        Queues *queues = open_way(i);
        struct mallinfo2 before = mallinfo2();
        trace.n = 0;
        for (int j = 0; j < 2 * QUEUE_RING; j++) call_append(queues, QUEUE_FETCH, &trace, j);
        pipeline_run(queues, -1);
        struct mallinfo2 after = mallinfo2();
        assert_int_equal(before.uordblks, after.uordblks);
        assert_int_equal(before.hblkhd, after.hblkhd);
        queues_close(queues);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// What is refused

static void run_nothing(void *argument) { (void)argument; }

static void call_with_too_much(void *unused) {
    (void)unused;
    char argument[QUEUE_ARGUMENT + 1] = {0};
    Queues *queues = queues_open(QUEUE_EAGER, 0);
    queue_call(queues, QUEUE_FETCH, run_nothing, argument, sizeof(argument));
}

static void run_call(void *argument) {
    Queues *queues;
    memcpy(&queues, argument, sizeof(queues));
    queue_call(queues, QUEUE_STASH, run_nothing, NULL, 0);
}

static void call_within_a_task(void *order) {
    Queues *queues = queues_open(*(QueueOrder *)order, 0);
    queue_call(queues, QUEUE_FETCH, run_call, &queues, sizeof(queues));
    queues_wait(queues);
}

static void test_misuse_ends_the_run(void **state) {
    (void)state;
    expect_die(call_with_too_much, NULL, "argument has 129 bytes|is a bug");
    for (int i = QUEUE_EAGER; i <= QUEUE_SEEDED; i++) {
        QueueOrder order = (QueueOrder)i;
        expect_die(call_within_a_task, &order, "only the host may|is a bug");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_queue_keeps_its_order),
        cmocka_unit_test(test_closing_runs_what_is_left),
        cmocka_unit_test(test_a_full_ring_blocks),
        cmocka_unit_test(test_a_full_ring_runs_what_it_needs),
        cmocka_unit_test(test_arguments_are_copied_whole),
        cmocka_unit_test(test_an_event_that_was_never_recorded_is_done),
        cmocka_unit_test(test_the_compute_queue_is_always_done),
        cmocka_unit_test(test_lazy_runs_what_is_needed),
        cmocka_unit_test(test_events_are_recorded_again),
        cmocka_unit_test(test_threads_run_at_a_time),
        cmocka_unit_test(test_every_order_gives_the_same),
        cmocka_unit_test(test_a_missing_await_is_found),
        cmocka_unit_test(test_a_seed_is_one_order),
        cmocka_unit_test(test_nothing_is_allocated_later),
        cmocka_unit_test(test_misuse_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
