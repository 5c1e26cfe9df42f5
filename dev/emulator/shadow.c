// shadow.c - two notes for each byte of device memory: its state, and who touched it last.
//
// A cell of the writer's and the reader's note covers 4 bytes of a page until an access of 1 or 2 bytes comes to the
// page; then the page's cells are split, so that neighbours are never taken for each other.
//
// An access of a warp is checked in one pass where its lanes touch one place or consecutive places, and nothing is
// suspicious; otherwise lane by lane, which also finds who is to blame. Both note the same cells.
//
// Invariant: a byte may be read only if its state is VALID, and touched only in an order that order.h can prove.
#include <stdarg.h>
#include <sys/mman.h>

#include "ptx.h"

static void *reserve(size_t n_bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) fail("the emulator can't reserve %zu bytes of address space", n_bytes);
    madvise(memory, n_bytes, MADV_NOHUGEPAGE);  // most of it is never touched
    return memory;
}

void shadow_create(Shadow *shadow, const char *name, uint64_t base, size_t n_bytes, size_t reserved, bool with_data) {
    reserved = round_up(reserved, PAGE_BYTES);
    *shadow = (Shadow){.name = name, .base = base, .n_bytes = n_bytes};
    if (with_data) shadow->data = reserve(reserved);
    shadow->state = reserve(reserved + 4096);
    shadow->shift = reserve(reserved / PAGE_BYTES);  // 0 stands for a shift of 2: see page_shift()
    for (int s = 0; s < 3; s++) {
        shadow->writer[s] = reserve((reserved >> s) * sizeof(Cell));
        shadow->reader[s] = reserve((reserved >> s) * sizeof(Cell));
    }
}

void shadow_set_state(Shadow *shadow, uint64_t address, size_t n_bytes, int state) {
    memset(shadow->state + (address - shadow->base), state, n_bytes);
}

// ---------------------------------------------------------------------------------------------------------------
// Pages

static inline uint32_t page_shift(const Shadow *shadow, size_t offset) {
    return 2u - shadow->shift[offset / PAGE_BYTES];
}

// Splits the cells of a page so that each covers at most 1 << shift bytes.
static void page_refine(Shadow *shadow, size_t offset, uint32_t shift) {
    uint32_t old = page_shift(shadow, offset);
    if (old <= shift) return;
    size_t first = offset / PAGE_BYTES * PAGE_BYTES;
    for (size_t i = 0; i < (size_t)PAGE_BYTES >> shift; i++) {
        size_t from = (first >> old) + (i << shift >> old), to = (first >> shift) + i;
        shadow->writer[shift][to] = shadow->writer[old][from];
        shadow->reader[shift][to] = shadow->reader[old][from];
    }
    shadow->shift[offset / PAGE_BYTES] = (uint8_t)(2 - shift);
}

// The shift for accesses of so many bytes at this offset; they don't cross a page.
static inline uint32_t shift_for(Shadow *shadow, size_t offset, uint32_t n_bytes) {
    uint32_t wanted = n_bytes >= 4 ? 2 : n_bytes == 2 ? 1 : 0;
    if (UNLIKELY(page_shift(shadow, offset) > wanted)) page_refine(shadow, offset, wanted);
    return page_shift(shadow, offset);
}

// ---------------------------------------------------------------------------------------------------------------
// Faults

static const char *state_name(int state, AccessKind kind) {
    if (state == FREED) return "use after free";
    if (state == OUTSIDE) return "access outside of every region";
    if (state == RED) return kind == ACCESS_READ ? "out-of-bounds read" : "out-of-bounds write";
    if (state == PENDING) return "read before cp.async.wait";
    return "uninitialised read";
}

