// nccl_ranks.c - ranks meet, post, read what others have posted, and leave. See nccl_ranks.h.
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
static const double LOOKS_EVERY = 0.1;           // seconds between looks whether peers live
static const off_t DATA_APART = (off_t)1 << 40;  // of one rank's data and the next one's

// ---------------------------------------------------------------------------------------------------------------
// The clock, the lock, and waking each other

double meeting_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void meeting_lock(Meeting *meeting) {
    if (pthread_mutex_lock(&meeting->lock) == EOWNERDEAD) pthread_mutex_consistent(&meeting->lock);  // killed in here
}

void meeting_unlock(Meeting *meeting) { pthread_mutex_unlock(&meeting->lock); }

void meeting_changed(Meeting *meeting) {
    atomic_fetch_add(&meeting->generation, 1);
    syscall(SYS_futex, &meeting->generation, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void meeting_sleep(Meeting *meeting, uint32_t generation, double seconds) {
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    syscall(SYS_futex, &meeting->generation, FUTEX_WAIT, generation, &time, NULL, 0);
}

// A rank holds a lock on a byte of the file, which the kernel lets go when the process ends, however it does.
bool rank_holds_lock(int file, int rank) {
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
// Posts and data

Post *post_match(Meeting *meeting, int rank, const Call *call, int peer) {
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

bool call_needs(const Call *call, int peer) { return call_is_collective(call) || call->peer == peer; }

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
        next += (off_t)round_up(call->from_bytes, 4096);  // so that pages can be given back
    }
    meeting_lock(c->meeting);
    size_t n_used = 0;
    for (size_t i = 0; i < state->n_posts_used; i++) n_used += state->posts[i].n_readers > 0;
    bool has_room = n_used + launch->n_calls <= MOST_POSTS;
    for (size_t i = 0; i < launch->n_calls && has_room; i++) {
        Post post = {launch->calls[i], launch->number, offsets[i],
                     call_is_collective(&launch->calls[i]) ? c->n_ranks : 1};
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
    off_t place = post->offset + (off_t)offset;
    meeting_unlock(c->meeting);
    for (char *data = to; n_bytes > 0;) {
        ssize_t n = pread(c->file, data, n_bytes, place);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("nccl: shared memory can't be read: %s", n < 0 ? strerror(errno) : "it ends");
        data += n;
        place += n;
        n_bytes -= (size_t)n;
    }
}

void ranks_done(Launch *launch) {
    Communicator *c = launch->communicator;
    meeting_lock(c->meeting);
    for (size_t i = 0; i < launch->n_calls; i++) {
        for (int p = 0; p < c->n_ranks; p++) {
            Post *post =
                call_needs(&launch->calls[i], p) ? post_match(c->meeting, c->rank, &launch->calls[i], p) : NULL;
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
        snprintf(text, n_text,
                 "lost rank: rank %d is in ncclCommInitRank, but rank %d is gone: its process %d has ended", c->rank, r,
                 meeting->ranks[r].process);
    }
    if (meeting->faulty > 0) {
        snprintf(text, n_text, "lost rank: rank %d is in ncclCommInitRank, but rank %d has ended with this fault: %s",
                 c->rank, meeting->faulty - 1, meeting->fault);
    }
    return absent;
}

void ranks_list(uint32_t ranks, char *text, size_t n_text) {
    int n = snprintf(text, n_text, "rank%s", (ranks & (ranks - 1)) != 0 ? "s" : "");
    for (int r = 0, is_first = 1; r < MOST_RANKS; r++) {
        if (!(ranks >> r & 1)) continue;
        n += snprintf(text + n, n_text - (size_t)n, "%s%d", is_first ? " " : ", ", r);
        is_first = 0;
    }
}

static void wait_for_all(Communicator *c) {
    double begin = meeting_seconds();
    char text[1024] = "", whom[128];
    for (;;) {
        uint32_t generation = atomic_load(&c->meeting->generation);
        meeting_lock(c->meeting);
        bool is_complete = c->meeting->n_attached == c->n_ranks;
        uint32_t absent = is_complete ? 0 : absent_ranks(c, text, sizeof(text));
        meeting_unlock(c->meeting);
        if (is_complete) return;
        ranks_list(absent, whom, sizeof(whom));
        if (*text == '\0' && meeting_seconds() - begin > emulator.options.timeout) {
            snprintf(text, sizeof(text),
                     "time-out: for %g s (EMULATOR_TIMEOUT) rank %d waits in ncclCommInitRank for %s of %d",
                     emulator.options.timeout, c->rank, whom, c->n_ranks);
        }
        if (*text) fail("%s", text);
        meeting_sleep(c->meeting, generation, LOOKS_EVERY);
    }
}

void ranks_attach(Communicator *c) {
    c->file = shm_open(c->name, O_RDWR | O_CLOEXEC, 0600);
    if (c->file < 0 && errno == ENOENT) {
        fail(
            "invalid argument: ncclCommInitRank: rank %d: the process that made the unique id is gone, or all its "
            "ranks "
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
}

void ranks_meet(Communicator *c) {
    wait_for_all(c);
    sigset_t all, before;  // signals are for the program's own threads
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->has_helper = c->n_ranks > 1 && pthread_create(&c->helper, NULL, ranks_help, c) == 0;
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
