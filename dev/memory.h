// memory.h - every byte the program takes for its work, by tier, kind and phase.
//
// One slab per tier, reserved once, with two ends:
//
//     base                                                              base + capacity
//     | weights | gradients | moments | ...  >      free      <  ... | scratch | layer 1 | layer 0 |
//     `------------- kept: whole run ------'                   `-------- stack: within a step -----'
//
// A planning pass runs everything the program will do once on the PLAN device, with slabs that have no memory behind
// them; the ledger it leaves (peak of each phase, and which kinds make it up) is the plan, and its highest peak is
// what the real run reserves. The real run keeps a ledger of its own and, at the end of every phase, compares: the
// same takes in the same order, the same peak. Beside the ledger stands a witness that it can't fool: in a phase's
// first occurrence the free middle is filled with poison before, and afterwards nothing may be found touched beyond
// the ledger's peak, and the touched top must lie within MEMORY_ALIGN bytes of it (unless the top is a workspace: how
// much of that is used is a library's affair, or depends on how threads share the work).
//
// Only the compute queue touches the stack; other queues do in the update (update.h), between joins. Where the host is
// not the compute queue (CUDA), no join holds it: before it writes, or gives back, bytes of its own slab that a queue
// may still use, it waits for that queue. After memory_reserve() nothing here allocates. On CUDA the device's slab is
// one allocation on the GPU, and the host's is pinned; the emulator of the tests (EMULATED) is told of every take and
// then watches over each buffer itself, so there it stands in for the witness. The disk's slab is a swap file (disk.h):
// addresses of that tier are places in the file. On the CPU device, "device" and "host" are two slabs of the same RAM.
#ifndef MEMORY_H
#define MEMORY_H

#include <sys/mman.h>

#include "device.h"
#include "disk.h"
#ifdef EMULATED
#include "emulator.h"
#endif

typedef enum { TIER_DEVICE, TIER_HOST, TIER_DISK, TIERS } Tier;

typedef enum {
    KIND_WEIGHTS,               // in the compute type, what forward and backward read
    KIND_MASTER,                // fp32 weights, where the compute type is shorter
    KIND_GRADIENTS,             // of weights, fp32
    KIND_MOMENTS,               // AdamW's m and v, fp32
    KIND_ACTIVATIONS,           // what the forward leaves for the backward
    KIND_ACTIVATION_GRADIENTS,  // what flows back
    KIND_LOGITS,
    KIND_SCRATCH,               // within one layer or one operation
    KIND_WORKSPACE,             // of products of matrices: a library's scratchpad, or our packing buffers
    KIND_COLLECTIVE,            // pieces of gradients from other ranks
    KIND_DATA,                  // tokens and their positions, targets, losses
    KIND_FILES,                 // buffers of checkpoints on their way to and from the disk
    KINDS
} Kind;

typedef enum {
    PHASE_SETUP,
    PHASE_FORWARD,
    PHASE_HEAD,  // final LayerNorm and classifier, forward and backward
    PHASE_BACKWARD,
    PHASE_UPDATE,
    PHASE_VALIDATION,
    PHASE_SAMPLE,
    PHASE_SAVE,
    PHASES
} Phase;

static const char *const TIER_NAMES[TIERS] = {"device", "host", "disk"};
static const char *const KIND_NAMES[KINDS] = {"weights",  "master weights", "gradients", "moments",
                                              "activations", "activation gradients", "logits", "scratch",
                                              "workspace", "collectives",    "data",      "files"};
static const char *const PHASE_NAMES[PHASES] = {"setup",  "forward",    "head",   "backward",
                                                "update", "validation", "sample", "save"};

enum { MEMORY_ALIGN = 64, MEMORY_PAGE = DISK_SECTOR, MEMORY_DEPTH = 1 << 15, MEMORY_BOUNCE = 4 << 20 };
#define MEMORY_POISON 0x7ff5a3c97fa5c5e3ull  // NaN as fp64, fp32 and bf16, and unlikely as anything else

// What one phase takes. `kinds` is the state at the moment when the tier peaks, so its rows add up to the peak.
typedef struct {
    bool occurred;
    uint64_t trace;  // hash of all takes in order, of one occurrence
    size_t peak[TIERS];
    size_t kinds[TIERS][KINDS];
    Kind top[TIERS];  // kind of the topmost entry of the stack at the peak
} PhaseLedger;