static void describe_place(const Shadow *shadow, uint64_t address, char *text, size_t n_text) {
    const Block *block = emulator.block;
    if (shadow == &emulator.global) {
        memory_describe(address, text, n_text);
    } else {
        uint64_t offset = address - shadow->base;
        bool is_dynamic = block && offset >= block->dynamic_shared_at && block->launch->dynamic_shared > 0;
        uint64_t begin = is_dynamic ? block->dynamic_shared_at : 0;
        snprintf(
            text, n_text, "byte %llu of the block's %s shared memory (%llu bytes)",
            (unsigned long long)(offset - begin), is_dynamic ? "dynamic" : "static",
            (unsigned long long)(is_dynamic ? block->launch->dynamic_shared : block->function->static_shared_bytes));
    }
}

__attribute__((noreturn)) static void fault_state(const Shadow *shadow, const Access *access, uint32_t lane,
                                                  int state) {
    char place[256];
    uint64_t address = access->address[lane];
    for (uint32_t b = 0; b < access->n_bytes && address - shadow->base + b < shadow->n_bytes; b++) {
        int s = shadow->state[address - shadow->base + b];
        if (s != state) continue;
        describe_place(shadow, address + b, place, sizeof(place));
        break;
    }
    if (address - shadow->base >= shadow->n_bytes) describe_place(shadow, address, place, sizeof(place));
    warp_fail(access->warp, access->instruction, lane, "%s: %u bytes at 0x%llx: %s", state_name(state, access->kind),
              access->n_bytes, (unsigned long long)address, place);
}

static void describe_cell(const Order *order, Cell cell, bool is_reader, char *text, size_t n_text) {
    uint32_t serial = cell_serial(cell), warp = cell_warp(cell), lane = cell_lane(cell);
    if (serial < order->first_serial) {
        char operation[128];
        stream_describe(serial, operation, sizeof(operation));
        snprintf(text, n_text, "%s in another stream, which no event orders before this launch", operation);
        return;
    }
    uint32_t mode = is_reader ? cell_flags(cell) : READ_LANE;
    char who[96];
    if (mode == READ_LANE) snprintf(who, sizeof(who), "thread %u", warp * LANES + lane);
    if (mode == READ_WARP) snprintf(who, sizeof(who), "threads of warp %u", warp);
    if (mode == READ_WARPS) snprintf(who, sizeof(who), "threads of warps %u to %u", warp, lane);
    if (mode == READ_BLOCKS) snprintf(who, sizeof(who), "several blocks");
    bool is_own = serial >= order->own_serial;
    snprintf(text, n_text, "%s%s%s", who,
             mode == READ_BLOCKS ? ""
             : is_own            ? " of the same block"
                                 : " of another block",
             is_own ? "" : " of this launch");
}

__attribute__((noreturn)) static void fault_race(const Shadow *shadow, const Access *access, uint32_t lane, Cell cell,
                                                 bool is_reader, uint64_t address) {
    const Order *order = &emulator.block->order;
    char place[256], other[256];
    describe_place(shadow, address, place, sizeof(place));
    describe_cell(order, cell, is_reader, other, sizeof(other));
    bool between_streams = cell_serial(cell) < order->first_serial;
    bool between_blocks = cell_serial(cell) < order->own_serial || (is_reader && cell_flags(cell) == READ_BLOCKS);
    warp_fail(access->warp, access->instruction, lane, "race between %s: %s of %s, which was %s by %s%s",
              between_streams  ? "streams"
              : between_blocks ? "blocks"
                               : "threads",
              access->kind == ACCESS_READ    ? "read"
              : access->kind == ACCESS_WRITE ? "write"
                                             : "atomic",
              place,
              is_reader                        ? "read"
              : cell_flags(cell) & CELL_ATOMIC ? "changed by an atomic"
                                               : "written",
              other, between_streams ? "" : ", without a barrier or fence between");
}

__attribute__((noreturn)) static void fault_read_only(const Shadow *shadow, const Access *access, uint32_t lane,
                                                      uint64_t address) {
    char place[256];
    describe_place(shadow, address, place, sizeof(place));
    warp_fail(access->warp, access->instruction, lane,
              "read-only load (ld.global.nc, const __restrict__) of what the same launch has written: %s", place);
}

// ---------------------------------------------------------------------------------------------------------------
// The exact check of one lane, or of lanes at one place

