// stream.c - streams and events: what is ordered before what, and when an operation executes.
//
// An operation is appended with a copy of its arguments and a clock: for each stream, how many of its operations are
// ordered before. It executes when the order that was asked for says so:
//     eager     at once
//     laziest   when the host waits for it, or something that executes depends on it, or the queue is full
//     a number  like laziest, and after each call a random number of operations of random streams
// so whatever a program left to luck happens as late as is legal. Independently, accesses of operations that no event
// orders are found by their cells (shadow.c) in any of these.
//
// An operation that needs other processes (nccl.c) may not be ready. Only a host that waits for it waits for them; what
// executes of itself, in the eager and the random orders and when a peer asks, stops there and goes on later.
//
// Invariant: operations of a stream execute in order, and after all that their clocks name.
#include <time.h>

#include "state.h"

enum { MOST_PENDING = 8192, QUERIES_UNTIL_DONE = 3 };

struct Operation {
    Operation *next;
    Stream *stream;
    uint32_t sequence;
    char name[96];
    OperationFunction *run;
    ReadyFunction *is_ready;   // NULL: always
    struct CUevent_st *event;  // to note the time of
    Clock clock;
    uint32_t ordered_below;  // serial numbers; 0: not worked out yet
    size_t n_payload;
    max_align_t payload[];
};

typedef struct Executed {
    uint32_t first_serial, last_serial, sequence;
    char name[96];
} Executed;

struct Stream {
    uint32_t id;
    bool is_blocking;  // synchronises with the legacy stream
    Operation *first, *last;
    uint32_t n_appended, n_executed, n_queries;
    Clock clock;  // of the last operation appended
    Executed *executed;
    size_t n_executed_kept;
    int priority;
};

struct CUevent_st {
    bool is_recorded, has_timing;
    Clock clock;
    uint32_t n_queries, recorded;  // recorded: times so far
    double seconds;
};

static Stream *stream_of(cudaStream_t handle) {
    if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return emulator.streams[0];
    for (int i = 1; i < MOST_STREAMS; i++) {
        if (emulator.streams[i] == (Stream *)(void *)handle) return emulator.streams[i];
    }
    fail("invalid argument: stream %p was never created, or is destroyed", (void *)handle);
}