typedef struct {
    PhaseLedger phases[PHASES];
} Ledger;

typedef struct {
    char *base;
    size_t capacity;
    size_t kept;     // bytes in use at the low end
    size_t stacked;  // bytes in use at the high end
    size_t kinds[KINDS];
    size_t depth;
    struct {
        size_t n_bytes;
        Kind kind;
        const char *owner;
    } entries[MEMORY_DEPTH];
} Slab;

typedef struct {
    Device *device;
    const Ledger *plan;  // NULL while planning
    Ledger ledger;
    Phase phase;
    bool in_phase;
    uint64_t trace;
    size_t step_peak[TIERS];  // since memory_step()
    Disk disk;                // behind TIER_DISK
    struct {
        char *data[2];  // on the host, for bytes between a GPU and the disk
        DeviceEvent *filled[2], *drained[2], *reached;
        size_t n_pieces;
    } bounce[QUEUES];
    Slab slabs[TIERS];
} Memory;

// ---------------------------------------------------------------------------------------------------------------
// Ledger

static inline size_t ledger_peak(const Ledger *ledger, Tier tier) {
    size_t peak = 0;
    for (int p = 0; p < PHASES; p++) peak = size_max(peak, ledger->phases[p].peak[tier]);
    return peak;
}

static inline Phase ledger_peak_phase(const Ledger *ledger, Tier tier) {
    int best = 0;
    for (int p = 1; p < PHASES; p++) {
        if (ledger->phases[p].peak[tier] > ledger->phases[best].peak[tier]) best = p;
    }
    return (Phase)best;
}

static inline size_t slab_used(const Slab *slab) { return slab->kept + slab->stacked; }

static inline void memory_note_peak(Memory *memory, Tier tier) {
    Slab *slab = &memory->slabs[tier];
    memory->step_peak[tier] = size_max(memory->step_peak[tier], slab_used(slab));
    PhaseLedger *phase = &memory->ledger.phases[memory->phase];
    if (!memory->in_phase || slab_used(slab) <= phase->peak[tier]) return;
    phase->peak[tier] = slab_used(slab);
    memcpy(phase->kinds[tier], slab->kinds, sizeof(slab->kinds));
    phase->top[tier] = slab->depth > 0 ? slab->entries[slab->depth - 1].kind : KIND_WEIGHTS;
}

static inline void memory_note_take(Memory *memory, Tier tier, Kind kind, size_t n_bytes) {
    memory->trace = random_mix(memory->trace ^ ((uint64_t)n_bytes << 8 | (uint64_t)kind << 2 | (uint64_t)tier));
    memory->slabs[tier].kinds[kind] += n_bytes;
    memory_note_peak(memory, tier);
}

static inline void memory_check_room(Memory *memory, Tier tier, size_t n_bytes, const char *owner) {
    Slab *slab = &memory->slabs[tier];
    if (n_bytes <= slab->capacity - slab_used(slab)) return;
    die("%s memory: %s takes %zu bytes, %zu of the planned %zu are left (phase %s). The plan and the run differ; "
        "this is a bug, please report it with the command line",
        TIER_NAMES[tier], owner, n_bytes, slab->capacity - slab_used(slab), slab->capacity,
        PHASE_NAMES[memory->phase]);
}

// ---------------------------------------------------------------------------------------------------------------
// Takes

// Tells the emulator of the tests that bytes of the host's slab are read or written by the next call on a queue, or, if
// that is QUEUES, by the host itself now. It ends the run if the host has not waited for what the queues do with them.
static inline void memory_watch(const Memory *memory, Queue queue, const void *pointer, size_t n_bytes, bool write) {
#ifdef EMULATED
    if (memory->device->kind != DEVICE_CUDA || n_bytes == 0) return;
    if (queue == QUEUES) (write ? emulator_host_writes : emulator_host_reads)(pointer, n_bytes);
    else (write ? emulator_call_writes : emulator_call_reads)(memory->device->cuda->queues[queue], pointer, n_bytes);
#else
    (void)memory;
    (void)queue;
    (void)pointer;
    (void)n_bytes;
    (void)write;
#endif
}