static inline Cell without_other_blocks(const Shadow *shadow, const Order *order, Cell cell) {
    // Shared memory begins anew with each block.
    return shadow == &emulator.shared && cell_serial(cell) < order->own_serial ? 0 : cell;
}

static void check_state(const Shadow *shadow, const Access *access, uint32_t lane) {
    size_t offset = access->address[lane] - shadow->base;
    if (UNLIKELY(offset >= shadow->n_bytes)) fault_state(shadow, access, lane, RED);
    for (uint32_t b = 0; b < access->n_bytes; b++) {
        int state = offset + b < shadow->n_bytes ? shadow->state[offset + b] : RED;
        bool is_good = access->kind == ACCESS_WRITE ? state & 1 : state == VALID;
        if (UNLIKELY(!is_good)) fault_state(shadow, access, lane, state);
    }
}

static void note_lanes(Shadow *shadow, const Access *access, uint32_t lane, uint32_t lanes) {
    const Order *order = &emulator.block->order;
    uint32_t warp = access->warp->index;
    size_t offset = access->address[lane] - shadow->base;
    uint32_t shift = shift_for(shadow, offset, access->n_bytes);
    bool is_atomic = access->kind == ACCESS_ATOMIC;
    Cell *writer = shadow->writer[shift] + (offset >> shift), *reader = shadow->reader[shift] + (offset >> shift);
    Cell own = cell_of(order->serial, order->time, warp, lane, is_atomic ? CELL_ATOMIC : 0);
    for (uint32_t c = 0; c < access->n_bytes >> shift; c++) {
        Cell w = without_other_blocks(shadow, order, writer[c]);
        bool both_strong = (is_atomic || access->strong) && (cell_flags(w) & CELL_ATOMIC);
        for (uint32_t l = lane; l < LANES && !both_strong; l++) {
            if (!(lanes >> l & 1) || order_is_writer_before(order, w, warp, l)) continue;
            fault_race(shadow, access, l, w, false, access->address[l] + ((uint64_t)c << shift));
        }
        if (UNLIKELY(access->read_only && cell_serial(w) >= order->first_serial)) {
            fault_read_only(shadow, access, lane, access->address[lane] + ((uint64_t)c << shift));
        }
        Cell r = without_other_blocks(shadow, order, reader[c]);
        if (access->kind == ACCESS_READ) {
            if (!access->strong) reader[c] = order_merge_read(order, r, warp, lanes);
            continue;
        }
        if (!order_is_reader_before(order, r, warp, lane)) {
            fault_race(shadow, access, lane, r, true, access->address[lane] + ((uint64_t)c << shift));
        }
        writer[c] = access->strong ? own | CELL_ATOMIC : own;
    }
    if (access->kind == ACCESS_WRITE) memset(shadow->state + offset, VALID, access->n_bytes);
}

// ---------------------------------------------------------------------------------------------------------------
// The same in one pass where nothing is suspicious. False: ask the exact check.

// What can be told of a cell without asking order.c. `merges`: the kernel has neither named barriers nor __syncwarp of
// some lanes, so that it doesn't matter which lanes of a warp, or which warps, have read.
typedef struct Limits {
    Cell stale, launch, block, safe;  // below stale, or from block up to safe: ordered before
    Cell warp_safe;                   // of the warp itself, below this: ordered before
    Cell own;                         // by lane 0, now
    Cell by_warp, by_warps, by_blocks;
    bool merges;
} Limits;

static Limits limits_of(const Shadow *shadow, const Access *access) {
    const Order *order = &emulator.block->order;
    uint32_t warp = access->warp->index, serial = order->serial, time = order->time;
    bool is_shared = shadow == &emulator.shared;
    Cell block = cell_of(order->own_serial, 0, 0, 0, 0);
    return (Limits){
        .stale = is_shared ? block : order->stale,
        .launch = is_shared ? block : cell_of(order->first_serial, 0, 0, 0, 0),
        .block = block,
        .safe = access->read_only ? block : order->safe[warp],
        .warp_safe = access->read_only ? block : cell_of(serial, order->known[warp][warp] + 1, 0, 0, 0),
        .own = cell_of(serial, time, warp, 0, 0),
        .by_warp = cell_of(serial, time, warp, 1, READ_WARP),
        .by_warps = cell_of(serial, time, 0, order->n_warps - 1, READ_WARPS),
        .by_blocks = cell_of(serial, time, 0, 0, READ_BLOCKS),
        .merges = order->is_whole,
    };
}

