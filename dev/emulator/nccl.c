// nccl.c - the stand-in for libnccl: arguments, groups, and what a launch does with device memory.
//
// A launch is two operations of its stream: the first posts the calls and what they send, the second takes what the
// peers have posted and writes the results (nccl_ranks.h). Both check memory as a kernel would be checked. As
// elsewhere, what NCCL would refuse, or answer with a hang, is a fault.
//
// Invariant: the launches of a communicator are ordered in each rank: by their stream, or by events.
#include <nccl.h>

#include "nccl_ranks.h"

#define ID_MAGIC 0x6e63636c756e6971ull
enum { CHUNK_BYTES = 1 << 16 };

typedef struct UniqueId {
    uint64_t magic;
    char name[64];
} UniqueId;

// What lies between ncclGroupStart and ncclGroupEnd, as pushed by a thread.
typedef struct GroupCall {
    Communicator *communicator;
    cudaStream_t stream;
    Call call;
} GroupCall;

static __thread struct {
    int depth;
    GroupCall *calls;
    size_t n_calls;
} group;

// ---------------------------------------------------------------------------------------------------------------
// Words

const char *call_name(const Call *call) {
    static const char *const NAMES[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                        "ncclBroadcast", "ncclSend",          "ncclRecv"};
    return NAMES[call->kind];
}

void call_describe(const Call *call, char *text, size_t n_text) {
    int n = snprintf(text, n_text, "%s of %llu %s", call_name(call), (unsigned long long)call->count,
                     number_name(call->type));
    const char *reduces = call->kind == CALL_ALL_REDUCE || call->kind == CALL_REDUCE_SCATTER ? ", " : NULL;
    if (reduces) n += snprintf(text + n, n_text - (size_t)n, ", %s", reduction_name(call->reduction));
    const char *whom = call->kind == CALL_SEND ? " to rank" : call->kind == CALL_RECV ? " from rank" : ", root";
    if (call->kind >= CALL_BROADCAST) n += snprintf(text + n, n_text - (size_t)n, "%s %d", whom, call->peer);
    snprintf(text + n, n_text - (size_t)n, " (call %llu)", (unsigned long long)call->number);
}

// ---------------------------------------------------------------------------------------------------------------
// What a launch does when its stream has come to it

// Within one buffer: neighbours in a slab are others.
static void touch_buffer(const Call *call, const void *pointer, size_t n_bytes, AccessKind kind) {
    char what[64];
    uint64_t begin = (uint64_t)(uintptr_t)pointer;
    if (n_bytes == 0) return;
    snprintf(what, sizeof(what), "%s's %s", call_name(call), kind == ACCESS_READ ? "sendbuff" : "recvbuff");
    memory_check(pointer, n_bytes, what);
    const Region *first = region_at(begin), *last = region_at(begin + n_bytes - 1);
    if (emulator.options.checks && first != last && first->live) {
        char place[256];
        memory_describe(begin, place, sizeof(place));
        fail("more than one region: %s: %zu bytes at %s reach beyond it\n  in %s", what, n_bytes, place,
             stream_current_name());
    }
    shadow_touch(begin, n_bytes, kind, what);
}

static void post_run(void *payload) {
    Launch *launch = *(Launch **)payload;
    if (launch->communicator->is_aborted) return;
    for (size_t i = 0; i < launch->n_calls; i++) {
        touch_buffer(&launch->calls[i], launch->calls[i].from, launch->calls[i].from_bytes, ACCESS_READ);
    }
    ranks_post(launch);
}

static bool complete_is_ready(void *payload, bool waits) { return ranks_ready(*(Launch **)payload, waits); }

// Values `first` … of all ranks' contributions, in the order of ranks, to `to`.
static void reduce(const Launch *launch, const Call *call, size_t first, size_t n, char *to) {
    static __thread char x[CHUNK_BYTES];
    int n_ranks = launch->communicator->n_ranks;
    size_t size = number_bytes(call->type);
    bool is_average = call->reduction == ncclAvg;
    for (size_t begin = 0, part; begin < n; begin += part) {
        part = n - begin < CHUNK_BYTES / size ? n - begin : CHUNK_BYTES / size;
        char *sum = to + begin * size;
        for (int r = 0; r < n_ranks; r++) {
            ranks_read(launch, call, r, (first + begin) * size, r == 0 ? sum : x, part * size);
            if (is_average) numbers_scale(call->type, r == 0 ? sum : x, part, n_ranks, false);
            if (r > 0) numbers_reduce(call->type, call->reduction, sum, x, part);
        }
        if (is_average) numbers_scale(call->type, sum, part, n_ranks, true);
    }
}

