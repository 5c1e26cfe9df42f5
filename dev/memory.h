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
// same takes in the same order, the same peak. Beside the ledger stands a witness that it can't fool (witness.h).
//
// Only the compute queue touches the stack; other queues do in the update (update.h), between joins. A buffer of the
// host's is given back when no queue uses it any more (host_writes, host.h). After memory_reserve() nothing here
// allocates. On CUDA the device's slab is one allocation on the GPU, and the host's is pinned. The disk's slab is a
// swap file (disk.h): addresses of that tier are places in the file. On the CPU device, "device" and "host" are two
// slabs of the same RAM.
#ifndef MEMORY_H
#define MEMORY_H

#include <sys/mman.h>

#include "disk.h"
#include "random.h"
#include "witness.h"

enum { MEMORY_PAGE = DISK_SECTOR };

// A buffer on the stack.
typedef struct {
    size_t n_bytes;
    Kind kind;
    const char *owner;
} SlabEntry;

typedef struct {
    char *base;
    size_t capacity;
    size_t kept;     // bytes in use at the low end
    size_t stacked;  // bytes in use at the high end
    size_t kinds[KINDS];
    size_t depth, n_entries;  // of the stack: entries in use, and room for so many
    SlabEntry *entries;
} Slab;

typedef struct {
    Device *device;
    const Ledger *planned;  // NULL while planning
    Ledger ledger;
    Phase phase;
    bool in_phase;
    bool idle;                // what the phase took it did not use this time
    bool witnessed[PHASES];   // the witness has looked
    uint64_t trace;
    size_t step_peak[TIERS];  // since memory_step()
    Disk disk;                // behind TIER_DISK
    Slab slabs[TIERS];
} Memory;

// ---------------------------------------------------------------------------------------------------------------
// Ledger

// Bytes of a slab that are taken now.
static inline size_t memory_slab_used(const Slab *slab) { return slab->kept + slab->stacked; }

// Looks whether the tier's use is the most so far, of the phase and of the step; the ledger keeps what it was made of.
static inline void memory_note_peak(Memory *memory, Tier tier) {
    Slab *slab = &memory->slabs[tier];
    memory->step_peak[tier] = size_max(memory->step_peak[tier], memory_slab_used(slab));
    PhaseLedger *phase = &memory->ledger.phases[memory->phase];
    if (!memory->in_phase || memory_slab_used(slab) <= phase->peak[tier]) return;
    phase->peak[tier] = memory_slab_used(slab);
    memcpy(phase->kinds[tier], slab->kinds, sizeof(slab->kinds));
    phase->top[tier] = slab->depth > 0 ? slab->entries[slab->depth - 1].kind : KIND_WEIGHTS;
}

// Counts a take: in the trace, which tells one order of takes from another, and in its kind.
static inline void memory_note_take(Memory *memory, Tier tier, Kind kind, size_t n_bytes) {
    memory->trace = random_mix(memory->trace ^ ((uint64_t)n_bytes << 8 | (uint64_t)kind << 2 | (uint64_t)tier));
    memory->slabs[tier].kinds[kind] += n_bytes;
    memory_note_peak(memory, tier);
}

// Ends the program if the plan has no room for a take of n_bytes.
static inline void memory_check_room(Memory *memory, Tier tier, size_t n_bytes, const char *owner) {
    Slab *slab = &memory->slabs[tier];
    if (n_bytes <= slab->capacity - memory_slab_used(slab)) return;
    die("%s memory: %s takes %zu bytes, %zu of the planned %zu are left (phase %s). The plan and the run differ; "
        "this is a bug, please report it with the command line",
        ledger_tier_name(tier), owner, n_bytes, slab->capacity - memory_slab_used(slab), slab->capacity,
        ledger_phase_name(memory->phase));
}

// ---------------------------------------------------------------------------------------------------------------
// Takes

// A take begins, or (owner NULL) ends: who watches the device's memory is told, and a buffer of the host's that is
// given back is no longer in use by any queue, so that whoever takes it next may write at once.
static inline void memory_region(const Memory *memory, Tier tier, void *pointer, size_t n_bytes, const char *owner) {
    Device *device = memory->device;
    if (tier == TIER_HOST && !owner) host_writes(device, pointer, n_bytes);
    if (tier == TIER_DEVICE) device_region(device, pointer, n_bytes, owner);
}