// Keeps a loop over the few cells of a lane from becoming vector code, whose set-up costs more than the loop.
#define FEW_CELLS() __asm__ volatile("")

// Conditions as masks of all bits, so that loops over cells become vector code.
#define MASK(condition) ((condition) ? (Cell)-1 : (Cell)0)

static inline Cell mask_ordered(const Limits *limits, Cell cell) {
    return MASK(cell < limits->stale) | (MASK(cell >= limits->block) & MASK(cell < limits->safe));
}

// By this lane, or by lanes of this warp before it synchronised.
static inline Cell mask_own_warp(const Limits *limits, Cell cell, Cell own) {
    Cell same_warp = MASK(((cell ^ own) & ~(Cell)0xfffff07f) == 0) & MASK((cell & 3) < READ_WARPS);
    Cell same_lane = MASK(((cell ^ own) & 0x7f) == 0);
    return same_warp & (same_lane | MASK(cell < limits->warp_safe));
}

static inline Cell mask_known(const Limits *limits, Cell cell, Cell own) {
    return mask_ordered(limits, cell) | mask_own_warp(limits, cell, own);
}

// The reader's cell after a read, where reads merge: by one lane again, by the warp, by several warps or blocks.
static inline Cell merged_read(const Limits *limits, Cell old, Cell own) {
    Cell in_warp = MASK(((old ^ own) & (31 << 7)) == 0) & MASK((old & 3) < READ_WARPS);
    Cell kept = (limits->by_warp & in_warp) | (limits->by_warps & ~in_warp);
    Cell elsewhere = MASK(old < limits->block), blocks = MASK((old & 3) == READ_BLOCKS);
    kept = (limits->by_blocks & elsewhere) | (kept & ~elsewhere);
    kept = (old & blocks) | (kept & ~blocks);
    Cell forgotten = MASK(old < limits->launch) | mask_known(limits, old, own);
    return (own & forgotten) | (kept & ~forgotten);
}

static bool is_state_good(const uint8_t *state, size_t n, bool is_write) {
    uint8_t bad = 0;
    if (is_write) {
        for (size_t i = 0; i < n; i++) bad |= (uint8_t)(~state[i] & 1);
    } else {
        for (size_t i = 0; i < n; i++) bad |= (uint8_t)(state[i] ^ VALID);
    }
    return bad == 0;
}

// The same for the few bytes of one lane; n is a power of two up to 16.
static inline bool is_state_good_lane(const uint8_t *state, uint32_t n, bool is_write) {
    uint64_t first = 0, second = 0, want = is_write ? 0x0101010101010101ull : 0x0303030303030303ull;
    uint64_t mask = is_write ? 0x0101010101010101ull : ~(uint64_t)0;
    if (n == 4) {
        uint32_t word;
        memcpy(&word, state, 4);
        return ((word ^ (uint32_t)want) & (uint32_t)mask) == 0;
    }
    if (n < 4) return is_state_good(state, n, is_write);
    memcpy(&first, state, 8);
    memcpy(&second, state + n - 8, 8);
    return (((first ^ want) | (second ^ want)) & mask) == 0;
}

// Reads: all writers are ordered before; readers are merged on the way. Cell i is of lane i >> lane_shift.
static bool note_reads(const Limits *limits, const Cell *writer, Cell *reader, size_t n, Cell own,
                       uint32_t lane_shift) {
    Limits local = *limits;
    Cell bad = 0;
    for (size_t i = 0; i < n; i++) {
        Cell mine = own + (Cell)(i >> lane_shift << 2);
        bad |= ~mask_known(&local, writer[i], mine);
        reader[i] = merged_read(&local, reader[i], mine);
    }
    return bad == 0;
}