static void clock_join(Clock *clock, const Clock *other) {
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (other->sequence[i] > clock->sequence[i]) clock->sequence[i] = other->sequence[i];
    }
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t random_next(void) {
    emulator.random += 0x9e3779b97f4a7c15ull;
    uint64_t x = emulator.random;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// ---------------------------------------------------------------------------------------------------------------
// Execution

uint32_t stream_take_serials(size_t n) {
    uint32_t first = emulator.next_serial;
    emulator.next_serial += (uint32_t)n;
    if (emulator.next_serial > (uint32_t)INT32_MAX - 1024) fail("the emulator ran out of serial numbers for blocks");
    return n == 0 ? first - 1 : first;
}

static void note_executed(Operation *operation) {
    Stream *stream = operation->stream;
    size_t kept = stream->n_executed_kept;
    if (kept >= 4096 && kept % 1024 == 0) {  // what the host has seen finish is ordered before all that comes
        size_t drop = 0;
        while (drop < kept && stream->executed[drop].sequence <= emulator.host_clock.sequence[stream->id]) drop++;
        bool is_idle = true;
        for (int i = 0; i < MOST_STREAMS; i++) is_idle &= !emulator.streams[i] || !emulator.streams[i]->first;
        if (is_idle && drop > 0) {
            memmove(stream->executed, stream->executed + drop, (kept - drop) * sizeof(Executed));
            stream->n_executed_kept -= drop;
        }
    }
    stream->executed = grown(stream->executed, stream->n_executed_kept, sizeof(Executed));
    Executed *executed = &stream->executed[stream->n_executed_kept++];
    executed->first_serial = stream_take_serials(1);
    executed->last_serial = UINT32_MAX;  // until it has ended
    executed->sequence = operation->sequence;
    memcpy(executed->name, operation->name, sizeof(executed->name));
}

static bool stream_drain(Stream *stream, uint32_t sequence, bool waits);

// The first operation of a stream, after what is ordered before it. False: one of them is not ready, and waits are not
// allowed.
static bool stream_execute(Stream *stream, bool waits) {
    Operation *operation = stream->first;
    for (int i = 0; i < MOST_STREAMS; i++) {
        Stream *other = emulator.streams[i];
        if (other && other != stream && !stream_drain(other, operation->clock.sequence[i], waits)) return false;
    }
    if (stream->first != operation) return true;  // done on the way
    if (operation->is_ready && !operation->is_ready(operation->payload, waits)) return false;
    if (emulator.on_progress) emulator.on_progress();
    stream->first = operation->next;
    if (!stream->first) stream->last = NULL;
    stream->n_executed++;
    if (operation->event) operation->event->seconds = seconds_now();
    if (operation->run) {
        note_executed(operation);
        Operation *outer = emulator.executing;
        emulator.executing = operation;
        operation->run(operation->payload);
        emulator.executing = outer;
        stream->executed[stream->n_executed_kept - 1].last_serial = stream_take_serials(0);
    }
    free(operation);
    return true;
}

static bool stream_drain(Stream *stream, uint32_t sequence, bool waits) {
    while (stream->first && stream->n_executed < sequence) {
        if (!stream_execute(stream, waits)) return false;
    }
    return true;
}

static void random_progress(void) {
    while (random_next() % 3 == 0) {
        Stream *stream = emulator.streams[random_next() % MOST_STREAMS];
        for (int tries = 0; !stream && tries < 64; tries++) stream = emulator.streams[random_next() % MOST_STREAMS];
        if (stream && stream->first) stream_execute(stream, false);
    }
}

// The clock of what is appended next: after all that the host has waited for, and the legacy stream's part.
static void stream_join(Stream *stream) {
    clock_join(&stream->clock, &emulator.host_clock);
    for (int i = 0; i < MOST_STREAMS; i++) {
        Stream *other = emulator.streams[i];
        if (!other || other == stream || !stream->is_blocking || !other->is_blocking) continue;
        if (stream == emulator.streams[0] || other == emulator.streams[0]) clock_join(&stream->clock, &other->clock);
    }
}

static Operation *stream_append(Stream *stream, const char *name, OperationFunction *run, const void *payload,
                                size_t n_payload) {
    Operation *operation = checked_alloc(sizeof(Operation) + n_payload);
    snprintf(operation->name, sizeof(operation->name), "%s", name);
    operation->stream = stream;
    operation->run = run;
    operation->n_payload = n_payload;
    if (n_payload > 0) memcpy(operation->payload, payload, n_payload);
    device_use();
    stream_join(stream);
    operation->sequence = ++stream->n_appended;
    stream->clock.sequence[stream->id] = operation->sequence;
    operation->clock = stream->clock;
    if (stream->last) {
        stream->last->next = operation;
    } else {
        stream->first = operation;
    }
    stream->last = operation;
    return operation;
}

static void stream_progress(Stream *stream) {
    for (int i = 0; i < MOST_STREAMS && emulator.options.stream_order == 0; i++) {
        if (emulator.streams[i]) stream_drain(emulator.streams[i], emulator.streams[i]->n_appended, false);
    }
    if (emulator.options.stream_order == 2) random_progress();
    if (stream->n_appended - stream->n_executed > MOST_PENDING) {
        stream_drain(stream, stream->n_appended - MOST_PENDING / 2, true);
    }
}

void stream_push_when(cudaStream_t handle, const char *name, ReadyFunction *is_ready, OperationFunction *run,
                      const void *payload, size_t n_payload) {
    Stream *stream = stream_of(handle);
    stream_append(stream, name, run, payload, n_payload)->is_ready = is_ready;
    stream_progress(stream);
}

void stream_push(cudaStream_t handle, const char *name, OperationFunction *run, const void *payload, size_t n_payload) {
    stream_push_when(handle, name, NULL, run, payload, n_payload);
}

void stream_synchronise(cudaStream_t handle) {
    Stream *stream = stream_of(handle);
    stream_drain(stream, stream->n_appended, true);
    clock_join(&emulator.host_clock, &stream->clock);
}

void stream_synchronise_all(void) {
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (!emulator.streams[i]) continue;
        stream_drain(emulator.streams[i], emulator.streams[i]->n_appended, true);
        clock_join(&emulator.host_clock, &emulator.streams[i]->clock);
    }
}

void stream_finish(void) {
    if (!emulator.executing) stream_synchronise_all();
}

// ---------------------------------------------------------------------------------------------------------------
// Order

