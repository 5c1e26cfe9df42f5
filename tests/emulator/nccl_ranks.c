// nccl_ranks.c - ranks meet, post, wait for each other, and find out why they would wait for ever. See nccl_ranks.h.
//
// Invariant: everything that ranks share is read and written under the meeting's lock, but for data of posts, which is
// written before its post and not after; a fault is raised without the lock.
#include "nccl_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MEETING_MAGIC 0x6e63636c6d656574ull
#define SEGMENT_PREFIX "emulator.nccl."
static const double MOMENT = 0.02;        // seconds, after which a waiting rank asks its peers
static const double LOOKS_EVERY = 0.1;    // seconds between looks whether peers live
static const off_t DATA_APART = (off_t)1 << 40;  // of one rank's data and the next one's

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---------------------------------------------------------------------------------------------------------------
// The lock, and waking each other

static void meeting_lock(Meeting *meeting) {
    if (pthread_mutex_lock(&meeting->lock) == EOWNERDEAD) pthread_mutex_consistent(&meeting->lock);  // killed in here
}

static void meeting_unlock(Meeting *meeting) { pthread_mutex_unlock(&meeting->lock); }

static void meeting_changed(Meeting *meeting) {
    atomic_fetch_add(&meeting->generation, 1);
    syscall(SYS_futex, &meeting->generation, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void meeting_sleep(Meeting *meeting, uint32_t generation, double seconds) {
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    syscall(SYS_futex, &meeting->generation, FUTEX_WAIT, generation, &time, NULL, 0);
}

// A rank holds a lock on a byte of the file, which the kernel lets go when the process ends, however it does.
static bool rank_holds_lock(int file, int rank) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(file, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// ---------------------------------------------------------------------------------------------------------------
// Segments

// What ranks left that were killed before all had attached.
static void segments_sweep(void) {
    DIR *directory = opendir("/dev/shm");
    if (!directory) return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (strncmp(entry->d_name, SEGMENT_PREFIX, strlen(SEGMENT_PREFIX)) != 0) continue;
        int process = atoi(entry->d_name + strlen(SEGMENT_PREFIX));
        if (process > 0 && kill(process, 0) != 0 && errno == ESRCH) shm_unlink(entry->d_name);
    }
    closedir(directory);
}

static Meeting *segment_map(int file) {
    void *memory = mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) fail("nccl: shared memory can't be mapped: %s", strerror(errno));
    return memory;
}

void ranks_create(char *name, size_t n_name) {
    Nccl *nccl = nccl_state();
    segments_sweep();
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, n_name, "/" SEGMENT_PREFIX "%d.%zu.%llx", (int)getpid(), nccl->n_created,
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
    int file = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Meeting)) != 0) fail("ncclGetUniqueId: %s: %s", name, strerror(errno));
    Meeting *meeting = segment_map(file);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&meeting->lock, &attributes);
    meeting->magic = MEETING_MAGIC;
    munmap(meeting, sizeof(Meeting));
    close(file);
    size_t most = sizeof(nccl->created) / sizeof(nccl->created[0]);
    snprintf(nccl->created[nccl->n_created++ % most], sizeof(nccl->created[0]), "%s", name);
}

// ---------------------------------------------------------------------------------------------------------------
// The end of this process: the others should know why

static void tell_peers(Communicator *c, const char *message) {
    Meeting *meeting = c->meeting;
    int locked = EBUSY;
    for (int tries = 0; tries < 100 && (locked = pthread_mutex_trylock(&meeting->lock)) == EBUSY; tries++) {
        usleep(1000);  // this very thread may hold it
    }
    if (locked == EOWNERDEAD) pthread_mutex_consistent(&meeting->lock);
    if (meeting->faulty == 0) {
        snprintf(meeting->fault, sizeof(meeting->fault), "%s", message);
        meeting->faulty = c->rank + 1;
    }
    if (locked != EBUSY) meeting_unlock(meeting);
    meeting_changed(meeting);
}

static void on_end(const char *message) {
    Nccl *nccl = nccl_state();
    emulator.on_end = NULL;
    for (size_t i = 0; i < nccl->n_communicators && message; i++) {
        if (nccl->communicators[i]->is_live) tell_peers(nccl->communicators[i], message);
    }
    for (size_t i = 0; i < nccl->n_created && i < sizeof(nccl->created) / sizeof(nccl->created[0]); i++) {
        shm_unlink(nccl->created[i]);
    }
}