// Writes: all writers and readers are ordered before; writers are replaced on the way.
static bool note_writes(const Limits *limits, Cell *writer, const Cell *reader, size_t n, Cell own,
                        uint32_t lane_shift) {
    Limits local = *limits;
    Cell bad = 0;
    for (size_t i = 0; i < n; i++) {
        Cell mine = own + (Cell)(i >> lane_shift << 2);
        bad |= ~mask_known(&local, writer[i], mine);
        bad |= ~mask_known(&local, reader[i], mine);
    }
    if (bad != 0) return false;
    for (size_t i = 0; i < n; i++) writer[i] = own + (Cell)(i >> lane_shift << 2);
    return true;
}

// Lanes from `own` on touch [offset, offset + n), consecutive pieces of n_bytes, within one page.
static bool note_part(Shadow *shadow, const Access *access, const Limits *limits, size_t offset, size_t n, Cell own) {
    uint32_t shift = shift_for(shadow, offset, access->n_bytes),
             lane_shift = (uint32_t)__builtin_ctz(access->n_bytes >> shift);
    Cell *writer = shadow->writer[shift] + (offset >> shift), *reader = shadow->reader[shift] + (offset >> shift);
    if (access->kind == ACCESS_READ) return note_reads(limits, writer, reader, n >> shift, own, lane_shift);
    if (!note_writes(limits, writer, reader, n >> shift, own, lane_shift)) return false;
    memset(shadow->state + offset, VALID, n);
    return true;
}

static bool run_is_good(Shadow *shadow, const Access *access, const Limits *limits, uint32_t mask) {
    uint32_t lane = (uint32_t)__builtin_ctz(mask);
    size_t offset = access->address[lane] - shadow->base, n = (size_t)__builtin_popcount(mask) * access->n_bytes;
    bool is_inside = offset < shadow->n_bytes && n <= shadow->n_bytes - offset;
    if (!is_inside || !is_state_good(shadow->state + offset, n, access->kind == ACCESS_WRITE)) return false;
    Cell own = limits->own + (Cell)(lane << 2);
    while (n > 0) {
        size_t room = PAGE_BYTES - offset % PAGE_BYTES, part = n < room ? n : room;
        if (!note_part(shadow, access, limits, offset, part, own)) return false;
        own += (Cell)(part / access->n_bytes) << 2;
        offset += part;
        n -= part;
    }
    return true;
}

// The same for a single cell, with branches: the common cases come first.
static inline bool is_known(const Limits *limits, Cell cell, Cell own) {
    if (LIKELY(cell < limits->stale || (uint64_t)(cell - limits->block) < (uint64_t)(limits->safe - limits->block))) {
        return true;
    }
    return mask_known(limits, cell, own) != 0;
}

static inline Cell merged_read_one(const Limits *limits, Cell old, Cell own) {
    if (old == limits->by_warps) return old;
    bool is_old = old < limits->launch || (uint64_t)(old - limits->block) < (uint64_t)(limits->safe - limits->block);
    return LIKELY(is_old) ? own : merged_read(limits, old, own);
}

__attribute__((always_inline)) static inline bool lane_is_good(Shadow *shadow, const Access *access,
                                                               const Limits *limits, uint32_t lane) {
    size_t offset = access->address[lane] - shadow->base;
    uint32_t n_bytes = access->n_bytes;
    bool is_write = access->kind == ACCESS_WRITE;
    if (offset >= shadow->n_bytes || n_bytes > shadow->n_bytes - offset) return false;
    if (!is_state_good_lane(shadow->state + offset, n_bytes, is_write)) return false;
    uint32_t shift = shift_for(shadow, offset, n_bytes), n = n_bytes >> shift;
    Cell *writer = shadow->writer[shift] + (offset >> shift), *reader = shadow->reader[shift] + (offset >> shift);
    Cell own = limits->own + (Cell)(lane << 2);
    bool good = true;
    for (uint32_t c = 0; c < n; c++) {
        FEW_CELLS();
        good &= is_known(limits, writer[c], own);
        if (is_write) {
            good &= is_known(limits, reader[c], own);
            if (good) writer[c] = own;
        } else {
            reader[c] = merged_read_one(limits, reader[c], own);
        }
    }
    if (is_write) memset(shadow->state + offset, VALID, n_bytes);
    return good;
}

