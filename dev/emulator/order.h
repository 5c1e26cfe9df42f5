// order.h - what happened before what, within one kernel launch.
//
// Every access leaves a cell: the serial number of the block, the block's time, warp, lane. A block's time goes on at
// every synchronisation, so "warp w knows all that warp u did until time t" says everything that barriers can order:
//
//     known[w][u] = t      accesses of u's lanes at times <= t are ordered before what w does now (u == w: between
//                          lanes of the warp)
//
// A barrier at time t joins the rows of the warps that take part, and sets known[w][u] = t among them. __syncwarp of a
// whole warp sets known[w][w]; of some lanes, entries of a finer table. Shuffles and votes order nothing, as CUDA says.
//
// Blocks of a launch are unordered, but for the pattern "write, __threadfence(), atomic | atomic, __threadfence(),
// read": an atomic publishes what was fenced before, a fence after an atomic acquires what the earlier atomics on the
// same address published. Launches, copies and products are ordered by streams and events (stream.c).
//
// Invariant: the verdict depends on the program and its data only, never on the order in which warps were interpreted.
#ifndef ORDER_H
#define ORDER_H

#include "state.h"

// A read cell stands for one thread, some lanes of a warp, some warps of a block, or several blocks.
enum { READ_LANE, READ_WARP, READ_WARPS, READ_BLOCKS, READ_MODES };
enum { CELL_ATOMIC = 1 };  // flag of a writer's cell
enum { MOST_TIME = (1 << 20) - 1 };

static inline Cell cell_of(uint32_t serial, uint32_t time, uint32_t warp, uint32_t lane, uint32_t flags) {
    return (Cell)((uint64_t)serial << 32 | (uint64_t)time << 12 | warp << 7 | lane << 2 | flags);
}
static inline uint32_t cell_serial(Cell cell) { return (uint32_t)((uint64_t)cell >> 32); }
static inline uint32_t cell_time(Cell cell) { return (uint32_t)cell >> 12; }
static inline uint32_t cell_warp(Cell cell) { return (uint32_t)cell >> 7 & 31; }
static inline uint32_t cell_lane(Cell cell) { return (uint32_t)cell >> 2 & 31; }
static inline uint32_t cell_flags(Cell cell) { return (uint32_t)cell & 3; }

// Atomics on one address, in order, and how far a warp has seen them.
typedef struct Seen {
    uint32_t object, n_releases;
} Seen;

typedef struct SeenList {
    Seen *items;
    size_t n;
} SeenList;

typedef struct Release {
    Cell self;            // the atomic
    uint32_t *published;  // for each thread of the block: its accesses until this time; NULL: nothing was fenced
    SeenList acquired;
} Release;

typedef struct SyncObject {
    uint64_t address;
    Release *releases;
    size_t n_releases;
} SyncObject;

typedef struct Order {
    uint32_t first_serial;  // of the launch
    uint32_t own_serial;    // the block's first; it takes another when its time runs out
    uint32_t serial, time;
    uint32_t n_warps;
    bool has_fences;          // the kernel contains a fence: publishing is followed
    bool has_fenced;          // some thread of the block has done so
    bool has_named_barriers;  // some warps may synchronise without the others
    bool is_whole;            // neither that, nor some lanes of a warp without the others
    Cell stale;               // cells below are ordered before the launch
    Cell safe[MOST_WARPS];    // cells of the block below are ordered before what the warp does now
    uint32_t known[MOST_WARPS][MOST_WARPS];
    bool has_lanes[MOST_WARPS];
    uint32_t lane_known[MOST_WARPS][LANES][LANES];
    uint32_t known_at_fence[MOST_WARPS][MOST_WARPS];
    uint32_t fence_time[MOST_THREADS];  // 0: none
    SeenList observed[MOST_WARPS], acquired[MOST_WARPS];
    SyncObject *objects;
    size_t n_objects;
} Order;

void order_begin_launch(Order *order, bool has_fences, bool has_named_barriers, bool has_partial_warps);
void order_begin_block(Order *order, uint32_t n_warps);
void order_end_launch(Order *order);
void order_barrier(Order *order, uint32_t warps);  // a mask
void order_syncwarp(Order *order, uint32_t warp, uint32_t lanes, uint32_t live);
void order_fence(Order *order, uint32_t warp, uint32_t lanes);
void order_atomic(Order *order, uint32_t warp, uint32_t lane, uint64_t address);

// Is the access that left this cell ordered before what this lane does now? For readers: all of those it stands for.
bool order_is_writer_before(const Order *order, Cell cell, uint32_t warp, uint32_t lane);
bool order_is_reader_before(const Order *order, Cell cell, uint32_t warp, uint32_t lane);
// The reader's cell after one more read, by some lanes of a warp.
Cell order_merge_read(const Order *order, Cell cell, uint32_t warp, uint32_t lanes);

#endif