// Memory for the whole run. `owner` is a literal, for messages. Sizes are rounded up to `align` bytes, MEMORY_ALIGN or
// MEMORY_PAGE, and the place to a multiple of it from the slab's beginning.
static inline void *memory_keep_aligned(Memory *memory, Tier tier, Kind kind, size_t n_bytes, size_t align,
                                        const char *owner) {
    Slab *slab = &memory->slabs[tier];
    size_t padding = size_round_up(slab->kept, align) - slab->kept;
    n_bytes = size_round_up(n_bytes, align);
    memory_check_room(memory, tier, padding + n_bytes, owner);
    void *pointer = slab->base + slab->kept + padding;
    slab->kept += padding + n_bytes;
    memory_note_take(memory, tier, kind, padding + n_bytes);
    memory_region(memory, tier, pointer, n_bytes, owner);
    return pointer;
}

// memory_keep_aligned() at multiples of MEMORY_ALIGN: memory for the whole run.
static inline void *memory_keep(Memory *memory, Tier tier, Kind kind, size_t n_bytes, const char *owner) {
    return memory_keep_aligned(memory, tier, kind, n_bytes, MEMORY_ALIGN, owner);
}

// Room for so many buffers on the stack.
static inline void memory_open_entries(Slab *slab, size_t n_entries) {
    slab->n_entries = n_entries;
    slab->entries = (SlabEntry *)realloc(slab->entries, size_max(n_entries, 1) * sizeof(SlabEntry));
    if (!slab->entries) die("out of memory at the start");
}

// One more buffer than there is room for: a plan makes room, a run has what its plan said.
static inline void memory_deepen(Memory *memory, Tier tier, const char *owner) {
    Slab *slab = &memory->slabs[tier];
    if (memory->planned) {
        die("%s memory: %s is buffer %zu on the stack, the plan has %zu (phase %s). This is a bug, please report it "
            "with the command line", ledger_tier_name(tier), owner, slab->depth + 1, slab->n_entries,
            ledger_phase_name(memory->phase));
    }
    memory_open_entries(slab, 2 * slab->n_entries + 64);
}

// Memory on top of the stack, until memory_release() to a mark taken before.
static inline void *memory_push_aligned(Memory *memory, Tier tier, Kind kind, size_t n_bytes, size_t align,
                                        const char *owner) {
    Slab *slab = &memory->slabs[tier];
    n_bytes = size_round_up(slab->stacked + n_bytes, align) - slab->stacked;
    memory_check_room(memory, tier, n_bytes, owner);
    if (slab->depth == slab->n_entries) memory_deepen(memory, tier, owner);
    slab->entries[slab->depth].n_bytes = n_bytes;
    slab->entries[slab->depth].kind = kind;
    slab->entries[slab->depth].owner = owner;
    slab->depth++;
    memory->ledger.depth[tier] = size_max(memory->ledger.depth[tier], slab->depth);
    slab->stacked += n_bytes;
    memory_note_take(memory, tier, kind, n_bytes);
    void *pointer = slab->base + slab->capacity - slab->stacked;
    memory_region(memory, tier, pointer, n_bytes, owner);
    return pointer;
}

// memory_push_aligned() at multiples of MEMORY_ALIGN: memory until memory_release().
static inline void *memory_push(Memory *memory, Tier tier, Kind kind, size_t n_bytes, const char *owner) {
    return memory_push_aligned(memory, tier, kind, n_bytes, MEMORY_ALIGN, owner);
}

// The top of a tier's stack, for memory_release().
static inline size_t memory_mark(const Memory *memory, Tier tier) { return memory->slabs[tier].depth; }

// Gives back all that was pushed since the mark.
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

// A memory that only counts: addresses are given out but nothing is behind them. To be closed.
static inline void memory_open_plan(Memory *memory, Device *device) {
    memset(memory, 0, sizeof(*memory));
    memory->device = device;
    for (int t = 0; t < TIERS; t++) {
        memory->slabs[t].capacity = (size_t)1 << 50;
        memory->slabs[t].base = (char *)((uintptr_t)1 << 56 | (uintptr_t)t << 52);  // no such address: a touch faults
    }
}

// A tier's slab is memory of a GPU.
static inline bool memory_on_gpu(const Memory *memory, Tier tier) {
    return tier == TIER_DEVICE && memory->device->real == DEVICE_CUDA;
}

// A tier's memory from the system, n_bytes; ends the program if there is not so much.
static inline void *memory_reserve_slab(const Memory *memory, Tier tier, size_t n_bytes) {
    if (memory_on_gpu(memory, tier)) {
        void *base = NULL;
        CUDA_ONLY(CUDA_CHECK(cudaMalloc(&base, n_bytes)));
        return base;
    }
    void *base = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        die("can't reserve %zu bytes of %s memory: %s. Take a smaller -b or -t, or a higher -r", n_bytes,
            ledger_tier_name(tier), error_text());
    }
    return base;
}

