// queue_cpu.h - the queues of the CPU device: threads that copy, move and exchange data beside the arithmetic.
//
//     host      call call record(a) call            await(a) ...      only the host calls; nothing else does
//                 |    |    |         |                |
//     fetch      [t1] [t2] [a is done] [t3]            |              first in, first out
//     compute    the host itself: what is called here runs at once, so await() here waits
//
// An event orders what one queue does after what another did, as in CUDA: queue_record() marks the place that a queue
// has reached, queue_await() makes another queue wait until the most recent mark (at the time of the call) is passed.
//
// Whether every needed await is there can't be seen in a run with threads, which mostly come out right. So the same
// calls can also run in the calling thread: each as soon as it is called, each as late as the awaits allow, or in an
// order drawn at random. A program whose numbers are the same in all orders has its awaits; tests compare them.
//
// Invariants: tasks of a queue run in the order in which they were called, one at a time. An await only refers to what
// was called before it, so there are no cycles. All is allocated by queues_open(); calls copy their argument into a
// ring and block while it is full.
#ifndef QUEUE_CPU_H
#define QUEUE_CPU_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "random.h"
#include "queue.h"

typedef enum {
    QUEUE_THREADS,  // one thread per queue
    QUEUE_EAGER,    // a task runs when it is called
    QUEUE_LAZY,     // a task runs when the host waits for it, or for something that needs it
    QUEUE_SEEDED,   // a random number of tasks of random queues at every call
} QueueOrder;

enum { QUEUE_RING = 1024 };  // tasks that may wait on a queue

// A ticket names a place on a queue: QUEUES * (tasks up to it) + queue. Zero is the place before everything.
// All zeros: never recorded, which counts as done. The event must stay where it is until its records have run.
typedef struct QueueEvent {
    uint64_t recorded;  // ticket of the most recent record, written by the host
    uint64_t done;      // the same once that record has run, written by the queue; done == recorded: all is done
} QueueEvent;

typedef enum { QUEUE_TASK_CALL, QUEUE_TASK_RECORD, QUEUE_TASK_AWAIT } QueueTaskKind;

typedef struct {
    QueueTaskKind kind;
    void (*run)(void *argument);
    QueueEvent *event;  // of a record
    uint64_t ticket;    // of a record or an await
    union {
        unsigned char bytes[QUEUE_ARGUMENT];
        long double aligned;
    } argument;
} QueueTask;

typedef struct Queues Queues;

typedef struct {
    Queues *queues;
    pthread_t thread;
    pthread_cond_t called;    // there is a new task
    pthread_cond_t finished;  // there is one task less
    uint64_t n_called;        // tasks since the start
    uint64_t n_finished;      // of these, have run; task i lies in the ring at i % QUEUE_RING
    uint64_t pace;            // QUEUE_SEEDED: how often this queue gets on, 1 ... 8 out of 8
    QueueTask *ring;          // NULL for the compute queue
} QueueState;

struct Queues {
    QueueOrder order;
    uint64_t seed, n_drawn;
    bool running;  // a task runs in the calling thread now
    bool closing;
    pthread_mutex_t mutex;  // everything above and below, in QUEUE_THREADS
    QueueState states[QUEUES];
};

// ---------------------------------------------------------------------------------------------------------------
// Places

static inline uint64_t queue_ticket(Queue queue, uint64_t n_tasks) { return n_tasks * QUEUES + (uint64_t)queue; }

static inline QueueState *queue_of_ticket(Queues *queues, uint64_t ticket) { return &queues->states[ticket % QUEUES]; }

static inline bool queue_passed(Queues *queues, uint64_t ticket) {
    return queue_of_ticket(queues, ticket)->n_finished >= ticket / QUEUES;
}

// Whether an event has happened as it was recorded last.
static inline bool queue_event_passed(const QueueEvent *event) {
    return __atomic_load_n(&event->done, __ATOMIC_ACQUIRE) == __atomic_load_n(&event->recorded, __ATOMIC_RELAXED);
}