// Several lanes read one place.
static bool uniform_is_good(Shadow *shadow, const Access *access, const Limits *limits, uint32_t mask) {
    size_t offset = access->address[__builtin_ctz(mask)] - shadow->base;
    if (offset >= shadow->n_bytes || access->n_bytes > shadow->n_bytes - offset) return false;
    if (!is_state_good_lane(shadow->state + offset, access->n_bytes, false)) return false;
    uint32_t shift = shift_for(shadow, offset, access->n_bytes);
    Cell *writer = shadow->writer[shift] + (offset >> shift), *reader = shadow->reader[shift] + (offset >> shift),
         good = -1;
    for (uint32_t c = 0; c < access->n_bytes >> shift; c++) {
        FEW_CELLS();
        good &= mask_ordered(limits, writer[c]);
        reader[c] = merged_read(limits, reader[c], limits->by_warp);
    }
    return good != 0;
}

// ---------------------------------------------------------------------------------------------------------------
// An access of a warp

// The same as pattern_of() for all lanes: loops of a fixed length.
static Pattern pattern_of_all(const Access *access) {
    const uint64_t *address = access->address;
    uint64_t base = address[0], step = address[1] - base, differ = 0;
    if (step != 0 && step != access->n_bytes) return PATTERN_SCATTERED;
    for (uint32_t l = 0; l < LANES; l++) differ |= address[l] ^ (base + l * step);
    return differ ? PATTERN_SCATTERED : step == 0 ? PATTERN_UNIFORM : PATTERN_RUN;
}

static Pattern pattern_of(const Access *access, uint32_t mask) {
    if (mask == ALL_LANES) return pattern_of_all(access);
    uint32_t first = (uint32_t)__builtin_ctz(mask), rest = mask >> first, last = 31u - (uint32_t)__builtin_clz(mask);
    const uint64_t *address = access->address;
    uint64_t base = address[first];
    if (rest == 1) return PATTERN_RUN;
    uint64_t step = address[first + (uint32_t)__builtin_ctz(rest & ~1u)] - base, differ = 0;
    if (step == 0) {
        for (uint32_t l = first; l <= last; l++) differ |= mask >> l & 1 ? address[l] ^ base : 0;
        return differ ? PATTERN_SCATTERED : PATTERN_UNIFORM;
    }
    if ((rest & (rest + 1)) != 0 || step != access->n_bytes) return PATTERN_SCATTERED;
    for (uint32_t l = first; l <= last; l++) differ |= address[l] ^ (base + (uint64_t)(l - first) * step);
    return differ ? PATTERN_SCATTERED : PATTERN_RUN;
}

static void check_alignment(const Access *access) {
    uint64_t low = access->n_bytes - 1, bits = 0;
    if (access->mask == ALL_LANES) {
        for (uint32_t l = 0; l < LANES; l++) bits |= access->address[l];
    } else {
        for (uint32_t l = 0; l < LANES; l++) bits |= access->mask >> l & 1 ? access->address[l] : 0;
    }
    if (LIKELY((bits & low) == 0)) return;
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        if ((access->address[lane] & low) == 0) continue;
        warp_fail(access->warp, access->instruction, lane, "misaligned access: %u bytes at 0x%llx", access->n_bytes,
                  (unsigned long long)access->address[lane]);
    }
}

// A kernel may touch a region only if one of its arguments points into it, and the region began before the launch.
static void check_region(const Access *access, uint32_t lane) {
    const Region *region = region_at(access->address[lane]);
    if (region->n_bytes == 0) return;
    if (region->serial >= stream_ordered_below() && !stream_is_ordered(region->serial)) {
        warp_fail(access->warp, access->instruction, lane,
                  "race between streams: region '%s' began (emulator_region) in another stream, which no event orders "
                  "before this launch",
                  region->name);
    }
    if (region->granted == emulator.n_launches) return;
    char place[256];
    memory_describe(access->address[lane], place, sizeof(place));
    warp_fail(access->warp, access->instruction, lane,
              "access to a region that no argument of the kernel points into: %u bytes at 0x%llx: %s", access->n_bytes,
              (unsigned long long)access->address[lane], place);
}