static void call_complete(const Launch *launch, const Call *call) {
    const Communicator *c = launch->communicator;
    touch_buffer(call, call->to, call->to_bytes, ACCESS_WRITE);
    if (call->to_bytes == 0) return;
    char *to = memory_data(call->to);
    size_t part = call->count * number_bytes(call->type);
    switch (call->kind) {
    case CALL_ALL_GATHER:
        for (int r = 0; r < c->n_ranks; r++) ranks_read(launch, call, r, 0, to + (size_t)r * part, part);
        break;
    case CALL_REDUCE_SCATTER: reduce(launch, call, (size_t)c->rank * call->count, call->count, to); break;
    case CALL_ALL_REDUCE: reduce(launch, call, 0, call->count, to); break;
    case CALL_BROADCAST:
    case CALL_RECV: ranks_read(launch, call, call->peer, 0, to, part); break;
    case CALL_SEND: break;
    }
}

static void complete_run(void *payload) {
    Launch *launch = *(Launch **)payload;
    for (size_t i = 0; i < launch->n_calls && !launch->communicator->is_aborted; i++) {
        call_complete(launch, &launch->calls[i]);
    }
    if (!launch->communicator->is_aborted) ranks_done(launch);
    free(launch);
}

// ---------------------------------------------------------------------------------------------------------------
// Launches

