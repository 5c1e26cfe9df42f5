// state.h - what the files of the emulator share: the one Emulator, and what each file offers the others.
//
//     fatbin.c           what nvcc's objects register before main(): PTX text, kernels, variables
//     ptx_text.c         PTX text -> functions, variables, files
//     ptx_decode.c …     the text of one function -> instructions with register offsets (ptx_decoders.c: what each
//                        means, ptx_operations.c and ptx_convert.c: arithmetic of 32 lanes)
//     ptx_run.c          blocks, warps, divergence, barriers (ptx_warp.c: single instructions)
//     ptx_memory.c       loads, stores, atomics, cp.async, ldmatrix
//     shadow.c, order.c  is this access legal: state of each byte, who touched it last, what is ordered before what
//     memory.c           device allocations, their regions, pinned host memory
//     host.c             who reads and writes pinned host memory, and in which order
//     stream.c           streams, events, and when an operation executes
//     runtime.c …        the CUDA runtime's functions (device.c: queries); cublaslt*.c those of cuBLASLt
//     nccl.c …           NCCL among processes (nccl_ranks.c: how they meet, nccl_waits.c: what they wait for, and
//                        whether for ever, nccl_numbers.c: arithmetic)
//     report.c           faults, names, coverage
//
// Invariant: all state hangs off the one `emulator`; a CUDA program has one device, so the process has one emulator.
#ifndef STATE_H
#define STATE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "emulator.h"

enum { LANES = 32, MOST_WARPS = 32, MOST_STREAMS = 64, MOST_THREADS = 1024 };
enum { SHARED_BYTES = 227 * 1024, SHARED_DEFAULT = 48 * 1024 };  // sm_90; sm_80 has 163 KiB
enum { PAGE_BYTES = 256, LINE_BYTES = 16, RED_ZONE = 512 };
#define ALL_LANES 0xffffffffu

// Generic addresses of shared and local memory: no pointer of the host or of the arena looks like these.
#define SHARED_WINDOW ((uint64_t)1 << 48)
#define LOCAL_WINDOW ((uint64_t)1 << 49)
#define WINDOW_BYTES ((uint64_t)1 << 32)

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// ---------------------------------------------------------------------------------------------------------------
// report.c

// Ends the process with the message, after "emulator: ". The first words name the check.
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...);
void *checked_alloc(size_t n_bytes);                    // zeroed; never NULL
void *grown(void *array, size_t n, size_t item_bytes);  // room for one more item; capacity is the next power of two

// ---------------------------------------------------------------------------------------------------------------
// shadow.c: two notes for each byte of device memory

// State of a byte. Bit 0: may be written, bit 1: may be read.
enum { RED = 0, FRESH = 1, VALID = 3, PENDING = 5, FREED = 8, OUTSIDE = 16 };

// Who touched the bytes of a cell last: serial << 32 | time << 12 | warp << 7 | lane << 2 | flags; see order.h.
typedef int64_t Cell;

typedef struct Shadow {
    const char *name;
    uint64_t base;                // address of the first byte, as kernels see it
    size_t n_bytes;               // addressable
    char *data;                   // where the bytes are in this process
    uint8_t *state;               // of each byte
    uint8_t *shift;               // of each page: log2 of the bytes that share a cell, 2 until smaller accesses come
    Cell *writer[3], *reader[3];  // for each shift
} Shadow;

typedef enum { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC } AccessKind;

// Active lanes all name one address, or consecutive pieces in the order of lanes, or anything.
typedef enum { PATTERN_UNIFORM, PATTERN_RUN, PATTERN_SCATTERED } Pattern;

typedef struct Access {
    const struct Warp *warp;
    const struct Instruction *instruction;
    uint32_t mask;     // lanes that access
    uint32_t n_bytes;  // of each lane
    AccessKind kind;
    bool strong;     // relaxed, acquire or release: allowed to meet atomics
    bool read_only;  // through the cache that does not see the launch's own writes
    Pattern pattern;
    uint64_t address[LANES];  // inactive lanes: anything
} Access;

void shadow_create(Shadow *shadow, const char *name, uint64_t base, size_t n_bytes, size_t reserved, bool with_data);
void shadow_set_state(Shadow *shadow, uint64_t address, size_t n_bytes, int state);
// Finds the pattern, checks, and notes the access.
void shadow_access(Shadow *shadow, Access *access);
// An operation of a stream (a copy, a matrix product) reads or writes a range; n_bytes may be 0.
void shadow_touch(uint64_t address, size_t n_bytes, AccessKind kind, const char *what);
// A region begins or ends: nothing unordered may have touched its bytes.
void shadow_take(uint64_t address, size_t n_bytes, const char *what);
bool shadow_is_all(uint64_t address, size_t n_bytes, int state);

static inline char *shadow_data(const Shadow *shadow, uint64_t address) {
    return shadow->data + (address - shadow->base);
}

// ---------------------------------------------------------------------------------------------------------------
// memory.c

typedef struct Region {
    uint64_t base;
    size_t n_bytes;
    char name[64];
    uint32_t allocation;
    uint64_t granted;  // the launch whose arguments point into it
    uint32_t serial;   // of the operation that began it
    bool live;
} Region;

typedef struct Allocation {
    uint64_t base;
    size_t n_bytes;
    char name[64];
    bool freed, has_regions, is_variable;
    size_t n_live_regions;
} Allocation;

typedef struct HostRange {
    uintptr_t base;
    size_t n_bytes;
    bool registered;  // cudaHostRegister: the memory is the caller's
} HostRange;