static void check_inside(const Shadow *shadow, const Access *access) {
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        size_t offset = access->address[lane] - shadow->base;
        if (offset >= shadow->n_bytes || access->n_bytes > shadow->n_bytes - offset) {
            fault_state(shadow, access, lane, RED);
        }
    }
}

// Lanes whose addresses have this pattern. What was noted in one pass before it stopped is noted again, harmlessly.
static void access_lanes(Shadow *shadow, const Access *access, const Limits *limits, Pattern pattern, uint32_t mask) {
    bool is_plain =
        access->kind != ACCESS_ATOMIC && !access->strong && (limits->merges || access->kind == ACCESS_WRITE);
    if (pattern == PATTERN_UNIFORM && access->kind == ACCESS_READ && (mask & (mask - 1)) != 0) {
        if (is_plain && uniform_is_good(shadow, access, limits, mask)) return;
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        check_state(shadow, access, lane);
        note_lanes(shadow, access, lane, mask);
        return;
    }
    if (pattern == PATTERN_RUN && is_plain && run_is_good(shadow, access, limits, mask)) return;
    const Limits local = *limits;  // stays in registers
    for (; mask != 0; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        if (is_plain && lane_is_good(shadow, access, &local, lane)) continue;
        check_state(shadow, access, lane);
        note_lanes(shadow, access, lane, 1u << lane);
    }
}

// Rows of a tile: halves or quarters of a warp often have a pattern where the whole has none.
static void access_split(Shadow *shadow, const Access *access, const Limits *limits, uint32_t first, uint32_t n) {
    uint32_t mask = access->mask & (n == 32 ? ALL_LANES : ((1u << n) - 1) << first);
    if (mask == 0) return;
    Pattern pattern = n == 32 ? PATTERN_SCATTERED : pattern_of(access, mask);
    if (pattern != PATTERN_SCATTERED || n == 8) {
        access_lanes(shadow, access, limits, pattern, mask);
    } else {
        access_split(shadow, access, limits, first, n / 2);
        access_split(shadow, access, limits, first + n / 2, n / 2);
    }
}