static void on_progress(void) {
    Nccl *nccl = nccl_state();
    for (size_t i = 0; i < nccl->n_communicators; i++) {
        Communicator *c = nccl->communicators[i];
        if (c->is_live) atomic_fetch_add_explicit(&c->meeting->ranks[c->rank].n_executed, 1, memory_order_relaxed);
    }
}

Nccl *nccl_state(void) {
    if (emulator.nccl) return emulator.nccl;
    emulator.on_end = on_end;
    emulator.on_progress = on_progress;
    return emulator.nccl = checked_alloc(sizeof(Nccl));
}

// ---------------------------------------------------------------------------------------------------------------
// What a rank waits for. All of these with the lock held.

// The post of `peer` that matches a call of `rank`.
static Post *post_match(Meeting *meeting, int rank, const Call *call, int peer) {
    CallKind wanted = call->kind == CALL_SEND ? CALL_RECV : CALL_SEND;
    RankState *state = &meeting->ranks[peer];
    for (size_t i = 0; i < state->n_posts_used; i++) {
        Post *post = &state->posts[i];
        if (post->n_readers == 0 || post->call.index != call->index) continue;
        if (call_is_collective(call) ? call_is_collective(&post->call)
                                     : post->call.kind == wanted && post->call.peer == rank) {
            return post;
        }
    }
    return NULL;
}

// Is `peer` one of those that a call of a rank needs? The root of a broadcast needs all, too: it is not done before.
static bool call_needs(const Call *call, int peer) { return call_is_collective(call) || call->peer == peer; }

// The ranks that have not posted what matches this rank's last launch; in *which, one of the calls.
static uint32_t awaited_by(Meeting *meeting, int rank, const Call **which) {
    RankState *state = &meeting->ranks[rank];
    uint32_t awaited = 0;
    if (state->n_posted == state->n_completed) return 0;
    for (size_t i = 0; i < state->n_posts_used; i++) {
        const Post *post = &state->posts[i];
        if (post->n_readers == 0 || post->launch != state->n_posted) continue;
        for (int p = 0; p < meeting->n_ranks; p++) {
            if (!call_needs(&post->call, p) || post_match(meeting, rank, &post->call, p)) continue;
            if (awaited == 0 && which) *which = &post->call;
            awaited |= 1u << p;
        }
    }
    return awaited;
}

static void ranks_list(uint32_t ranks, char *text, size_t n_text) {
    int n = snprintf(text, n_text, "rank%s", (ranks & (ranks - 1)) != 0 ? "s" : "");
    for (int r = 0, is_first = 1; r < MOST_RANKS; r++) {
        if (!(ranks >> r & 1)) continue;
        n += snprintf(text + n, n_text - (size_t)n, "%s%d", is_first ? " " : ", ", r);
        is_first = 0;
    }
}

// "rank 0 waits for rank 1 in ncclSend of 100 ncclFloat32 to rank 1 (call 3)"
static void describe_waiting(Meeting *meeting, int rank, char *text, size_t n_text) {
    const Call *call = NULL;
    char whom[128], what[128] = "nothing";
    ranks_list(awaited_by(meeting, rank, &call), whom, sizeof(whom));
    if (call) call_describe(call, what, sizeof(what));
    snprintf(text, n_text, "rank %d waits for %s in %s", rank, whom, what);
}

// Ranks that wait for each other, directly or in a ring, will do so for ever.
static bool find_deadlock(Meeting *meeting, int rank, char *text, size_t n_text) {
    uint32_t awaited[MOST_RANKS], stuck = 0, before;
    for (int r = 0; r < meeting->n_ranks; r++) {
        awaited[r] = awaited_by(meeting, r, NULL);
        stuck |= awaited[r] != 0 ? 1u << r : 0;
    }
    do {
        before = stuck;
        for (int r = 0; r < meeting->n_ranks; r++) {
            if ((awaited[r] & stuck) == 0) stuck &= ~(1u << r);
        }
    } while (stuck != before);
    if (!(stuck >> rank & 1)) return false;
    size_t n = (size_t)snprintf(text, n_text, "deadlock: ");
    bool has_collectives = false;
    for (int r = 0, is_first = 1; r < meeting->n_ranks && n + 1 < n_text; r++) {
        if (!(stuck >> r & 1)) continue;
        const Call *call = NULL;
        char waiting[384];
        awaited_by(meeting, r, &call);
        describe_waiting(meeting, r, waiting, sizeof(waiting));
        has_collectives |= call_is_collective(call);
        n += (size_t)snprintf(text + n, n_text - n, "%s%s", is_first ? "" : ", ", waiting);
        is_first = 0;
    }
    if (n >= n_text) return true;
    snprintf(text + n, n_text - n, "\n  %s",
             has_collectives ? "all ranks must make the calls of a communicator in the same order"
                             : "NCCL may block here: what waits for each other belongs between ncclGroupStart and "
                               "ncclGroupEnd");
    return true;
}