void memory_start(void);
uint64_t memory_allocate(size_t n_bytes, const char *name, bool is_variable);  // 0: does not fit
void memory_free(uint64_t address);
bool memory_is_device(const void *pointer);  // in the arena, allocated or not
Allocation *memory_find(uint64_t address);   // the allocation that begins at or before the address, or NULL
void memory_check(const void *pointer, size_t n_bytes, const char *what);  // all within one allocation, live
void memory_describe(uint64_t address, char *text, size_t n_text);
void memory_grant(uint64_t address, uint64_t launch);
bool memory_is_pinned(const void *pointer, size_t n_bytes);
char *memory_data(const void *pointer);  // where the device's bytes are in this process

// ---------------------------------------------------------------------------------------------------------------
// stream.c

typedef struct Clock {
    uint32_t sequence[MOST_STREAMS];  // of each stream: operations up to here are ordered before
} Clock;

typedef struct Position {
    uint32_t stream, sequence;
} Position;

typedef struct Operation Operation;
typedef struct Stream Stream;
typedef void OperationFunction(void *payload);
typedef bool ReadyFunction(void *payload, bool waits);  // waits: returns when it is ready

// Appends an operation; the payload (a copy is kept) is handed to `run` when it executes.
void stream_push(cudaStream_t stream, const char *name, OperationFunction *run, const void *payload, size_t n_payload);
void stream_push_when(cudaStream_t stream, const char *name, ReadyFunction *is_ready, OperationFunction *run,
                      const void *payload, size_t n_payload);
Position stream_next(cudaStream_t stream, Clock *clock);  // of the operation that would be appended now
bool stream_executing(Position *position, Clock *clock);  // of what executes; false: nothing does
bool stream_try(Position position);                       // executes up to there, unless something is not ready
static inline bool clock_is_after(const Clock *clock, Position position) {
    return clock->sequence[position.stream] >= position.sequence;
}
Stream *stream_create(uint32_t id, bool is_blocking, int priority);
void stream_synchronise(cudaStream_t stream);
void stream_synchronise_all(void);
// Takes the next n serial numbers for what the executing operation does; returns the first.
uint32_t stream_take_serials(size_t n);
// Everything with a serial number below this one is ordered before the executing operation.
uint32_t stream_ordered_below(void);
bool stream_is_ordered(uint32_t serial);                           // the same for any one serial number
void stream_describe(uint32_t serial, char *text, size_t n_text);  // which operation took it
const char *stream_current_name(void);
void stream_finish(void);  // executes what is left, at exit

// ---------------------------------------------------------------------------------------------------------------
// host.c

// An operation that is appended to `stream` now will read or write pinned host memory.
void host_touch(cudaStream_t stream, const void *pointer, size_t n_bytes, AccessKind kind, const char *name);
void host_forget(const void *pointer, size_t n_bytes);  // it is no longer pinned

// ---------------------------------------------------------------------------------------------------------------
// device.c

// The calling thread's device is used: it must be the one that the process has used before.
void device_use(void);
int device_current(void);

// ---------------------------------------------------------------------------------------------------------------
// The one emulator

typedef struct Options {
    size_t memory_bytes;
    uint64_t instruction_budget;  // of one launch, in warp instructions
    bool checks;
    int stream_order;  // 0 eager, 1 laziest, 2 random
    uint64_t seed;
    int compute_capability;
    int n_devices;
    double timeout;  // seconds that a rank waits for its peers while none of them executes anything
    bool refuses_pageable;
    const char *coverage;
    bool report_leaks, print_counts;
} Options;

typedef struct Emulator {
    bool started;
    pthread_mutex_t lock;
    Options options;
    EmulatorCounts counts;
    void (*on_fault)(const char *message);
    void (*on_end)(const char *message);  // the process ends with this fault: what other processes should know
    void (*on_progress)(void);            // something was executed
    int device;                           // 1 + the one that the process uses; 0: none yet

    Shadow global, shared;
    Allocation *allocations;  // by address
    size_t n_allocations;
    Region *regions;  // [0] is unused
    size_t n_regions;
    uint32_t *region_of;  // for each line of the arena; 0: none
    size_t arena_bytes, arena_used;
    uint64_t n_named;  // allocations so far
    HostRange *host_ranges;
    size_t n_host_ranges;
    struct HostNote *host_notes;
    size_t n_host_notes;

    struct Module **modules;  // fatbin.c
    size_t n_modules;
    struct Function **functions;
    size_t n_functions;
    struct Variable *variables;
    size_t n_variables;
    struct Registered *host_functions, *host_variables;  // what the host calls them
    size_t n_host_functions, n_host_variables;

    Stream *streams[MOST_STREAMS];  // [0] is the legacy stream
    Clock host_clock;
    void **events;  // that exist
    size_t n_events;
    Operation *executing;
    uint64_t random;
    uint32_t next_serial;
    bool in_host_function;

    struct Block *block;       // that a kernel executes, NULL between
    struct Block *block_kept;  // its memory
    uint64_t n_launches;
    void **objects;  // of cuBLASLt
    size_t n_objects;
    struct Nccl *nccl;
    float *scratch;  // of products
    size_t n_scratch;
    cudaError_t last_error;
} Emulator;

extern Emulator emulator;

// The region that an address of the arena lies in, also a former one; n_bytes is 0 if there is none.
static inline const Region *region_at(uint64_t address) {
    return &emulator.regions[emulator.region_of[(address - emulator.global.base) / LINE_BYTES]];
}

// Every function of the API begins with API_ENTER: one caller at a time, and not from a host function of a stream.
void emulator_enter(void);
static inline void emulator_leave(int *unused) {
    (void)unused;
    pthread_mutex_unlock(&emulator.lock);
}
#define API_ENTER                                                         \
    __attribute__((cleanup(emulator_leave), unused)) int api_entered = 0; \
    emulator_enter()

#endif
