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

#define CELL_TIME_AND_FLAGS ((Cell)0xfffff003)  // what does not matter for "the same thread"

static void *reserve(size_t n_bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) fail("the emulator can't reserve %zu bytes of address space", n_bytes);
    return memory;
}

void shadow_create(Shadow *shadow, const char *name, uint64_t base, size_t n_bytes, size_t reserved, bool with_data) {
    reserved = size_round_up(reserved, PAGE_BYTES);
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

static inline uint32_t page_shift(const Shadow *shadow, size_t offset) { return 2u - shadow->shift[offset / PAGE_BYTES]; }

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
        snprintf(text, n_text, "byte %llu of the block's %s shared memory (%llu bytes)",
                 (unsigned long long)(offset - begin), is_dynamic ? "dynamic" : "static",
                 (unsigned long long)(is_dynamic ? block->launch->dynamic_shared : block->function->static_shared_bytes));
    }
}

__attribute__((noreturn)) static void fault_state(const Shadow *shadow, const Access *access, uint32_t lane, int state) {
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
    snprintf(text, n_text, "%s%s%s", who, mode == READ_BLOCKS ? "" : is_own ? " of the same block" : " of another block",
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
              between_streams ? "streams" : between_blocks ? "blocks" : "threads",
              access->kind == ACCESS_READ ? "read" : access->kind == ACCESS_WRITE ? "write" : "atomic", place,
              is_reader ? "read" : cell_flags(cell) & CELL_ATOMIC ? "changed by an atomic" : "written", other,
              between_streams ? "" : ", without a barrier or fence between");
}

// ---------------------------------------------------------------------------------------------------------------
// One lane

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

static void note_lane(Shadow *shadow, const Access *access, uint32_t lane, uint32_t lanes) {
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

static void access_scattered(Shadow *shadow, const Access *access) {
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        check_state(shadow, access, lane);
        note_lane(shadow, access, lane, 1u << lane);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Consecutive lanes in one pass

static bool is_state_good(const uint8_t *state, size_t n, bool is_write) {
    uint8_t bad = 0;
    if (is_write) {
        for (size_t i = 0; i < n; i++) bad |= (uint8_t)(~state[i] & 1);
    } else {
        for (size_t i = 0; i < n; i++) bad |= (uint8_t)(state[i] ^ VALID);
    }
    return bad == 0;
}

// What the one-pass check knows without asking: cells below `stale`, those of the block below `safe`, and own ones.
typedef struct Limits {
    Cell stale, block, safe, own, range, launch;
    uint32_t lane_shift;  // log2 of the cells of a lane
} Limits;

static inline Cell own_cell(const Limits *limits, size_t i) { return limits->own + (Cell)(i >> limits->lane_shift << 2); }

static inline bool is_known(const Limits *limits, Cell cell, Cell own) {
    bool is_same = ((cell ^ own) & ~(Cell)CELL_TIME_AND_FLAGS) == 0 && (cell & 3) == 0;
    return cell < limits->stale || (cell >= limits->block && cell < limits->safe) || is_same;
}

static bool are_writers_known(const Limits *limits, const Cell *writer, size_t n) {
    int bad = 0;
    for (size_t i = 0; i < n; i++) bad |= !is_known(limits, writer[i], own_cell(limits, i));
    return !bad;
}

// Readers that a write may forget.
static bool are_readers_known(const Limits *limits, const Cell *reader, size_t n) {
    return are_writers_known(limits, reader, n);
}

static bool are_readers_mergeable(const Limits *limits, const Cell *reader, size_t n) {
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_kept = reader[i] == limits->range || (reader[i] >= limits->launch && (reader[i] & 3) == READ_BLOCKS);
        bad |= !(is_kept || is_known(limits, reader[i], own_cell(limits, i)));
    }
    return !bad;
}

static void merge_readers(const Limits *limits, Cell *reader, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool is_kept = reader[i] == limits->range || (reader[i] >= limits->launch && (reader[i] & 3) == READ_BLOCKS);
        reader[i] = is_kept ? reader[i] : own_cell(limits, i);
    }
}

