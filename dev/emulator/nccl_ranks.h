// nccl_ranks.h - the ranks of a communicator are processes that meet in a segment of shared memory.
//
//     | Meeting: lock, rank 0: state, posts | rank 1 | … | rank 0's data … | rank 1's data … |
//       mapped by every rank                               written and read at offsets, never mapped
//
// What a stream does for a launch (one call, or what lies between ncclGroupStart and ncclGroupEnd) has two halves:
//     post       puts the calls and a copy of what they send into the segment; never waits
//     complete   once every peer has posted what matches: compares, reads the peers' data, gives the posts back
// so a rank waits only for peers that have not come as far, as with NCCL. A peer's stream may be lazy: a rank that has
// waited for a moment asks, and a thread of the peer's process executes its streams up to the post.
//
// Collectives match by their number in the communicator, sends and receives by their number in the pair.
//
// Invariant: a post stays until all who match it have completed; the posts of a rank's last launch say all it waits
// for, so ranks that wait for each other are found from the segment alone.
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H

#include <stdatomic.h>

#include "state.h"

enum { MOST_RANKS = 32, MOST_POSTS = 256, MOST_COMMUNICATORS = 64 };

typedef enum { CALL_ALL_GATHER, CALL_REDUCE_SCATTER, CALL_ALL_REDUCE, CALL_BROADCAST, CALL_SEND, CALL_RECV } CallKind;

typedef struct Call {
    CallKind kind;
    int type, reduction;  // ncclDataType_t, ncclRedOp_t
    int peer;             // of a send or receive; the root of a broadcast; otherwise 0
    uint64_t count;       // as the caller gave it
    uint64_t index;       // of the collective, or of the send or receive of this pair
    uint64_t number;      // of the call, from 1
    const char *from;     // on the device; NULL: not used in this rank
    char *to;
    size_t from_bytes, to_bytes;
} Call;

typedef struct Post {
    Call call;
    uint64_t launch;
    off_t offset;   // of the data
    int n_readers;  // left; 0: free
} Post;

// How a rank ended: HERE until then.
typedef enum { RANK_ABSENT, RANK_HERE, RANK_DESTROYED, RANK_ABORTED } RankEnd;

typedef struct RankState {
    int process, device;
    RankEnd end;
    uint64_t n_calls, n_launches, n_posted, n_completed;
    char last_call[128];
    bool asks;                    // has waited for a moment
    _Atomic uint64_t n_executed;  // goes on while the process executes anything
    off_t n_data;
    size_t n_posts_used;
    Post posts[MOST_POSTS];
} RankState;

typedef struct Meeting {
    uint64_t magic;
    int n_ranks, n_attached;
    pthread_mutex_t lock;
    _Atomic uint32_t generation;  // changes whenever a rank may have something to see
    int faulty;                   // 1 + the first rank that a fault has ended, and what it said
    char fault[512];
    RankState ranks[MOST_RANKS];
} Meeting;

typedef struct Launch Launch;

typedef struct Communicator {
    Meeting *meeting;
    int file, rank, n_ranks, device;
    char name[64];  // of the segment
    bool is_live;   // neither destroyed nor aborted
    _Atomic bool is_aborted, helper_stops;
    bool has_helper;
    pthread_t helper;
    uint64_t n_collectives, n_sent[MOST_RANKS], n_received[MOST_RANKS], n_calls, n_launches;
    Launch *first, *last;  // that are pushed and not posted
    bool has_end;
    Position end;  // of the last launch
    char end_name[96];
    char error[512];  // for ncclGetLastError
} Communicator;

struct Launch {
    Communicator *communicator;
    Launch *next;
    uint64_t number;
    Position post;
    char name[96];
    size_t n_calls;
    Call calls[];
};

double meeting_seconds(void);
void meeting_lock(Meeting *meeting);
void meeting_unlock(Meeting *meeting);
void meeting_changed(Meeting *meeting);  // wakes all who sleep
void meeting_sleep(Meeting *meeting, uint32_t generation, double seconds);
bool rank_holds_lock(int file, int rank);  // its process lives
// With the lock held: the post of `peer` that matches a call of `rank`, or NULL.
Post *post_match(Meeting *meeting, int rank, const Call *call, int peer);
// Is `peer` one of those that a call needs? The root of a broadcast needs all, too: it is not done before.
bool call_needs(const Call *call, int peer);
void ranks_list(uint32_t ranks, char *text, size_t n_text);  // "ranks 0, 2"

// The segment of a new id: its name.
void ranks_create(char *name, size_t n_name);
// Takes the rank's place.
void ranks_attach(Communicator *communicator);
// Returns when all ranks are there. Without the emulator's lock.
void ranks_meet(Communicator *communicator);
void ranks_leave(Communicator *communicator, RankEnd end);  // tells the others
void ranks_detach(Communicator *communicator);  // after that; nothing may be pending. Without the emulator's lock
// Tells the others how many calls were made, and which was the last; and the helper, if they ask for it.
void ranks_announce(Communicator *communicator, const Call *last);
void ranks_post(Launch *launch);
void *ranks_help(void *communicator);          // the helper's thread
bool ranks_ready(Launch *launch, bool waits);  // all peers have posted what matches
// Reads from the data that `peer` has posted for this call.
void ranks_read(const Launch *launch, const Call *call, int peer, size_t offset, void *to, size_t n_bytes);
void ranks_done(Launch *launch);
// Has a peer ended otherwise than by ncclCommDestroy? Says so.
bool ranks_have_failed(Communicator *communicator, char *text, size_t n_text);
void call_describe(const Call *call, char *text, size_t n_text);

static inline bool call_is_collective(const Call *call) { return call->kind <= CALL_BROADCAST; }
const char *call_name(const Call *call);

// nccl_numbers.c
size_t number_bytes(int type);
const char *number_name(int type);
const char *reduction_name(int reduction);
// sum = sum (+) x for n values, each rounded to the type.
void numbers_reduce(int type, int reduction, void *sum, const void *x, size_t n);
// What each rank's values are multiplied with, or the integer sums divided by, for averages.
void numbers_scale(int type, void *x, size_t n, int n_ranks, bool is_sum);

// nccl.c: all communicators of this process.
typedef struct Nccl {
    Communicator *communicators[MOST_COMMUNICATORS];  // never moved: some calls look without the emulator's lock
    size_t n_communicators;
    char created[16][64];  // segments of the ids that this process has made
    size_t n_created;
} Nccl;
Nccl *nccl_state(void);

#endif