// Tells the emulator of the tests which bytes of the slab are a buffer of their own (a take), or no longer. A buffer of
// the host's that is given back belongs to whoever takes it next, who may write at once.
static inline void memory_region(const Memory *memory, Tier tier, void *pointer, size_t n_bytes, const char *owner) {
    if (tier == TIER_HOST && !owner) memory_watch(memory, QUEUES, pointer, n_bytes, true);
#ifdef EMULATED
    if (tier != TIER_DEVICE || memory->device->kind != DEVICE_CUDA || n_bytes == 0) return;
    if (owner) emulator_region(pointer, n_bytes, owner, memory->device->cuda->queues[QUEUE_COMPUTE]);
    else emulator_region_end(pointer, memory->device->cuda->queues[QUEUE_COMPUTE]);
#else
    (void)memory;
    (void)tier;
    (void)pointer;
    (void)n_bytes;
    (void)owner;
#endif
}

// Memory for the whole run. `owner` is a literal, for messages. Sizes are rounded up to `align` bytes, MEMORY_ALIGN or
// MEMORY_PAGE, and the place to a multiple of it from the slab's beginning.
static inline void *memory_keep_aligned(Memory *memory, Tier tier, Kind kind, size_t n_bytes, size_t align,
                                        const char *owner) {
    Slab *slab = &memory->slabs[tier];
    size_t padding = round_up(slab->kept, align) - slab->kept;
    n_bytes = round_up(n_bytes, align);
    memory_check_room(memory, tier, padding + n_bytes, owner);
    void *pointer = slab->base + slab->kept + padding;
    slab->kept += padding + n_bytes;
    memory_note_take(memory, tier, kind, padding + n_bytes);
    memory_region(memory, tier, pointer, n_bytes, owner);
    return pointer;
}

static inline void *memory_keep(Memory *memory, Tier tier, Kind kind, size_t n_bytes, const char *owner) {
    return memory_keep_aligned(memory, tier, kind, n_bytes, MEMORY_ALIGN, owner);
}

// Memory on top of the stack, until memory_release() to a mark taken before.
static inline void *memory_push_aligned(Memory *memory, Tier tier, Kind kind, size_t n_bytes, size_t align,
                                        const char *owner) {
    Slab *slab = &memory->slabs[tier];
    n_bytes = round_up(slab->stacked + n_bytes, align) - slab->stacked;
    memory_check_room(memory, tier, n_bytes, owner);
    if (slab->depth == MEMORY_DEPTH) die("more than %d buffers on the stack; use fewer layers", MEMORY_DEPTH);
    slab->entries[slab->depth].n_bytes = n_bytes;
    slab->entries[slab->depth].kind = kind;
    slab->entries[slab->depth].owner = owner;
    slab->depth++;
    slab->stacked += n_bytes;
    memory_note_take(memory, tier, kind, n_bytes);
    void *pointer = slab->base + slab->capacity - slab->stacked;
    memory_region(memory, tier, pointer, n_bytes, owner);
    return pointer;
}

static inline void *memory_push(Memory *memory, Tier tier, Kind kind, size_t n_bytes, const char *owner) {
    return memory_push_aligned(memory, tier, kind, n_bytes, MEMORY_ALIGN, owner);
}

static inline size_t memory_mark(const Memory *memory, Tier tier) { return memory->slabs[tier].depth; }

static inline void memory_release(Memory *memory, Tier tier, size_t mark) {
    Slab *slab = &memory->slabs[tier];
    while (slab->depth > mark) {
        slab->depth--;
        memory_region(memory, tier, slab->base + slab->capacity - slab->stacked, slab->entries[slab->depth].n_bytes,
                      NULL);
        slab->stacked -= slab->entries[slab->depth].n_bytes;
        slab->kinds[slab->entries[slab->depth].kind] -= slab->entries[slab->depth].n_bytes;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Planning and reserving

// A memory that only counts: addresses are given out but nothing is behind them.
static inline void memory_plan(Memory *memory, Device *device) {
    memset(memory, 0, offsetof(Memory, slabs));
    memory->device = device;
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        memset(slab, 0, offsetof(Slab, entries));
        slab->capacity = (size_t)1 << 50;
        slab->base = (char *)((uintptr_t)1 << 56 | (uintptr_t)t << 52);  // no such address: a touch would fault
    }
}

// A tier's slab is memory of a GPU.
static inline bool memory_on_gpu(const Memory *memory, Tier tier) {
    return tier == TIER_DEVICE && memory->device->real == DEVICE_CUDA;
}

#ifdef __CUDACC__
__global__ static void memory_poison_kernel(uint64_t *words, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) words[i] = MEMORY_POISON;
}