static const char *difference(const Call *a, const Call *b) {
    if (call_is_collective(a) && a->kind != b->kind) return "operations";
    if (a->count != b->count) return call_is_collective(a) ? "counts" : "sizes";
    if (a->type != b->type) return "types";
    if (!call_is_collective(a)) return NULL;
    return a->reduction != b->reduction ? "reductions" : a->peer != b->peer ? "roots" : NULL;
}

// What this rank has posted last, against what has come to match it.
static bool find_difference(Meeting *meeting, int rank, char *text, size_t n_text) {
    RankState *state = &meeting->ranks[rank];
    for (size_t i = 0; i < state->n_posts_used; i++) {
        const Post *post = &state->posts[i];
        if (post->n_readers == 0 || post->launch != state->n_posted) continue;
        for (int p = 0; p < meeting->n_ranks; p++) {
            const Post *other = call_needs(&post->call, p) ? post_match(meeting, rank, &post->call, p) : NULL;
            const char *what = other ? difference(&post->call, &other->call) : NULL;
            if (!what) continue;
            char mine[128], theirs[128];
            call_describe(&post->call, mine, sizeof(mine));
            call_describe(&other->call, theirs, sizeof(theirs));
            snprintf(text, n_text, "different %s: rank %d makes %s, rank %d makes %s", what, rank < p ? rank : p,
                     rank < p ? mine : theirs, rank < p ? p : rank, rank < p ? theirs : mine);
            return true;
        }
    }
    return false;
}

// One of the ranks that this one waits for will never come.
static bool find_absent(Communicator *c, uint32_t awaited, char *text, size_t n_text) {
    Meeting *meeting = c->meeting;
    char waiting[384];
    describe_waiting(meeting, c->rank, waiting, sizeof(waiting));
    for (int p = 0; p < meeting->n_ranks; p++) {
        const RankState *peer = &meeting->ranks[p];
        if (!(awaited >> p & 1) || p == c->rank || peer->end == RANK_HERE) continue;
        snprintf(text, n_text, "missing call: %s, but rank %d has called %s after %llu calls", waiting, p,
                 peer->end == RANK_DESTROYED ? "ncclCommDestroy" : "ncclCommAbort", (unsigned long long)peer->n_calls);
        return true;
    }
    if (meeting->faulty > 0) {
        snprintf(text, n_text, "lost rank: %s, but rank %d has ended with this fault: %s", waiting, meeting->faulty - 1,
                 meeting->fault);
        return true;
    }
    for (int p = 0; p < meeting->n_ranks; p++) {
        if (!(awaited >> p & 1) || p == c->rank || rank_holds_lock(c->file, p)) continue;
        snprintf(text, n_text, "lost rank: %s, but rank %d is gone: its process %d has ended after %llu calls", waiting, p,
                 meeting->ranks[p].process, (unsigned long long)meeting->ranks[p].n_calls);
        return true;
    }
    return false;
}