// The record with this ticket has run. An event that was recorded again, maybe on another queue, waits for that one.
static inline void queue_event_done(QueueEvent *event, uint64_t ticket) {
    if (__atomic_load_n(&event->recorded, __ATOMIC_RELAXED) == ticket) {
        __atomic_store_n(&event->done, ticket, __ATOMIC_RELEASE);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Threads

static inline void *queue_thread(void *argument) {
    QueueState *state = (QueueState *)argument;
    Queues *queues = state->queues;
    pthread_mutex_lock(&queues->mutex);
    for (;;) {
        while (state->n_finished == state->n_called && !queues->closing) {
            pthread_cond_wait(&state->called, &queues->mutex);
        }
        if (state->n_finished == state->n_called) break;
        QueueTask *task = &state->ring[state->n_finished % QUEUE_RING];
        switch (task->kind) {
        case QUEUE_TASK_CALL:
            pthread_mutex_unlock(&queues->mutex);
            task->run(task->argument.bytes);
            pthread_mutex_lock(&queues->mutex);
            break;
        case QUEUE_TASK_RECORD: queue_event_done(task->event, task->ticket); break;
        case QUEUE_TASK_AWAIT:
            while (!queue_passed(queues, task->ticket)) {
                pthread_cond_wait(&queue_of_ticket(queues, task->ticket)->finished, &queues->mutex);
            }
            break;
        }
        state->n_finished++;
        pthread_cond_broadcast(&state->finished);
    }
    pthread_mutex_unlock(&queues->mutex);
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------
// One thread: the orders of tests

// Runs the next task of a queue; if that is an await, it has been met.
static inline void queue_step(Queues *queues, QueueState *state) {
    QueueTask *task = &state->ring[state->n_finished % QUEUE_RING];
    if (task->kind == QUEUE_TASK_CALL) {
        queues->running = true;
        task->run(task->argument.bytes);
        queues->running = false;
    } else if (task->kind == QUEUE_TASK_RECORD) {
        queue_event_done(task->event, task->ticket);
    }
    state->n_finished++;
}

// Whether a queue has a task that may run now.
static inline bool queue_runnable(Queues *queues, const QueueState *state) {
    if (state->n_finished == state->n_called) return false;
    const QueueTask *task = &state->ring[state->n_finished % QUEUE_RING];
    return task->kind != QUEUE_TASK_AWAIT || queue_passed(queues, task->ticket);
}

// Runs what is needed to get to a place, and nothing else. Depth: at most the number of queues, as an await refers to
// earlier calls only, so the queues that are on their way to a place further out are never needed again.
static inline void queue_run_to(Queues *queues, uint64_t ticket) {
    QueueState *state = queue_of_ticket(queues, ticket);
    while (!queue_passed(queues, ticket)) {
        const QueueTask *task = &state->ring[state->n_finished % QUEUE_RING];
        if (task->kind == QUEUE_TASK_AWAIT) queue_run_to(queues, task->ticket);
        queue_step(queues, state);
    }
}

// QUEUE_SEEDED: lets some queues get on, 0 to 4 tasks in all. The seed gives every queue a pace of its own, so that
// some seeds are nearly eager, some nearly lazy, and in some one queue is far behind another.
static inline void queue_stir(Queues *queues) {
    if (queues->order != QUEUE_SEEDED) return;
    uint64_t bits = random_bits(queues->seed, 1, queues->n_drawn++);
    for (uint64_t n = bits % 5; n > 0; n--) {
        bits = random_mix(bits);
        QueueState *state = &queues->states[1 + bits % (QUEUES - 1)];
        if ((bits >> 32) % 8 < state->pace && queue_runnable(queues, state)) queue_step(queues, state);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Inside of every call

static inline void queue_lock(Queues *queues) {
    if (queues->running) die("a task called a queue; only the host may. This is a bug, please report it");
    if (queues->order == QUEUE_THREADS) pthread_mutex_lock(&queues->mutex);
}

static inline void queue_unlock(Queues *queues) {
    if (queues->order == QUEUE_THREADS) pthread_mutex_unlock(&queues->mutex);
}

// Locked: the host waits until a place is passed.
static inline void queue_reach(Queues *queues, uint64_t ticket) {
    if (queues->order == QUEUE_THREADS) {
        while (!queue_passed(queues, ticket)) {
            pthread_cond_wait(&queue_of_ticket(queues, ticket)->finished, &queues->mutex);
        }
    } else {
        queue_run_to(queues, ticket);
    }
}

// Locked: the next free task of a queue other than compute; waits for one while the ring is full.
static inline QueueTask *queue_next(Queues *queues, Queue queue, QueueTaskKind kind) {
    QueueState *state = &queues->states[queue];
    if (state->n_called - state->n_finished == QUEUE_RING) {
        queue_reach(queues, queue_ticket(queue, state->n_finished + 1));
    }
    QueueTask *task = &state->ring[state->n_called % QUEUE_RING];
    task->kind = kind;
    return task;
}

// Locked: the task that queue_next() gave is complete.
static inline void queue_add(Queues *queues, Queue queue) {
    QueueState *state = &queues->states[queue];
    state->n_called++;
    if (queues->order == QUEUE_THREADS) pthread_cond_signal(&state->called);
    if (queues->order == QUEUE_EAGER) {
        if (!queue_runnable(queues, state)) die("an await of what has not run. This is a bug, please report it");
        queue_step(queues, state);
    }
    queue_stir(queues);
}

// ---------------------------------------------------------------------------------------------------------------
// What the host calls

// run(argument) in its turn on a queue; the n_bytes of the argument (at most QUEUE_ARGUMENT) are copied, and the copy
// is aligned for any type. Must not call queues itself. Blocks while QUEUE_RING tasks wait.
static inline void queue_call(Queues *queues, Queue queue, void (*run)(void *argument), const void *argument,
                              size_t n_bytes) {
    if (n_bytes > QUEUE_ARGUMENT) die("a task's argument has %zu bytes. This is a bug, please report it", n_bytes);
    queue_lock(queues);
    if (queue == QUEUE_COMPUTE) {
        QueueTask task;
        queue_stir(queues);
        queue_unlock(queues);
        if (n_bytes > 0) memcpy(task.argument.bytes, argument, n_bytes);
        run(task.argument.bytes);
        return;
    }
    QueueTask *task = queue_next(queues, queue, QUEUE_TASK_CALL);
    task->run = run;
    if (n_bytes > 0) memcpy(task->argument.bytes, argument, n_bytes);
    queue_add(queues, queue);
    queue_unlock(queues);
}

typedef struct {
    void *to;
    const void *from;
    size_t n_bytes;
} QueueCopy;

static inline void queue_run_copy(void *argument) {
    const QueueCopy *copy = (const QueueCopy *)argument;
    if (copy->n_bytes > 0) memcpy(copy->to, copy->from, copy->n_bytes);
}

// to[0 ... n_bytes) = from[0 ... n_bytes) in its turn on a queue.
static inline void queue_copy(Queues *queues, Queue queue, void *to, const void *from, size_t n_bytes) {
    QueueCopy copy = {to, from, n_bytes};
    queue_call(queues, queue, queue_run_copy, &copy, sizeof(copy));
}

// The event is done once everything that was called on this queue before has run. May be repeated, also on another
// queue: then later waits are for the latest record, earlier ones still for theirs.
static inline void queue_record(Queues *queues, Queue queue, QueueEvent *event) {
    queue_lock(queues);
    QueueTask *task = queue == QUEUE_COMPUTE ? NULL : queue_next(queues, queue, QUEUE_TASK_RECORD);
    const uint64_t ticket = queue_ticket(queue, queues->states[queue].n_called + 1);
    __atomic_store_n(&event->recorded, ticket, __ATOMIC_RELAXED);
    if (task) {
        task->event = event;
        task->ticket = ticket;
        queue_add(queues, queue);
    } else {
        queues->states[queue].n_called++;
        queues->states[queue].n_finished++;
        queue_event_done(event, ticket);
        queue_stir(queues);
    }
    queue_unlock(queues);
}

// What is called on this queue from now on runs after the event's most recent record (of this moment). On the compute
// queue the host waits.
static inline void queue_await(Queues *queues, Queue queue, QueueEvent *event) {
    queue_lock(queues);
    const uint64_t ticket = __atomic_load_n(&event->recorded, __ATOMIC_RELAXED);
    if (queue == QUEUE_COMPUTE) {
        queue_stir(queues);
        queue_reach(queues, ticket);
    } else {
        queue_next(queues, queue, QUEUE_TASK_AWAIT)->ticket = ticket;
        queue_add(queues, queue);
    }
    queue_unlock(queues);
}

// The host waits for the event's most recent record.
static inline void queue_wait_event(Queues *queues, QueueEvent *event) { queue_await(queues, QUEUE_COMPUTE, event); }

// The host waits for everything that was called on a queue.
static inline void queue_wait(Queues *queues, Queue queue) {
    queue_lock(queues);
    queue_stir(queues);
    queue_reach(queues, queue_ticket(queue, queues->states[queue].n_called));
    queue_unlock(queues);
}

// The host waits for everything that was called.
static inline void queues_wait(Queues *queues) {
    for (int q = 0; q < QUEUES; q++) queue_wait(queues, (Queue)q);
}

// ---------------------------------------------------------------------------------------------------------------
// Opening

static inline void queue_open_ring(QueueState *state) {
    state->ring = (QueueTask *)malloc(QUEUE_RING * sizeof(QueueTask));
    if (!state->ring) die("out of memory at the start");
    memset(state->ring, 0xff, QUEUE_RING * sizeof(QueueTask));  // touched now, so that no page comes later
}

// The threads take no signals, so that these interrupt the host as they do without threads.
static inline void queue_start_thread(QueueState *state) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&state->thread, NULL, queue_thread, state);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0) die("can't start a thread: %s. Is there a limit on processes (ulimit -u)?", strerror(status));
}

// Queues of their own, to be closed; `seed` is for QUEUE_SEEDED. Allocates and starts all that is ever needed. The
// calling thread is the host. Dies without memory or threads.
static inline Queues *queues_open(QueueOrder order, uint64_t seed) {
    Queues *queues = (Queues *)calloc(1, sizeof(Queues));
    if (!queues) die("out of memory at the start");
    queues->order = order;
    queues->seed = seed;
    pthread_mutex_init(&queues->mutex, NULL);
    for (int q = 0; q < QUEUES; q++) {
        QueueState *state = &queues->states[q];
        state->queues = queues;
        state->pace = 1 + random_bits(seed, 0, (uint64_t)q) % 8;
        pthread_cond_init(&state->called, NULL);
        pthread_cond_init(&state->finished, NULL);
        if (q != QUEUE_COMPUTE) queue_open_ring(state);
    }
    for (int q = 1; q < QUEUES && order == QUEUE_THREADS; q++) queue_start_thread(&queues->states[q]);
    return queues;
}

// Runs what is left, then ends the threads and frees everything.
static inline void queues_close(Queues *queues) {
    queues_wait(queues);
    queue_lock(queues);
    queues->closing = true;
    for (int q = 1; q < QUEUES; q++) pthread_cond_signal(&queues->states[q].called);
    queue_unlock(queues);
    for (int q = 0; q < QUEUES; q++) {
        QueueState *state = &queues->states[q];
        if (q != QUEUE_COMPUTE && queues->order == QUEUE_THREADS) pthread_join(state->thread, NULL);
        pthread_cond_destroy(&state->called);
        pthread_cond_destroy(&state->finished);
        free(state->ring);
    }
    pthread_mutex_destroy(&queues->mutex);
    free(queues);
}

#endif