// *first = index of the first word without poison, if there is one.
__global__ static void memory_untouched_kernel(unsigned long long *first, const uint64_t *words, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        if (words[i] == MEMORY_POISON) continue;
        atomicMin(first, (unsigned long long)i);
        return;
    }
}

static inline size_t memory_untouched_cuda(Device *device, const char *from, size_t n_bytes) {
    const size_t n = n_bytes / sizeof(uint64_t);
    unsigned long long first = n;
    device_upload(device, device->cuda->word, &first, sizeof(first));
    CUDA_RUN(device, memory_untouched_kernel, size_min(cuda_blocks(n), 4096), CUDA_THREADS, 0, device->cuda->word,
             (const uint64_t *)(const void *)from, n);
    device_download(device, &first, device->cuda->word, sizeof(first));
    return (size_t)first * sizeof(uint64_t);
}
#endif

static inline void memory_poison(const Memory *memory, Tier tier, char *from, size_t n_bytes) {
    uint64_t *words = (uint64_t *)(void *)from;
    int64_t n = (int64_t)(n_bytes / sizeof(uint64_t));
    if (memory_on_gpu(memory, tier)) {
#ifndef EMULATED
        CUDA_ONLY(CUDA_RUN(memory->device, memory_poison_kernel, size_min(cuda_blocks((size_t)n), 4096), CUDA_THREADS,
                           0, words, (size_t)n));
#endif
        return;
    }
    memory_watch(memory, QUEUES, from, n_bytes, true);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) words[i] = MEMORY_POISON;
}

// Bytes from `from` that still hold poison, at most n_bytes.
static inline size_t memory_untouched(const Memory *memory, Tier tier, const char *from, size_t n_bytes) {
    const uint64_t *words = (const uint64_t *)(const void *)from;
    size_t n = n_bytes / sizeof(uint64_t), i = 0;
#ifdef __CUDACC__
    if (memory_on_gpu(memory, tier)) return memory_untouched_cuda(memory->device, from, n_bytes);
#else
    (void)tier;
#endif
    memory_watch(memory, QUEUES, from, n_bytes, false);
    while (i < n && words[i] == MEMORY_POISON) i++;
    return i * sizeof(uint64_t);
}

static inline void *memory_reserve_slab(const Memory *memory, Tier tier, size_t n_bytes) {
    if (memory_on_gpu(memory, tier)) {
        void *base = NULL;
        CUDA_ONLY(CUDA_CHECK(cudaMalloc(&base, n_bytes)));
        return base;
    }
    void *base = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        die("can't reserve %zu bytes of %s memory: %s. Take a smaller -b or -t, or a higher -r", n_bytes,
            TIER_NAMES[tier], error_text());
    }
    return base;
}

// Reserves exactly what `plan` needs, to whole pages, and touches all of it (poison), so that nothing can be missing
// later. swap_directory: for the disk's tier, if the plan has one; rank: names its file.
static inline void memory_reserve(Memory *memory, Device *device, const Ledger *plan, const char *swap_directory,
                                  int rank) {
    memset(memory, 0, offsetof(Memory, slabs));
    memory->device = device;
    memory->plan = plan;
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        memset(slab, 0, offsetof(Slab, entries));
        slab->capacity = round_up(ledger_peak(plan, (Tier)t), MEMORY_PAGE);
        if (slab->capacity == 0) continue;
        if (t == TIER_DISK) {
            slab->base = (char *)(uintptr_t)MEMORY_PAGE;  // place 0 in the file; never touched
            disk_open(&memory->disk, swap_directory, slab->capacity, rank);
            continue;
        }
        slab->base = (char *)memory_reserve_slab(memory, (Tier)t, slab->capacity);
        memory_poison(memory, (Tier)t, slab->base, slab->capacity);
        if (t == TIER_HOST && device->real == DEVICE_CUDA) {  // touched by all threads, then pinned once
            CUDA_ONLY(CUDA_CHECK(cudaHostRegister(slab->base, slab->capacity, cudaHostRegisterDefault)));
        }
    }
}