static bool is_overlapping(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

// Calls of one group run at the same time.
static void check_group(const Launch *launch) {
    for (size_t i = 0; i < launch->n_calls; i++) {
        const Call *a = &launch->calls[i];
        for (size_t j = 0; j < launch->n_calls; j++) {
            const Call *b = &launch->calls[j];
            if (i == j || !(is_overlapping(a->to, a->to_bytes, b->from, b->from_bytes) ||
                            (i < j && is_overlapping(a->to, a->to_bytes, b->to, b->to_bytes)))) {
                continue;
            }
            char first[128], second[128];
            call_describe(a, first, sizeof(first));
            call_describe(b, second, sizeof(second));
            fail("overlapping buffers: rank %d: what %s writes, %s of the same group reads or writes, too",
                 launch->communicator->rank, first, second);
        }
    }
}

static void check_stream(Communicator *c, const Clock *clock, const char *name) {
    if (!c->has_end || clock_is_after(clock, c->end)) return;
    fail(
        "race between streams: %s, and before it %s in another stream, which no event orders: the calls of a "
        "communicator must be ordered",
        name, c->end_name);
}

static void call_number(Communicator *c, Call *call) {
    call->number = ++c->n_calls;
    call->index = call_is_collective(call)  ? c->n_collectives++
                  : call->kind == CALL_SEND ? c->n_sent[call->peer]++
                                            : c->n_received[call->peer]++;
    uint64_t others = (uint64_t)c->n_ranks - 1, part = call->count * number_bytes(call->type), sent = 0;
    switch (call->kind) {
    case CALL_ALL_GATHER:
    case CALL_REDUCE_SCATTER: sent = others * part; break;
    case CALL_ALL_REDUCE: sent = 2 * others * part / (uint64_t)c->n_ranks; break;
    case CALL_BROADCAST: sent = call->peer == c->rank ? others * part : 0; break;
    case CALL_SEND: sent = call->peer == c->rank ? 0 : part; break;
    case CALL_RECV: break;
    }
    emulator.counts.collectives++;
    emulator.counts.sent_bytes += sent;
}

// Calls of one communicator on one stream.
static void launch_push(Communicator *c, cudaStream_t stream, const GroupCall *calls, size_t n_calls) {
    Launch *launch = checked_alloc(sizeof(Launch) + n_calls * sizeof(Call));
    launch->communicator = c;
    launch->number = ++c->n_launches;
    for (size_t i = 0; i < n_calls; i++) {
        if (calls[i].communicator != c) continue;
        if (calls[i].stream != stream) fail("not emulated: a communicator on several streams of one group");
        Call *call = &launch->calls[launch->n_calls++];
        *call = calls[i].call;
        call_number(c, call);
    }
    const Call *first = &launch->calls[0];
    int n = snprintf(launch->name, sizeof(launch->name), "%s of %llu %s by rank %d", call_name(first),
                     (unsigned long long)first->count, number_name(first->type), c->rank);
    if (launch->n_calls > 1) {
        snprintf(launch->name + n, sizeof(launch->name) - (size_t)n, " and %zu more", launch->n_calls - 1);
    }
    check_group(launch);
    Clock clock;
    launch->post = stream_next(stream, &clock);
    check_stream(c, &clock, launch->name);
    c->has_end = true;
    c->end = (Position){launch->post.stream, launch->post.sequence + 1};
    memcpy(c->end_name, launch->name, sizeof(c->end_name));
    if (c->last) c->last->next = launch;
    if (!c->first) c->first = launch;
    c->last = launch;
    ranks_announce(c, &launch->calls[launch->n_calls - 1]);
    const char *name = c->end_name;  // the launch may be gone after the first
    stream_push(stream, name, post_run, &launch, sizeof(launch));
    stream_push_when(stream, name, complete_is_ready, complete_run, &launch, sizeof(launch));
}

static void group_launch(void) {
    for (size_t i = 0; i < group.n_calls; i++) {
        bool is_first = true;
        for (size_t j = 0; j < i; j++) is_first &= group.calls[j].communicator != group.calls[i].communicator;
        if (!is_first) continue;
        launch_push(group.calls[i].communicator, group.calls[i].stream, group.calls + i, group.n_calls - i);
    }
    group.n_calls = 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Calls

static Communicator *communicator_checked(ncclComm_t handle, const char *name) {
    Nccl *nccl = nccl_state();
    for (size_t i = 0; i < nccl->n_communicators; i++) {
        Communicator *c = nccl->communicators[i];
        if (c == (Communicator *)(void *)handle && c->is_live) return c;
    }
    fail("invalid argument: %s: %p is no communicator, or is destroyed", name, (void *)handle);
}

static void check_buffer(const Communicator *c, const Call *call, const void *pointer, size_t n_bytes,
                         const char *side) {
    char what[96];
    if (n_bytes == 0) return;
    snprintf(what, sizeof(what), "%s's %s in rank %d", call_name(call), side, c->rank);
    memory_check(pointer, n_bytes, what);
    if ((uintptr_t)pointer % number_bytes(call->type) != 0) {
        fail("misaligned access: %s: %p for %s", what, pointer, number_name(call->type));
    }
}

// In place is what NCCL calls so; any other overlap is a mistake.
static void check_in_place(const Communicator *c, const Call *call) {
    size_t part = call->count * number_bytes(call->type), mine = (size_t)c->rank * part;
    const char *in_place = call->kind == CALL_ALL_GATHER       ? call->to + mine
                           : call->kind == CALL_REDUCE_SCATTER ? call->to - mine
                                                               : call->to;
    if (call->from == in_place || !is_overlapping(call->from, call->from_bytes, call->to, call->to_bytes)) return;
    char text[128];
    call_describe(call, text, sizeof(text));
    fail(
        "overlapping buffers: rank %d: %s: sendbuff %p and recvbuff %p overlap, and not as NCCL defines in place: "
        "sendbuff would be %p",
        c->rank, text, (const void *)call->from, (void *)call->to, (const void *)in_place);
}

static void check_numbers(const Communicator *c, const Call *call) {
    const char *name = call_name(call);
    if (number_bytes(call->type) == 0) fail("invalid argument: %s: type %d", name, call->type);
    if (!reduction_name(call->reduction)) fail("invalid argument: %s: reduction %d", name, call->reduction);
    if (call->peer < 0 || call->peer >= c->n_ranks) {
        fail("invalid argument: %s: rank %d of %d", name, call->peer, c->n_ranks);
    }
    if (call->count > (uint64_t)1 << 40)
        fail("invalid argument: %s: a count of %llu", name, (unsigned long long)call->count);
}

static ncclResult_t call_make(Call call, ncclComm_t handle, cudaStream_t stream) {
    API_ENTER;
    Communicator *c = communicator_checked(handle, call_name(&call));
    call.number = c->n_calls + 1;  // for messages; it is numbered when it is launched
    check_numbers(c, &call);
    size_t part = call.count * number_bytes(call.type), all = part * (size_t)c->n_ranks;
    bool sends = call.kind != CALL_RECV && (call.kind != CALL_BROADCAST || call.peer == c->rank);
    call.from_bytes = !sends ? 0 : call.kind == CALL_REDUCE_SCATTER ? all : part;
    call.to_bytes = call.kind == CALL_SEND ? 0 : call.kind == CALL_ALL_GATHER ? all : part;
    check_buffer(c, &call, call.from, call.from_bytes, "sendbuff");
    check_buffer(c, &call, call.to, call.to_bytes, "recvbuff");
    check_in_place(c, &call);
    group.calls = grown(group.calls, group.n_calls, sizeof(GroupCall));
    group.calls[group.n_calls++] = (GroupCall){c, stream, call};
    if (group.n_calls > MOST_POSTS) fail("not emulated: more than %d calls in a group", MOST_POSTS);
    if (group.depth == 0) group_launch();
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return call_make((Call){.kind = CALL_ALL_GATHER, .type = type, .count = count, .from = from, .to = to}, comm,
                     stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t comm, cudaStream_t stream) {
    return call_make((Call){.kind = CALL_REDUCE_SCATTER,
                            .type = type,
                            .reduction = (int)reduction,
                            .count = count,
                            .from = from,
                            .to = to},
                     comm, stream);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
    return call_make(
        (Call){
            .kind = CALL_ALL_REDUCE, .type = type, .reduction = (int)reduction, .count = count, .from = from, .to = to},
        comm, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return call_make((Call){.kind = CALL_BROADCAST, .type = type, .peer = root, .count = count, .from = from, .to = to},
                     comm, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return call_make((Call){.kind = CALL_SEND, .type = type, .peer = peer, .count = count, .from = from}, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return call_make((Call){.kind = CALL_RECV, .type = type, .peer = peer, .count = count, .to = to}, comm, stream);
}

ncclResult_t ncclGroupStart(void) {
    API_ENTER;
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    API_ENTER;
    if (group.depth == 0) fail("invalid argument: ncclGroupEnd without ncclGroupStart");
    if (--group.depth == 0) group_launch();
    return ncclSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// Communicators

ncclResult_t ncclGetUniqueId(ncclUniqueId *unique) {
    API_ENTER;
    UniqueId id = {.magic = ID_MAGIC};
    ranks_create(id.name, sizeof(id.name));
    memset(unique, 0, sizeof(*unique));
    memcpy(unique, &id, sizeof(id));
    return ncclSuccess;
}

static Communicator *communicator_new(int n_ranks, const ncclUniqueId *unique, int rank) {
    API_ENTER;
    UniqueId id;
    memcpy(&id, unique, sizeof(id));
    if (group.depth > 0) fail("not emulated: ncclCommInitRank in a group: each rank is a process");
    if (id.magic != ID_MAGIC) fail("invalid argument: ncclCommInitRank: the id does not come from ncclGetUniqueId");
    device_use();
    Nccl *nccl = nccl_state();
    if (nccl->n_communicators == MOST_COMMUNICATORS) fail("more than %d communicators", MOST_COMMUNICATORS);
    Communicator *c = checked_alloc(sizeof(*c));
    *c = (Communicator){.rank = rank, .n_ranks = n_ranks, .device = device_current()};
    memcpy(c->name, id.name, sizeof(c->name));
    nccl->communicators[nccl->n_communicators++] = c;
    ranks_attach(c);
    return c;
}

ncclResult_t ncclCommInitRank(ncclComm_t *handle, int n_ranks, ncclUniqueId unique, int rank) {
    Communicator *c = communicator_new(n_ranks, &unique, rank);
    ranks_meet(c);
    *handle = (ncclComm_t)(void *)c;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    Communicator *c;
    {
        API_ENTER;
        c = communicator_checked(handle, "ncclCommDestroy");
        if (group.n_calls > 0) fail("invalid argument: ncclCommDestroy between ncclGroupStart and ncclGroupEnd");
        if (c->has_end && !clock_is_after(&emulator.host_clock, c->end)) {
            fail("pending work: ncclCommDestroy in rank %d: the host has not waited for %s", c->rank, c->end_name);
        }
        ranks_leave(c, RANK_DESTROYED);
        c->is_live = false;
    }
    ranks_detach(c);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    API_ENTER;
    communicator_checked(handle, "ncclCommFinalize");
    return ncclSuccess;
}

// Another thread may wait in a stream for peers, with the emulator's lock: it must learn of this first.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
    Communicator *c = communicator_checked(handle, "ncclCommAbort");
    c->is_aborted = true;
    ranks_leave(c, RANK_ABORTED);
    {
        API_ENTER;
        c->is_live = false;
    }
    ranks_detach(c);
    return ncclSuccess;
}

// Does not wait for the emulator's lock, either.
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error) {
    Communicator *c = communicator_checked(handle, "ncclCommGetAsyncError");
    *error = ranks_have_failed(c, c->error, sizeof(c->error)) ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int *n_ranks) {
    API_ENTER;
    *n_ranks = communicator_checked(handle, "ncclCommCount")->n_ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int *rank) {
    API_ENTER;
    *rank = communicator_checked(handle, "ncclCommUserRank")->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int *device) {
    API_ENTER;
    *device = communicator_checked(handle, "ncclCommCuDevice")->device;
    return ncclSuccess;
}

// ---------------------------------------------------------------------------------------------------------------
// Versions and names

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "another NCCL error";
    }
}

const char *ncclGetLastError(ncclComm_t handle) {
    return handle ? communicator_checked(handle, "ncclGetLastError")->error : "";
}