static Limits limits_of(const Shadow *shadow, const Access *access, uint32_t first_lane) {
    const Order *order = &emulator.block->order;
    uint32_t warp = access->warp->index;
    Limits limits;
    limits.block = cell_of(order->serial, 0, 0, 0, 0);
    limits.stale = shadow == &emulator.shared ? cell_of(order->own_serial, 0, 0, 0, 0) : order->stale;
    limits.launch = shadow == &emulator.shared ? limits.block : cell_of(order->first_serial, 0, 0, 0, 0);
    limits.safe = order->safe[warp];
    limits.own = cell_of(order->serial, order->time, warp, first_lane, 0);
    limits.range = order->has_named_barriers ? -1 : cell_of(order->serial, order->time, 0, order->n_warps - 1, READ_WARPS);
    limits.lane_shift = 0;
    return limits;
}

// Lanes first, first + 1 … touch [offset, offset + n). False: look closer. The part lies within one page.
static bool access_part(Shadow *shadow, const Access *access, Limits *limits, size_t offset, size_t n) {
    uint32_t shift = shift_for(shadow, offset, access->n_bytes);
    Cell *writer = shadow->writer[shift] + (offset >> shift), *reader = shadow->reader[shift] + (offset >> shift);
    size_t n_cells = n >> shift;
    limits->lane_shift = (uint32_t)__builtin_ctz(access->n_bytes >> shift);
    if (!are_writers_known(limits, writer, n_cells)) return false;
    if (access->kind == ACCESS_READ) {
        if (!are_readers_mergeable(limits, reader, n_cells)) return false;
        merge_readers(limits, reader, n_cells);
    } else {
        if (!are_readers_known(limits, reader, n_cells)) return false;
        for (size_t i = 0; i < n_cells; i++) writer[i] = own_cell(limits, i);
        memset(shadow->state + offset, VALID, n);
    }
    return true;
}

// The parts of a page that were noted before another one needs a closer look are then noted again, which is harmless.
static void access_run(Shadow *shadow, const Access *access) {
    uint32_t first = (uint32_t)__builtin_ctz(access->mask), n_lanes = (uint32_t)__builtin_popcount(access->mask);
    size_t offset = access->address[first] - shadow->base, n = (size_t)n_lanes * access->n_bytes;
    bool is_inside = offset < shadow->n_bytes && n <= shadow->n_bytes - offset;
    if (!is_inside || !is_state_good(shadow->state + offset, n, access->kind == ACCESS_WRITE)) {
        access_scattered(shadow, access);
        return;
    }
    Limits limits = limits_of(shadow, access, first);
    while (n > 0) {
        size_t room = PAGE_BYTES - offset % PAGE_BYTES, part = n < room ? n : room;
        if (!access_part(shadow, access, &limits, offset, part)) {
            access_scattered(shadow, access);
            return;
        }
        limits.own += (Cell)(part / access->n_bytes) << 2;
        offset += part;
        n -= part;
    }
}

static void access_uniform(Shadow *shadow, const Access *access) {
    uint32_t lane = (uint32_t)__builtin_ctz(access->mask);
    check_state(shadow, access, lane);
    note_lane(shadow, access, lane, access->mask);
}

// ---------------------------------------------------------------------------------------------------------------
// An access of a warp

static Pattern pattern_of(const Access *access) {
    uint32_t mask = access->mask, first = (uint32_t)__builtin_ctz(mask), rest = mask >> first;
    const uint64_t *address = access->address;
    uint64_t base = address[first];
    uint32_t last = 31u - (uint32_t)__builtin_clz(mask);
    if (rest == 1) return PATTERN_RUN;
    uint64_t step = address[first + (uint32_t)__builtin_ctz(rest & ~1u)] - base;
    if (step == 0) {
        int differ = 0;
        for (uint32_t l = first; l <= last; l++) differ |= (mask >> l & 1) && address[l] != base;
        return differ ? PATTERN_SCATTERED : PATTERN_UNIFORM;
    }
    if ((rest & (rest + 1)) != 0 || step != access->n_bytes) return PATTERN_SCATTERED;
    int differ = 0;
    for (uint32_t l = first; l <= last; l++) differ |= address[l] - base != (uint64_t)(l - first) * access->n_bytes;
    return differ ? PATTERN_SCATTERED : PATTERN_RUN;
}