// Reserves exactly what `plan` needs, to whole pages, and touches all of it (poison), so that nothing can be missing
// later. swap_directory: for the disk's tier, if the plan has one; rank: names its file. To be closed.
static inline void memory_reserve(Memory *memory, Device *device, const Ledger *plan, const char *swap_directory,
                                  int rank) {
    memset(memory, 0, sizeof(*memory));
    memory->device = device;
    memory->planned = plan;
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        memory_open_entries(slab, plan->depth[t]);
        slab->capacity = size_round_up(ledger_peak(plan, (Tier)t), MEMORY_PAGE);
        if (slab->capacity == 0) continue;
        if (t == TIER_DISK) {
            slab->base = (char *)(uintptr_t)MEMORY_PAGE;  // place 0 in the file; never touched
            disk_open(&memory->disk, swap_directory, slab->capacity, rank);
            continue;
        }
        slab->base = (char *)memory_reserve_slab(memory, (Tier)t, slab->capacity);
        witness_poison(device, memory_on_gpu(memory, (Tier)t), slab->base, slab->capacity);
        if (t == TIER_HOST) host_memory(device, slab->base, slab->capacity);
    }
}

// Gives everything back, once no queue uses it any more.
static inline void memory_close(Memory *memory) {
    if (memory->planned) device_wait_for_queues(memory->device);
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        free(slab->entries);
        if (slab->capacity == 0 || !memory->planned) continue;
        if (t == TIER_DISK) {
            disk_close(&memory->disk);
        } else if (memory_on_gpu(memory, (Tier)t)) {
            CUDA_ONLY(CUDA_CHECK(cudaFree(slab->base)));
        } else {
            if (t == TIER_HOST) host_memory(memory->device, NULL, 0);
            munmap(slab->base, slab->capacity);
        }
    }
    memset(memory, 0, sizeof(*memory));
}

// ---------------------------------------------------------------------------------------------------------------
// Phases

// A phase begins: from here on takes are counted as its own, until memory_end().
static inline void memory_begin(Memory *memory, Phase phase) {
    memory->phase = phase;
    memory->in_phase = true;
    memory->trace = 0;
    memory->idle = false;
    const bool first = !memory->witnessed[phase];
    for (int t = 0; t < TIERS; t++) {
        Slab *slab = &memory->slabs[t];
        memory_note_peak(memory, (Tier)t);
        if (memory->planned && first && t != TIER_DISK) {
            witness_poison(memory->device, memory_on_gpu(memory, (Tier)t), slab->base + slab->kept,
                           slab->capacity - memory_slab_used(slab));
        }
    }
}

// Ends the phase; in a real run, dies unless it took what was planned.
static inline void memory_end(Memory *memory) {
    PhaseLedger *phase = &memory->ledger.phases[memory->phase];
    if (memory->planned) {
        const PhaseLedger *plan = &memory->planned->phases[memory->phase];
        for (int t = 0; t < TIERS; t++) {
            if (phase->peak[t] != plan->peak[t]) {
                die("%s memory, phase %s: planned %zu bytes, took %zu. This is a bug, please report it with the "
                    "command line", ledger_tier_name(t), ledger_phase_name(memory->phase), plan->peak[t],
                    phase->peak[t]);
            }
            const Slab *slab = &memory->slabs[t];
            if (t == TIER_DISK || memory->witnessed[memory->phase] || memory->idle) continue;
            witness_check(memory->device, memory_on_gpu(memory, (Tier)t), slab->base + slab->kept,
                          slab->capacity - memory_slab_used(slab), slab->capacity, (Tier)t, memory->phase, phase);
        }
        if (!memory->idle) memory->witnessed[memory->phase] = true;
        if (memory->trace != plan->trace) {
            die("phase %s took other buffers than planned. This is a bug, please report it with the command line",
                ledger_phase_name(memory->phase));
        }
    } else if (phase->occurred && phase->trace != memory->trace) {
        die("phase %s takes other buffers the second time. This is a bug, please report it with the command line",
            ledger_phase_name(memory->phase));
    }
    phase->trace = memory->trace;
    phase->occurred = true;
    memory->in_phase = false;
}

// The phase has taken what it takes and did not use it, as there was nothing to do: the witness looks another time.
static inline void memory_idle(Memory *memory) { memory->idle = true; }

// Ends a phase that was cut short, without comparing it with the plan.
static inline void memory_abandon(Memory *memory) {
    PhaseLedger *phase = &memory->ledger.phases[memory->phase];
    if (!phase->occurred) memset(phase, 0, sizeof(*phase));
    memory->in_phase = false;
}

// A new step: peaks since here are the step's own.
static inline void memory_step(Memory *memory) {
    for (int t = 0; t < TIERS; t++) memory->step_peak[t] = memory_slab_used(&memory->slabs[t]);
}

#endif