// The first executed operation of a stream that is not ordered before what executes.
static size_t first_unordered(const Stream *stream, const Clock *clock) {
    size_t low = 0, high = stream->n_executed_kept;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (stream->executed[middle].sequence <= clock->sequence[stream->id]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint32_t stream_ordered_below(void) {
    Operation *operation = emulator.executing;
    if (operation->ordered_below > 0) return operation->ordered_below;
    uint32_t below = UINT32_MAX;
    for (int i = 0; i < MOST_STREAMS; i++) {
        const Stream *stream = emulator.streams[i];
        if (!stream) continue;
        bool is_own = stream == operation->stream;
        size_t first = is_own ? stream->n_executed_kept - 1 : first_unordered(stream, &operation->clock);
        if (first < stream->n_executed_kept && stream->executed[first].first_serial < below) {
            below = stream->executed[first].first_serial;
        }
    }
    return operation->ordered_below = below;
}

// The operation that took a serial number: the one with the largest first number that is not above.
static const Executed *executed_find(uint32_t serial, const Stream **which) {
    const Executed *best = NULL;
    for (int i = 0; i < MOST_STREAMS; i++) {
        const Stream *stream = emulator.streams[i];
        for (size_t low = 0, high = stream ? stream->n_executed_kept : 0; low < high;) {
            size_t middle = (low + high) / 2;
            if (stream->executed[middle].first_serial > serial) {
                high = middle;
                continue;
            }
            if (!best || stream->executed[middle].first_serial >= best->first_serial) {
                best = &stream->executed[middle];
                *which = stream;
            }
            low = middle + 1;
        }
    }
    return best && serial <= best->last_serial ? best : NULL;  // older ones are not kept: everything is after them
}

bool stream_is_ordered(uint32_t serial) {
    const Stream *stream = NULL;
    const Executed *executed = executed_find(serial, &stream);
    return !executed || executed->sequence <= emulator.executing->clock.sequence[stream->id];
}

void stream_describe(uint32_t serial, char *text, size_t n_text) {
    const Stream *stream = NULL;
    const Executed *executed = executed_find(serial, &stream);
    snprintf(text, n_text, "%s", executed ? executed->name : "an earlier operation");
}

Position stream_next(cudaStream_t handle, Clock *clock) {
    Stream *stream = stream_of(handle);
    stream_join(stream);
    Position next = {stream->id, stream->n_appended + 1};
    *clock = stream->clock;
    clock->sequence[next.stream] = next.sequence;
    return next;
}

bool stream_executing(Position *position, Clock *clock) {
    if (!emulator.executing) return false;
    *position = (Position){emulator.executing->stream->id, emulator.executing->sequence};
    *clock = emulator.executing->clock;
    return true;
}

bool stream_try(Position position) {
    Stream *stream = emulator.streams[position.stream];
    return !stream || stream_drain(stream, position.sequence, false);
}

const char *stream_current_name(void) { return emulator.executing ? emulator.executing->name : "a call of the host"; }

// ---------------------------------------------------------------------------------------------------------------
// The API of streams

Stream *stream_create(uint32_t id, bool is_blocking, int priority) {
    Stream *stream = checked_alloc(sizeof(Stream));
    *stream = (Stream){.id = id, .is_blocking = is_blocking, .priority = priority};
    stream->n_appended = stream->n_executed = emulator.host_clock.sequence[id];  // goes on where the last one ended
    return stream;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned int flags, int priority) {
    API_ENTER;
    if (flags & ~(unsigned)cudaStreamNonBlocking) fail("invalid argument: cudaStreamCreate: flags %u", flags);
    device_use();
    for (uint32_t i = 1; i < MOST_STREAMS; i++) {
        if (emulator.streams[i]) continue;
        emulator.streams[i] = stream_create(i, !(flags & cudaStreamNonBlocking), priority);
        *handle = (cudaStream_t)(void *)emulator.streams[i];
        return cudaSuccess;
    }
    fail("more than %d streams", MOST_STREAMS - 1);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned int flags) {
    return cudaStreamCreateWithPriority(handle, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
    API_ENTER;
    *priority = stream_of(handle)->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    API_ENTER;
    Stream *stream = stream_of(handle);
    if (stream == emulator.streams[0]) fail("invalid argument: cudaStreamDestroy: the legacy stream");
    stream_drain(stream, stream->n_appended, true);
    clock_join(&emulator.host_clock, &stream->clock);  // kinder than CUDA: the number is used again
    emulator.streams[stream->id] = NULL;
    free(stream->executed);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    API_ENTER;
    emulator.counts.stream_synchronisations++;
    stream_synchronise(handle);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    API_ENTER;
    Stream *stream = stream_of(handle);
    if (stream->n_executed < stream->n_appended && ++stream->n_queries < QUERIES_UNTIL_DONE) return cudaErrorNotReady;
    if (!stream_drain(stream, stream->n_appended, false)) return cudaErrorNotReady;
    stream->n_queries = 0;
    stream_synchronise(handle);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    API_ENTER;
    emulator.counts.device_synchronisations++;
    stream_synchronise_all();
    return cudaSuccess;
}

typedef struct HostCall {
    void (*function)(void *);
    void *argument;
} HostCall;

static void host_call_run(void *payload) {
    HostCall *call = payload;
    emulator.in_host_function = true;
    call->function(call->argument);
    emulator.in_host_function = false;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument) {
    API_ENTER;
    HostCall call = {function, argument};
    stream_push(handle, "cudaLaunchHostFunc", host_call_run, &call, sizeof(call));
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// Events

static struct CUevent_st *event_of(cudaEvent_t event) {
    for (size_t i = 0; i < emulator.n_events; i++) {
        if (emulator.events[i] == (void *)event) return event;
    }
    fail("invalid argument: event %p was never created, or is destroyed", (void *)event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    API_ENTER;
    *event = checked_alloc(sizeof(**event));
    (*event)->has_timing = !(flags & cudaEventDisableTiming);
    emulator.events = grown(emulator.events, emulator.n_events, sizeof(void *));
    emulator.events[emulator.n_events++] = *event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    API_ENTER;
    event_of(event);
    for (int i = 0; i < MOST_STREAMS; i++) {
        for (Operation *o = emulator.streams[i] ? emulator.streams[i]->first : NULL; o; o = o->next) {
            if (o->event == event) o->event = NULL;
        }
    }
    size_t i = 0;
    while (emulator.events[i] != (void *)event) i++;
    emulator.events[i] = emulator.events[--emulator.n_events];
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned int flags) {
    API_ENTER;
    (void)flags;
    struct CUevent_st *e = event_of(event);
    Stream *stream = stream_of(handle);
    stream_append(stream, "cudaEventRecord", NULL, NULL, 0)->event = e;
    e->is_recorded = true;
    e->clock = stream->clock;
    e->n_queries = 0;
    stream_progress(stream);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    return cudaEventRecordWithFlags(event, handle, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags) {
    API_ENTER;
    (void)flags;
    Stream *stream = stream_of(handle);
    struct CUevent_st *e = event_of(event);
    if (!e->is_recorded) return cudaSuccess;  // as CUDA has it: nothing to wait for
    clock_join(&stream->clock, &e->clock);
    stream_append(stream, "cudaStreamWaitEvent", NULL, NULL, 0);
    stream_progress(stream);
    return cudaSuccess;
}

static bool event_finish(const struct CUevent_st *event, bool waits) {
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (emulator.streams[i] && !stream_drain(emulator.streams[i], event->clock.sequence[i], waits)) return false;
    }
    clock_join(&emulator.host_clock, &event->clock);
    return true;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    API_ENTER;
    emulator.counts.stream_synchronisations++;
    event_finish(event_of(event), true);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    API_ENTER;
    struct CUevent_st *e = event_of(event);
    bool is_done = true;
    for (int i = 0; i < MOST_STREAMS; i++) {
        is_done &= !emulator.streams[i] || emulator.streams[i]->n_executed >= e->clock.sequence[i];
    }
    if (!is_done && ++e->n_queries < QUERIES_UNTIL_DONE) return cudaErrorNotReady;
    return event_finish(e, false) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    API_ENTER;
    struct CUevent_st *a = event_of(from), *b = event_of(to);
    if (!a->has_timing || !b->has_timing) fail("invalid argument: cudaEventElapsedTime: an event without timing");
    if (!a->is_recorded || !b->is_recorded) fail("invalid argument: cudaEventElapsedTime: an event was not recorded");
    if (a->seconds == 0 || b->seconds == 0) return cudaErrorNotReady;
    *milliseconds = (float)(1e3 * (b->seconds - a->seconds));
    return cudaSuccess;
}
