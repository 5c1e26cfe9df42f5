// nccl_waits.c - which ranks a rank waits for, why it would wait for ever, and how a lazy peer is driven.
//
// Invariant: what is said of a wait is worked out under the meeting's lock, from posts that can't change meanwhile; it
// is raised as a fault without the lock.
#include "nccl_ranks.h"

static const double MOMENT = 0.01;      // seconds, after which a waiting rank asks its peers
static const double LOOKS_EVERY = 0.1;  // seconds between looks whether peers live

// ---------------------------------------------------------------------------------------------------------------
// What a rank waits for. All of these with the lock held.

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
        snprintf(text, n_text, "lost rank: %s, but rank %d is gone: its process %d has ended after %llu calls", waiting,
                 p, meeting->ranks[p].process, (unsigned long long)meeting->ranks[p].n_calls);
        return true;
    }
    return false;
}

static void describe_timeout(Communicator *c, uint32_t awaited, char *text, size_t n_text) {
    char waiting[384];
    describe_waiting(c->meeting, c->rank, waiting, sizeof(waiting));
    size_t n =
        (size_t)snprintf(text, n_text, "time-out: for %g s (EMULATOR_TIMEOUT) %s", emulator.options.timeout, waiting);
    for (int p = 0; p < c->n_ranks && n < n_text; p++) {
        const RankState *peer = &c->meeting->ranks[p];
        if (!(awaited >> p & 1)) continue;
        n +=
            (size_t)snprintf(text + n, n_text - n, "; rank %d has made %llu calls%s%s%s", p,
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
    double now = meeting_seconds();
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
    Wait wait = {.begin = meeting_seconds()};
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

void *ranks_help(void *argument) {
    Communicator *c = argument;
    while (!c->helper_stops) {
        uint32_t generation = atomic_load(&c->meeting->generation);
        if (is_asked(c) && post_next(c)) continue;
        meeting_sleep(c->meeting, generation, 10);
    }
    return NULL;
}