static inline void memory_unreserve(Memory *memory) {
    device_wait(memory->device);  // an update may still be on its way home; the last join holds the compute queue
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        if (slab->capacity == 0) continue;
        if (t == TIER_DISK) {
            disk_close(&memory->disk);
            continue;
        }
        if (memory_on_gpu(memory, (Tier)t)) {
            CUDA_ONLY(CUDA_CHECK(cudaFree(slab->base)));
            continue;
        }
        if (t == TIER_HOST && memory->device->real == DEVICE_CUDA) {
            CUDA_ONLY(CUDA_CHECK(cudaHostUnregister(slab->base)));
        }
        munmap(slab->base, slab->capacity);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Bytes on their way from tier to tier

typedef struct {
    Disk *disk;
    char *memory;
    size_t offset, n_bytes;
} DiskCall;

static inline void memory_call_read(void *argument) {
    const DiskCall *c = (const DiskCall *)argument;
    disk_read(c->disk, c->memory, c->offset, c->n_bytes);
}

static inline void memory_call_write(void *argument) {
    const DiskCall *c = (const DiskCall *)argument;
    disk_write(c->disk, c->memory, c->offset, c->n_bytes);
}

static inline void memory_disk(Memory *memory, Queue queue, char *to, const void *place, size_t n_bytes, bool write) {
    DiskCall call;
    memset(&call, 0, sizeof(call));
    call.disk = &memory->disk;
    call.memory = to;
    call.offset = (size_t)((const char *)place - memory->slabs[TIER_DISK].base);
    call.n_bytes = n_bytes;
    if (memory->device->kind == DEVICE_PLAN) {
        if (write) memory->disk.n_written += n_bytes;
        else memory->disk.n_read += n_bytes;
        return;
    }
    memory_watch(memory, queue, to, n_bytes, !write);
    device_call(memory->device, queue, write ? memory_call_write : memory_call_read, &call, sizeof(call));
}

// The buffers for transfers between a GPU and the disk, two for each queue that may ask for them; kept.
static inline void memory_open_bounce(Memory *memory) {
    memset(memory->bounce, 0, sizeof(memory->bounce));
    for (int q = QUEUE_FETCH; q <= QUEUE_COLLECTIVE && memory->device->real == DEVICE_CUDA; q++) {
        for (int i = 0; i < 2; i++) {
            memory->bounce[q].data[i] = (char *)memory_keep_aligned(memory, TIER_HOST, KIND_FILES, MEMORY_BOUNCE,
                                                                    MEMORY_PAGE, "between the disk and the device");
            memory->bounce[q].filled[i] = device_event(memory->device);
            memory->bounce[q].drained[i] = device_event(memory->device);
        }
        memory->bounce[q].reached = device_event(memory->device);
    }
}

// A GPU's bytes from or to the disk, on a queue: in pieces through two buffers, so that the disk has one while the bus
// has the other. The disk's side has a queue of its own, which begins no sooner than `queue` would.
//
//     READ      | piece 0 -> a | piece 1 -> b | piece 2 -> a | ...         `queue`  | a -> GPU | b -> GPU | ...
static inline void memory_bounce(Memory *memory, Queue queue, char *on_device, const char *place, size_t n_bytes,
                                 bool write) {
    Device *device = memory->device;
    const Queue first = write ? queue : QUEUE_READ, second = write ? QUEUE_WRITE : queue;
    if (!write) {
        device_record(device, queue, memory->bounce[queue].reached);
        device_await(device, QUEUE_READ, memory->bounce[queue].reached);
    }
    for (size_t at = 0, n; at < n_bytes; at += n) {
        size_t i = memory->bounce[queue].n_pieces++ % 2;
        char *buffer = memory->bounce[queue].data[i];
        n = size_min(MEMORY_BOUNCE, n_bytes - at);
        device_await(device, first, memory->bounce[queue].drained[i]);
        if (write) device_copy(device, queue, buffer, on_device + at, n);
        else memory_disk(memory, QUEUE_READ, buffer, place + at, n, false);
        device_record(device, first, memory->bounce[queue].filled[i]);
        device_await(device, second, memory->bounce[queue].filled[i]);
        if (write) memory_disk(memory, QUEUE_WRITE, buffer, place + at, n, true);
        else device_copy(device, queue, on_device + at, buffer, n);
        device_record(device, second, memory->bounce[queue].drained[i]);
    }
    if (!write || n_bytes == 0) return;
    device_record(device, QUEUE_WRITE, memory->bounce[queue].reached);
    device_await(device, queue, memory->bounce[queue].reached);  // what follows on `queue` finds it written
}

// n_bytes from one place to another, on a queue. Places on the disk, and those that are exchanged with it, are
// multiples of MEMORY_PAGE.
static inline void memory_transfer(Memory *memory, Queue queue, Tier to_tier, void *to, Tier from_tier,
                                   const void *from, size_t n_bytes) {
    bool write = to_tier == TIER_DISK;
    if (!write && from_tier != TIER_DISK) {
        device_copy(memory->device, queue, to, from, n_bytes);
        return;
    }
    char *other = (char *)(uintptr_t)(write ? from : to);
    const char *place = (const char *)(write ? to : from);
    if (memory_on_gpu(memory, write ? from_tier : to_tier)) {
        memory_bounce(memory, queue, other, place, n_bytes, write);
    } else {
        memory_disk(memory, queue, other, place, n_bytes, write);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Phases

static inline void memory_begin(Memory *memory, Phase phase) {
    memory->phase = phase;
    memory->in_phase = true;
    memory->trace = 0;
    bool first = !memory->ledger.phases[phase].occurred;
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        memory_note_peak(memory, (Tier)t);
        if (memory->plan && first && t != TIER_DISK) {
            memory_poison(memory, (Tier)t, slab->base + slab->kept, slab->capacity - slab_used(slab));
        }
    }
}

// The witness: how far the stack's region was really touched, against the ledger.
static inline void memory_check_witness(const Memory *memory, Tier tier) {
    const Slab *slab = &memory->slabs[tier];
    const PhaseLedger *phase = &memory->ledger.phases[memory->phase];
#ifdef EMULATED
    if (memory_on_gpu(memory, tier)) return;
#endif
    size_t untouched = memory_untouched(memory, tier, slab->base + slab->kept, slab->capacity - slab_used(slab));
    size_t touched = slab->capacity - untouched;
    if (touched > phase->peak[tier] ||
        (touched + MEMORY_ALIGN < phase->peak[tier] && phase->top[tier] != KIND_WORKSPACE)) {
        die("%s memory, phase %s: the ledger says %zu bytes, %zu were really touched. This is a bug, please report "
            "it with the command line", TIER_NAMES[tier], PHASE_NAMES[memory->phase], phase->peak[tier], touched);
    }
}

// Ends the phase; in a real run, dies unless it took what was planned.
static inline void memory_end(Memory *memory) {
    PhaseLedger *phase = &memory->ledger.phases[memory->phase];
    if (memory->plan) {
        const PhaseLedger *plan = &memory->plan->phases[memory->phase];
        for (int t = 0; t < TIERS; t++) {
            if (phase->peak[t] != plan->peak[t]) {
                die("%s memory, phase %s: planned %zu bytes, took %zu. This is a bug, please report it with the "
                    "command line", TIER_NAMES[t], PHASE_NAMES[memory->phase], plan->peak[t], phase->peak[t]);
            }
            if (!phase->occurred && t != TIER_DISK) memory_check_witness(memory, (Tier)t);
        }
        if (memory->trace != plan->trace) {
            die("phase %s took other buffers than planned. This is a bug, please report it with the command line",
                PHASE_NAMES[memory->phase]);
        }
    } else if (phase->occurred && phase->trace != memory->trace) {
        die("phase %s takes other buffers the second time. This is a bug, please report it with the command line",
            PHASE_NAMES[memory->phase]);
    }
    phase->trace = memory->trace;
    phase->occurred = true;
    memory->in_phase = false;
}

// Ends a phase that was cut short, without comparing it with the plan.
static inline void memory_abandon(Memory *memory) {
    PhaseLedger *phase = &memory->ledger.phases[memory->phase];
    if (!phase->occurred) memset(phase, 0, sizeof(*phase));
    memory->in_phase = false;
}

// A new step: peaks since here are the step's own.
static inline void memory_step(Memory *memory) {
    for (int t = 0; t < TIERS; t++) memory->step_peak[t] = slab_used(&memory->slabs[t]);
}

#endif