static void describe_timeout(Communicator *c, uint32_t awaited, char *text, size_t n_text) {
    char waiting[384];
    describe_waiting(c->meeting, c->rank, waiting, sizeof(waiting));
    size_t n = (size_t)snprintf(text, n_text, "time-out: for %g s (EMULATOR_TIMEOUT) %s", emulator.options.timeout,
                                waiting);
    for (int p = 0; p < c->n_ranks && n < n_text; p++) {
        const RankState *peer = &c->meeting->ranks[p];
        if (!(awaited >> p & 1)) continue;
        n += (size_t)snprintf(text + n, n_text - n, "; rank %d has made %llu calls%s%s%s", p,
                              (unsigned long long)peer->n_calls, peer->n_calls > 0 ? ", the last " : "", peer->last_call,
                              peer->n_launches > peer->n_posted ? ", which its stream has not reached" : "");
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Waiting

typedef struct Wait {
    double begin, looked;
    uint64_t n_executed;  // by the peers
} Wait;

static uint64_t executed_by_all(Meeting *meeting) {
    uint64_t n = 0;
    for (int r = 0; r < meeting->n_ranks; r++) n += atomic_load(&meeting->ranks[r].n_executed);
    return n;
}

// A look at the meeting: which ranks does this one wait for? If for ever, `text` says why.
static uint32_t look(Communicator *c, Wait *wait, bool waits, char *text, size_t n_text) {
    Meeting *meeting = c->meeting;
    double now = seconds_now();
    if (wait->n_executed != executed_by_all(meeting)) {
        wait->n_executed = executed_by_all(meeting);
        wait->begin = wait->begin < now - MOMENT ? now - MOMENT : wait->begin;  // somebody computes: no time-out
    }
    meeting_lock(meeting);
    uint32_t awaited = awaited_by(meeting, c->rank, NULL);
    bool has_fault = find_difference(meeting, c->rank, text, n_text);
    if (awaited != 0 && !has_fault) has_fault = find_deadlock(meeting, c->rank, text, n_text);
    if (awaited != 0 && !has_fault && now - wait->looked >= LOOKS_EVERY) {
        has_fault = find_absent(c, awaited, text, n_text);
        wait->looked = now;
    }
    if (awaited != 0 && !has_fault && waits && now - wait->begin > emulator.options.timeout) {
        describe_timeout(c, awaited, text, n_text);
    }
    bool asks = awaited != 0 && waits && now - wait->begin >= MOMENT, is_new = asks && !meeting->ranks[c->rank].asks;
    meeting->ranks[c->rank].asks = asks;
    meeting_unlock(meeting);
    if (is_new) meeting_changed(meeting);
    return awaited;
}

bool ranks_ready(Launch *launch, bool waits) {
    Communicator *c = launch->communicator;
    Wait wait = {.begin = seconds_now()};
    char text[4096] = "";
    while (!c->is_aborted) {
        uint32_t generation = atomic_load(&c->meeting->generation);
        uint32_t awaited = look(c, &wait, waits, text, sizeof(text));
        if (*text) fail("%s\n  in %s", text, launch->name);
        if (awaited == 0) return true;
        if (!waits) return false;
        meeting_sleep(c->meeting, generation, MOMENT);
    }
    return true;
}

// Peers that have waited for a moment want this rank's next launch posted, wherever its host may be.
static bool is_asked(Communicator *c) {
    bool asked = false;
    meeting_lock(c->meeting);
    for (int r = 0; r < c->n_ranks && !asked; r++) {
        asked = c->meeting->ranks[r].asks && (awaited_by(c->meeting, r, NULL) >> c->rank & 1);
    }
    meeting_unlock(c->meeting);
    return asked;
}

void ranks_announce(Communicator *c, const Call *last) {
    RankState *state = &c->meeting->ranks[c->rank];
    meeting_lock(c->meeting);
    state->n_calls = c->n_calls;
    state->n_launches = c->n_launches;
    call_describe(last, state->last_call, sizeof(state->last_call));
    meeting_unlock(c->meeting);
    if (is_asked(c)) meeting_changed(c->meeting);
}

static bool post_next(Communicator *c) {
    pthread_mutex_lock(&emulator.lock);
    Launch *launch = c->first;
    bool is_posted = launch && !c->helper_stops && stream_try(launch->post);
    pthread_mutex_unlock(&emulator.lock);
    return is_posted;
}

static void *help(void *argument) {
    Communicator *c = argument;
    while (!c->helper_stops) {
        uint32_t generation = atomic_load(&c->meeting->generation);
        if (is_asked(c) && post_next(c)) continue;
        meeting_sleep(c->meeting, generation, 10);
    }
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------
// Posts and data

static void data_write(Communicator *c, off_t offset, const char *data, size_t n_bytes) {
    while (n_bytes > 0) {
        ssize_t n = pwrite(c->file, data, n_bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("nccl: shared memory for %zu bytes more: %s", n_bytes, strerror(errno));
        data += n;
        offset += n;
        n_bytes -= (size_t)n;
    }
}

static void post_add(Communicator *c, const Post *post) {
    RankState *state = &c->meeting->ranks[c->rank];
    size_t i = 0;
    while (i < state->n_posts_used && state->posts[i].n_readers > 0) i++;
    state->posts[i] = *post;
    if (i == state->n_posts_used) state->n_posts_used++;
}

void ranks_post(Launch *launch) {
    Communicator *c = launch->communicator;
    RankState *state = &c->meeting->ranks[c->rank];
    off_t offsets[MOST_POSTS], next = state->n_data;
    for (size_t i = 0; i < launch->n_calls; i++) {
        const Call *call = &launch->calls[i];
        offsets[i] = (c->rank + 1) * DATA_APART + next;
        if (call->from_bytes > 0) data_write(c, offsets[i], memory_data(call->from), call->from_bytes);
        next += (off_t)size_round_up(call->from_bytes, 4096);  // so that pages can be given back
    }
    meeting_lock(c->meeting);
    size_t n_used = 0;
    for (size_t i = 0; i < state->n_posts_used; i++) n_used += state->posts[i].n_readers > 0;
    bool has_room = n_used + launch->n_calls <= MOST_POSTS;
    for (size_t i = 0; i < launch->n_calls && has_room; i++) {
        Post post = {launch->calls[i], launch->number, offsets[i], call_is_collective(&launch->calls[i]) ? c->n_ranks : 1};
        post_add(c, &post);
    }
    state->n_data = next;
    state->n_posted = launch->number;
    meeting_unlock(c->meeting);
    if (!has_room) fail("nccl: more than %d calls of a rank are not completed by its peers", MOST_POSTS);
    c->first = launch->next;
    if (!c->first) c->last = NULL;
    meeting_changed(c->meeting);
}

void ranks_read(const Launch *launch, const Call *call, int peer, size_t offset, void *to, size_t n_bytes) {
    Communicator *c = launch->communicator;
    meeting_lock(c->meeting);
    const Post *post = post_match(c->meeting, c->rank, call, peer);
    off_t at = post->offset + (off_t)offset;
    meeting_unlock(c->meeting);
    for (char *data = to; n_bytes > 0;) {
        ssize_t n = pread(c->file, data, n_bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("nccl: shared memory can't be read: %s", n < 0 ? strerror(errno) : "it ends");
        data += n;
        at += n;
        n_bytes -= (size_t)n;
    }
}

void ranks_done(Launch *launch) {
    Communicator *c = launch->communicator;
    meeting_lock(c->meeting);
    for (size_t i = 0; i < launch->n_calls; i++) {
        for (int p = 0; p < c->n_ranks; p++) {
            Post *post = call_needs(&launch->calls[i], p) ? post_match(c->meeting, c->rank, &launch->calls[i], p) : NULL;
            if (!post || --post->n_readers > 0 || post->call.from_bytes == 0) continue;
            fallocate(c->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, post->offset, (off_t)post->call.from_bytes);
        }
    }
    c->meeting->ranks[c->rank].n_completed = launch->number;
    meeting_unlock(c->meeting);
}

// ---------------------------------------------------------------------------------------------------------------
// Coming and going

// Takes the rank's place; says what is wrong with it, or nothing. With the lock held.
static void place_take(Communicator *c, char *text, size_t n_text) {
    Meeting *meeting = c->meeting;
    if (c->n_ranks < 1 || c->n_ranks > MOST_RANKS || c->rank < 0 || c->rank >= c->n_ranks) {
        snprintf(text, n_text, "rank %d of %d; 1 … %d ranks", c->rank, c->n_ranks, MOST_RANKS);
        return;
    }
    RankState *mine = &meeting->ranks[c->rank];
    if (meeting->n_ranks == 0) meeting->n_ranks = c->n_ranks;
    if (meeting->n_ranks != c->n_ranks) {
        snprintf(text, n_text, "rank %d says there are %d ranks, another has said %d", c->rank, c->n_ranks,
                 meeting->n_ranks);
        return;
    }
    for (int r = 0; r < c->n_ranks; r++) {
        const RankState *other = &meeting->ranks[r];
        if (other->end == RANK_ABSENT) continue;
        if (r == c->rank) {
            snprintf(text, n_text, "two ranks say that they are rank %d of %d", r, c->n_ranks);
        } else if (other->process == (int)getpid()) {
            snprintf(text, n_text, "ranks %d and %d are one process, which is not emulated", r, c->rank);
        } else if (emulator.options.n_devices > 1 && other->device == c->device) {
            snprintf(text, n_text, "ranks %d and %d both use device %d, which NCCL refuses", r < c->rank ? r : c->rank,
                     r < c->rank ? c->rank : r, c->device);
        }
        if (*text) return;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = c->rank, .l_len = 1};
    if (fcntl(c->file, F_SETLK, &lock) != 0) snprintf(text, n_text, "no lock for rank %d", c->rank);
    mine->process = (int)getpid();
    mine->device = c->device;
    mine->end = RANK_HERE;
    if (++meeting->n_attached == meeting->n_ranks) shm_unlink(c->name);
}

// Whom this rank waits for in ncclCommInitRank. With the lock held.
static uint32_t absent_ranks(Communicator *c, char *text, size_t n_text) {
    Meeting *meeting = c->meeting;
    uint32_t absent = 0;
    for (int r = 0; r < c->n_ranks; r++) {
        if (meeting->ranks[r].end == RANK_ABSENT) absent |= 1u << r;
        if (meeting->ranks[r].end != RANK_HERE || r == c->rank || rank_holds_lock(c->file, r)) continue;
        snprintf(text, n_text, "lost rank: rank %d is in ncclCommInitRank, but rank %d is gone: its process %d has ended",
                 c->rank, r, meeting->ranks[r].process);
    }
    if (meeting->faulty > 0) {
        snprintf(text, n_text, "lost rank: rank %d is in ncclCommInitRank, but rank %d has ended with this fault: %s",
                 c->rank, meeting->faulty - 1, meeting->fault);
    }
    return absent;
}

static void wait_for_all(Communicator *c) {
    double begin = seconds_now();
    char text[1024] = "", whom[128];
    for (;;) {
        uint32_t generation = atomic_load(&c->meeting->generation);
        meeting_lock(c->meeting);
        bool is_complete = c->meeting->n_attached == c->n_ranks;
        uint32_t absent = is_complete ? 0 : absent_ranks(c, text, sizeof(text));
        meeting_unlock(c->meeting);
        if (is_complete) return;
        ranks_list(absent, whom, sizeof(whom));
        if (*text == '\0' && seconds_now() - begin > emulator.options.timeout) {
            snprintf(text, sizeof(text), "time-out: for %g s (EMULATOR_TIMEOUT) rank %d waits in ncclCommInitRank for %s of %d",
                     emulator.options.timeout, c->rank, whom, c->n_ranks);
        }
        if (*text) fail("%s", text);
        meeting_sleep(c->meeting, generation, LOOKS_EVERY);
    }
}

void ranks_attach(Communicator *c) {
    c->file = shm_open(c->name, O_RDWR | O_CLOEXEC, 0600);
    if (c->file < 0 && errno == ENOENT) {
        fail("invalid argument: ncclCommInitRank: rank %d: the process that made the unique id is gone, or all its ranks "
             "have come before",
             c->rank);
    }
    if (c->file < 0) fail("ncclCommInitRank: %s: %s", c->name, strerror(errno));
    c->meeting = segment_map(c->file);
    if (c->meeting->magic != MEETING_MAGIC) fail("ncclCommInitRank: %s is no meeting", c->name);
    c->is_live = true;
    char text[512] = "";
    meeting_lock(c->meeting);
    place_take(c, text, sizeof(text));
    meeting_unlock(c->meeting);
    if (*text) fail("invalid argument: ncclCommInitRank: %s", text);
    meeting_changed(c->meeting);
    wait_for_all(c);
    sigset_t all, before;  // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->has_helper = c->n_ranks > 1 && pthread_create(&c->helper, NULL, help, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ranks_leave(Communicator *c, RankEnd end) {
    meeting_lock(c->meeting);
    c->meeting->ranks[c->rank].end = end;
    meeting_unlock(c->meeting);
    c->helper_stops = true;
    meeting_changed(c->meeting);
}

// The helper may be waiting for the emulator's lock, so it is not held here.
void ranks_detach(Communicator *c) {
    if (c->has_helper) pthread_join(c->helper, NULL);
    c->has_helper = false;
    munmap(c->meeting, sizeof(Meeting));
    close(c->file);
}

bool ranks_have_failed(Communicator *c, char *text, size_t n_text) {
    bool has_failed = false;
    meeting_lock(c->meeting);
    for (int r = 0; r < c->n_ranks && !has_failed; r++) {
        const RankState *state = &c->meeting->ranks[r];
        bool is_gone = r != c->rank && state->end == RANK_HERE && !rank_holds_lock(c->file, r);
        has_failed = is_gone || c->meeting->faulty == r + 1 || (r != c->rank && state->end == RANK_ABORTED);
        if (has_failed) snprintf(text, n_text, "rank %d has %s", r, is_gone ? "ended" : "failed or aborted");
    }
    meeting_unlock(c->meeting);
    return has_failed;
}