void shadow_access(Shadow *shadow, Access *access) {
    access->pattern = pattern_of(access, access->mask);
    uint32_t first = (uint32_t)__builtin_ctz(access->mask);
    if (access->pattern == PATTERN_SCATTERED || access->address[first] % access->n_bytes != 0) check_alignment(access);
    if (!emulator.options.checks) {
        check_inside(shadow, access);
        return;
    }
    Limits limits = limits_of(shadow, access);
    if (access->pattern == PATTERN_SCATTERED) {
        access_split(shadow, access, &limits, 0, LANES);
    } else {
        access_lanes(shadow, access, &limits, access->pattern, access->mask);
    }
    if (shadow != &emulator.global || emulator.n_regions <= 1) return;
    if (access->pattern != PATTERN_SCATTERED) {
        check_region(access, first);
        check_region(access, 31u - (uint32_t)__builtin_clz(access->mask));
    } else {
        for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
            check_region(access, (uint32_t)__builtin_ctz(lanes));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// An operation of a stream

__attribute__((format(printf, 3, 4), noreturn)) static void touch_fail(uint64_t address, const char *what,
                                                                       const char *format, ...) {
    char text[256], place[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    memory_describe(address, place, sizeof(place));
    fail("%s: %s: %s\n  in %s", text, what, place, stream_current_name());
}

static void touch_cell(Cell cell, bool is_reader, uint64_t address, AccessKind kind, const char *what) {
    uint32_t serial = cell_serial(cell);
    if (serial < stream_ordered_below() || serial == stream_take_serials(0) || stream_is_ordered(serial)) return;
    char other[128];
    stream_describe(serial, other, sizeof(other));
    touch_fail(address, what,
               "race between streams: %s of what was %s by %s in another stream, which no event orders before",
               kind == ACCESS_READ ? "read" : "write", is_reader ? "read" : "written", other);
}

// The cells of a part of a page: no unordered operation has touched them.
static void check_part(const Shadow *shadow, size_t begin, size_t end, uint32_t shift, AccessKind kind,
                       const char *what) {
    const Cell *writer = shadow->writer[shift], *reader = shadow->reader[shift];
    Cell stale = cell_of(stream_ordered_below(), 0, 0, 0, 0), newest = 0;
    for (size_t c = begin >> shift; c < end >> shift; c++) newest = writer[c] > newest ? writer[c] : newest;
    for (size_t c = begin >> shift; c < end >> shift && kind == ACCESS_WRITE; c++) {
        newest = reader[c] > newest ? reader[c] : newest;
    }
    for (size_t c = begin >> shift; c < end >> shift && newest >= stale; c++) {
        uint64_t place = shadow->base + (c << shift);
        touch_cell(writer[c], false, place, kind, what);
        if (kind == ACCESS_WRITE) touch_cell(reader[c], true, place, kind, what);
    }
}

// Checks a range, and notes the operation unless it takes a whole region: the region knows when it began.
static void touch_range(uint64_t address, size_t n_bytes, AccessKind kind, const char *what, bool notes) {
    Shadow *shadow = &emulator.global;
    size_t begin = address - shadow->base, end = begin + n_bytes;
    Cell mine = cell_of(stream_take_serials(0), 1, 0, 0, 0);
    for (size_t address = begin; address < end;) {
        uint32_t size = address % 4 == 0 && end - address >= 4 ? 4 : address % 2 == 0 && end - address >= 2 ? 2 : 1;
        uint32_t shift = shift_for(shadow, address, size);
        size_t page_end = address / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES, stop = end < page_end ? end : page_end;
        stop = stop >> shift << shift;
        check_part(shadow, address, stop, shift, kind, what);
        Cell *noted = kind == ACCESS_READ ? shadow->reader[shift] : shadow->writer[shift];
        for (size_t c = address >> shift; c < stop >> shift && notes; c++) noted[c] = mine;
        address = stop;
    }
}

void shadow_take(uint64_t address, size_t n_bytes, const char *what) {
    bool has_unordered = stream_ordered_below() < stream_take_serials(0);
    if (emulator.options.checks && has_unordered) touch_range(address, n_bytes, ACCESS_WRITE, what, false);
}

bool shadow_is_all(uint64_t address, size_t n_bytes, int state) {
    const uint8_t *states = emulator.global.state + (address - emulator.global.base);
    uint8_t differ = 0;
    for (size_t i = 0; i < n_bytes; i++) differ |= (uint8_t)(states[i] ^ state);
    return differ == 0;
}

void shadow_touch(uint64_t address, size_t n_bytes, AccessKind kind, const char *what) {
    const Shadow *shadow = &emulator.global;
    size_t begin = address - shadow->base;
    bool is_good = !emulator.options.checks || is_state_good(shadow->state + begin, n_bytes, kind == ACCESS_WRITE);
    for (size_t i = 0; i < n_bytes && !is_good; i++) {
        int state = shadow->state[begin + i];
        if (kind == ACCESS_WRITE ? state & 1 : state == VALID) continue;
        touch_fail(address + i, what, "%s", state_name(state, kind));
    }
    if (n_bytes == 0 || !emulator.options.checks) return;
    const Region *region = region_at(address);
    if (region->live && region->serial >= stream_ordered_below() && !stream_is_ordered(region->serial)) {
        touch_fail(address, what,
                   "race between streams: region '%s' began (emulator_region) in another stream, which no event orders "
                   "before",
                   region->name);
    }
    touch_range(address, n_bytes, kind, what, true);
    if (kind == ACCESS_WRITE) memset(emulator.global.state + begin, VALID, n_bytes);
}