static void check_alignment(const Access *access) {
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        if (LIKELY(access->address[lane] % access->n_bytes == 0)) continue;
        warp_fail(access->warp, access->instruction, lane, "misaligned access: %u bytes at 0x%llx", access->n_bytes,
                  (unsigned long long)access->address[lane]);
    }
}

// A kernel may touch a region only if one of its arguments points into it.
static void check_region(const Access *access, uint32_t lane) {
    const Region *region = &emulator.regions[emulator.region_of[(access->address[lane] - emulator.global.base) / LINE_BYTES]];
    if (region->n_bytes == 0 || region->granted == emulator.n_launches) return;
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
        if (offset >= shadow->n_bytes || access->n_bytes > shadow->n_bytes - offset) fault_state(shadow, access, lane, RED);
    }
}

void shadow_access(Shadow *shadow, Access *access) {
    access->pattern = pattern_of(access);
    uint32_t first = (uint32_t)__builtin_ctz(access->mask);
    if (access->pattern == PATTERN_SCATTERED || access->address[first] % access->n_bytes != 0) check_alignment(access);
    if (!emulator.options.checks) {
        check_inside(shadow, access);
        return;
    }
    if (access->pattern == PATTERN_RUN && access->kind != ACCESS_ATOMIC && !access->strong) {
        access_run(shadow, access);
    } else if (access->pattern == PATTERN_UNIFORM && access->kind == ACCESS_READ) {
        access_uniform(shadow, access);
    } else {
        access_scattered(shadow, access);
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

static void touch_cell(Cell *cell, Cell mine, bool is_reader, uint64_t address, AccessKind kind, const char *what) {
    uint32_t serial = cell_serial(*cell);
    if (serial >= stream_ordered_below() && serial != cell_serial(mine) && !stream_is_ordered(serial)) {
        char other[128];
        stream_describe(serial, other, sizeof(other));
        touch_fail(address, what, "race between streams: %s of what was %s by %s in another stream, which no event orders "
                   "before", kind == ACCESS_READ ? "read" : "write", is_reader ? "read" : "written", other);
    }
}

void shadow_touch_raw(uint64_t address, size_t n_bytes, AccessKind kind, const char *what) {
    Shadow *shadow = &emulator.global;
    if (n_bytes == 0 || !emulator.options.checks) return;
    size_t begin = address - shadow->base, end = begin + n_bytes;
    Cell mine = cell_of(stream_take_serials(0), 1, 0, 0, 0), stale = cell_of(stream_ordered_below(), 0, 0, 0, 0);
    for (size_t at = begin; at < end;) {
        uint32_t size = at % 4 == 0 && end - at >= 4 ? 4 : at % 2 == 0 && end - at >= 2 ? 2 : 1;
        uint32_t shift = shift_for(shadow, at, size);
        size_t page_end = at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES, stop = end < page_end ? end : page_end;
        stop = stop >> shift << shift;
        Cell *writer = shadow->writer[shift], *reader = shadow->reader[shift];
        for (size_t c = at >> shift; c < stop >> shift; c++) {
            uint64_t place = shadow->base + (c << shift);
            if (UNLIKELY(writer[c] >= stale)) touch_cell(&writer[c], mine, false, place, kind, what);
            if (kind == ACCESS_WRITE && UNLIKELY(reader[c] >= stale)) {
                touch_cell(&reader[c], mine, true, place, kind, what);
            }
            *(kind == ACCESS_READ ? &reader[c] : &writer[c]) = mine;
        }
        at = stop;
    }
    if (kind == ACCESS_WRITE) memset(shadow->state + begin, VALID, n_bytes);
}

void shadow_touch(uint64_t address, size_t n_bytes, AccessKind kind, const char *what) {
    const Shadow *shadow = &emulator.global;
    size_t begin = address - shadow->base;
    for (size_t i = 0; i < n_bytes && emulator.options.checks; i++) {
        int state = shadow->state[begin + i];
        bool is_good = kind == ACCESS_WRITE ? state & 1 : state == VALID;
        if (UNLIKELY(!is_good)) touch_fail(address + i, what, "%s", state_name(state, kind));
    }
    shadow_touch_raw(address, n_bytes, kind, what);
}
