// ptx_memory.c - loads, stores, atomics, cp.async, ldmatrix: addresses of 32 lanes, their check, and the bytes.
//
// Invariant: no byte of device memory is read or written by a kernel before shadow_access() has agreed.
#include <stdarg.h>

#include "numbers.h"
#include "ptx.h"

// ---------------------------------------------------------------------------------------------------------------
// Addresses

static void lane_addresses(const Warp *warp, const Instruction *i, int32_t base, bool is_wide, int64_t immediate,
                           uint64_t *address) {
    uint64_t window = i->space == SPACE_SHARED ? SHARED_WINDOW : i->space == SPACE_LOCAL ? LOCAL_WINDOW : 0;
    uint64_t mask = window ? UINT32_MAX : ~(uint64_t)0;
    if (is_wide) {
        const uint64_t *lanes = warp_register(warp, base);
        for (int l = 0; l < LANES; l++) address[l] = window + ((lanes[l] + (uint64_t)immediate) & mask);
    } else {
        const uint32_t *lanes = warp_register(warp, base);
        for (int l = 0; l < LANES; l++) address[l] = window + (uint32_t)(lanes[l] + (uint32_t)immediate);
    }
}

static bool is_in_window(uint64_t address, uint64_t window) { return address - window < WINDOW_BYTES; }

// The lanes whose addresses are in shared and in local memory; the rest is global.
static void split_lanes(const Instruction *i, const uint64_t *address, uint32_t mask, uint32_t *shared,
                        uint32_t *local) {
    *shared = i->space == SPACE_SHARED ? mask : 0;
    *local = i->space == SPACE_LOCAL ? mask : 0;
    if (i->space != SPACE_GENERIC) return;
    for (int l = 0; l < LANES; l++) {
        *shared |= (uint32_t)is_in_window(address[l], SHARED_WINDOW) << l;
        *local |= (uint32_t)is_in_window(address[l], LOCAL_WINDOW) << l;
    }
    *shared &= mask;
    *local &= mask;
}

void memory_convert_address(Warp *warp, const Instruction *i, uint32_t mask) {
    uint64_t window = i->space == SPACE_SHARED ? SHARED_WINDOW : i->space == SPACE_LOCAL ? LOCAL_WINDOW : 0;
    if (i->d_bytes != 8) window = 0;
    uint64_t result[LANES];
    if (i->d_bytes == 8) {
        const uint64_t *a = warp_register(warp, i->s[0]);
        for (int l = 0; l < LANES; l++) result[l] = i->flag ? a[l] - window : a[l] + window;
        lanes_blend(warp_register(warp, i->d), result, mask, 8);
    } else {
        lanes_blend(warp_register(warp, i->d), warp_register(warp, i->s[0]), mask, 4);
    }
}

// Local memory is the thread's own: bounds and initialisation only.
static char *local_place(const Warp *warp, const Instruction *i, uint32_t lane, uint64_t address, uint32_t n_bytes,
                         AccessKind kind) {
    uint32_t offset = (uint32_t)(address - LOCAL_WINDOW), size = emulator.block->function->local_bytes;
    if (offset + (uint64_t)n_bytes > size) {
        warp_fail(warp, i, lane, "out-of-bounds %s: %u bytes at byte %u of the thread's local memory (%u bytes)",
                  kind == ACCESS_READ ? "read" : "write", n_bytes, offset, size);
    }
    if (offset % n_bytes != 0 && !i->flag) {
        warp_fail(warp, i, lane, "misaligned access: %u bytes of local memory", n_bytes);
    }
    uint8_t *state = warp->local_state + (size_t)lane * size + offset;
    for (uint32_t b = 0; b < n_bytes; b++) {
        if (kind == ACCESS_READ && state[b] != VALID && !i->flag && emulator.options.checks) {
            warp_fail(warp, i, lane, "uninitialised read: byte %u of the thread's local memory", offset + b);
        }
        if (kind != ACCESS_READ) state[b] = VALID;
    }
    return warp->local + (size_t)lane * size + offset;
}

// ---------------------------------------------------------------------------------------------------------------
// Loads and stores

// A number of 1, 2, 4 or 8 bytes.
static inline uint64_t bytes_get(const char *from, size_t n_bytes) {
    uint64_t value = 0;
    switch (n_bytes) {
    case 1: memcpy(&value, from, 1); break;
    case 2: memcpy(&value, from, 2); break;
    case 4: memcpy(&value, from, 4); break;
    default: memcpy(&value, from, 8);
    }
    return value;
}
static inline void bytes_set(char *to, uint64_t value, size_t n_bytes) {
    switch (n_bytes) {
    case 1: memcpy(to, &value, 1); break;
    case 2: memcpy(to, &value, 2); break;
    case 4: memcpy(to, &value, 4); break;
    default: memcpy(to, &value, 8);
    }
}

static void load_lane(const Warp *warp, const Instruction *i, uint32_t lane, const char *data) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    size_t element = i->element;
    bool is_signed = i->type >= TYPE_S8 && i->type <= TYPE_S64;
    for (int j = 0; j < i->n_vector; j++) {
        if (operands[j] == NOWHERE) continue;
        uint64_t value = bytes_get(data + (size_t)j * element, element);
        if (is_signed) value = (uint64_t)((int64_t)(value << (64 - 8 * element)) >> (64 - 8 * element));
        bytes_set((char *)warp_register(warp, operands[j]) + lane * i->d_bytes, value, i->d_bytes);
    }
}

static void store_lane(const Warp *warp, const Instruction *i, uint32_t lane, char *data) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    size_t element = i->element;
    for (int j = 0; j < i->n_vector; j++) {
        uint64_t value = bytes_get((char *)warp_register(warp, operands[j]) + lane * i->d_bytes, i->d_bytes);
        bytes_set(data + (size_t)j * element, value, element);
    }
}

// All lanes, elements as wide as the registers.
#define MOVE_ALL(T)                                                                                   \
    for (int j = 0; j < i->n_vector; j++) {                                                           \
        T *lanes = warp_register(warp, operands[j]);                                                  \
        const uint64_t *address = access->address;                                                    \
        char *part = data + (size_t)j * sizeof(T);                                                    \
        size_t step = i->n_vector;                                                                    \
        if (access->pattern == PATTERN_RUN && is_load) {                                              \
            T *from = (T *)(void *)(part + (address[0] - base));                                      \
            if (step == 1) {                                                                          \
                memcpy(lanes, from, LANES * sizeof(T));                                               \
            } else {                                                                                  \
                for (int l = 0; l < LANES; l++) lanes[l] = from[(size_t)l * step];                    \
            }                                                                                         \
        } else if (access->pattern == PATTERN_RUN) {                                                  \
            T *to = (T *)(void *)(part + (address[0] - base));                                        \
            for (int l = 0; l < LANES; l++) to[(size_t)l * step] = lanes[l];                          \
        } else if (is_load) {                                                                         \
            for (int l = 0; l < LANES; l++) memcpy(&lanes[l], part + (address[l] - base), sizeof(T)); \
        } else {                                                                                      \
            for (int l = 0; l < LANES; l++) memcpy(part + (address[l] - base), &lanes[l], sizeof(T)); \
        }                                                                                             \
    }

static void move_all(const Warp *warp, const Instruction *i, const Access *access, const Shadow *shadow, bool is_load) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    char *data = shadow->data;
    uint64_t base = shadow->base;
    if (i->d_bytes == 2) MOVE_ALL(uint16_t)
    if (i->d_bytes == 4) MOVE_ALL(uint32_t)
    if (i->d_bytes == 8) MOVE_ALL(uint64_t)
}

static void move_lanes(Warp *warp, const Instruction *i, Access *access, Shadow *shadow, bool is_load) {
    shadow_access(shadow, access);
    const int32_t *operands = emulator.block->function->operands + i->operands;
    bool is_plain = i->d_bytes == i->element && access->mask == ALL_LANES;
    for (int j = 0; j < i->n_vector && i->n_vector > 1; j++) is_plain &= operands[j] != NOWHERE;
    if (LIKELY(is_plain)) {
        move_all(warp, i, access, shadow, is_load);
        return;
    }
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        char *data = shadow_data(shadow, access->address[lane]);
        if (is_load) {
            load_lane(warp, i, lane, data);
        } else {
            store_lane(warp, i, lane, data);
        }
    }
}

static void check_arena(const Access *access) {
    uint64_t base = emulator.global.base, size = emulator.arena_bytes, bits = 0;  // the size is a power of two
    if (LIKELY(access->mask == ALL_LANES)) {
        for (uint32_t l = 0; l < LANES; l++) bits |= access->address[l] - base;
    } else {
        for (uint32_t l = 0; l < LANES; l++) bits |= access->mask >> l & 1 ? access->address[l] - base : 0;
    }
    if (LIKELY(bits < size)) return;
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        if (access->address[lane] - base < size) continue;
        char place[256];
        memory_describe(access->address[lane], place, sizeof(place));
        warp_fail(access->warp, access->instruction, lane, "access to host memory: %u bytes at 0x%llx: %s",
                  access->n_bytes, (unsigned long long)access->address[lane], place);
    }
}

static void load_or_store(Warp *warp, const Instruction *i, uint32_t mask, bool is_load) {
    Access access;  // not cleared: most of it are addresses
    access.warp = warp;
    access.instruction = i;
    access.kind = is_load ? ACCESS_READ : ACCESS_WRITE;
    access.strong = i->is_strong;
    access.read_only = i->is_read_only;
    access.n_bytes = (uint32_t)i->element * i->n_vector;
    lane_addresses(warp, i, i->s[0], i->is_wide, i->immediate, access.address);
    uint32_t shared, local;
    split_lanes(i, access.address, mask, &shared, &local);
    if ((access.mask = mask & ~shared & ~local)) {
        check_arena(&access);
        move_lanes(warp, i, &access, &emulator.global, is_load);
    }
    if ((access.mask = shared)) move_lanes(warp, i, &access, &emulator.shared, is_load);
    for (; local != 0; local &= local - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(local);
        char *data = local_place(warp, i, lane, access.address[lane], access.n_bytes, access.kind);
        if (is_load) {
            load_lane(warp, i, lane, data);
        } else {
            store_lane(warp, i, lane, data);
        }
    }
}

void memory_load(Warp *warp, const Instruction *i, uint32_t mask) { load_or_store(warp, i, mask, true); }
void memory_store(Warp *warp, const Instruction *i, uint32_t mask) { load_or_store(warp, i, mask, false); }

// Parameters are nearly always at an address that all lanes share.
void memory_load_parameter(Warp *warp, const Instruction *i, uint32_t mask) {
    const Launch *launch = emulator.block->launch;
    const int32_t *operands = emulator.block->function->operands + i->operands;
    uint64_t address[LANES], differ = 0;
    lane_addresses(warp, i, i->s[0], i->is_wide, i->immediate, address);
    for (int l = 0; l < LANES; l++) differ |= address[l] ^ address[0];
    size_t n_bytes = (size_t)i->element * i->n_vector;
    if (differ == 0 && mask == ALL_LANES && i->element == i->d_bytes &&
        address[0] + n_bytes <= launch->function->parameter_bytes) {
        for (int j = 0; j < i->n_vector; j++) {
            uint64_t value = bytes_get(launch->parameters + address[0] + (size_t)j * i->element, i->element);
            if (operands[j] != NOWHERE) lanes_fill(warp_register(warp, operands[j]), value, i->d_bytes);
        }
        return;
    }
    for (; mask != 0; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        if (address[lane] + n_bytes > launch->function->parameter_bytes) {
            warp_fail(warp, i, lane, "out-of-bounds read of the kernel's parameters");
        }
        load_lane(warp, i, lane, launch->parameters + address[lane]);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Atomics

static uint64_t atomic_integer(const Instruction *i, uint64_t old, uint64_t b, uint64_t c) {
    bool is_signed = i->type == TYPE_S32 || i->type == TYPE_S64;
    if (i->type == TYPE_S32) old = (uint64_t)(int32_t)old, b = (uint64_t)(int32_t)b;
    bool is_less = is_signed ? (int64_t)b < (int64_t)old : b < old;
    switch (i->mode) {
    case ATOMIC_ADD: return old + b;
    case ATOMIC_MIN: return is_less ? b : old;
    case ATOMIC_MAX: return is_less ? old : b;
    case ATOMIC_INC: return old >= b ? 0 : old + 1;
    case ATOMIC_DEC: return old == 0 || old > b ? b : old - 1;
    case ATOMIC_AND: return old & b;
    case ATOMIC_OR: return old | b;
    case ATOMIC_XOR: return old ^ b;
    case ATOMIC_EXCH: return b;
    default: return old == b ? c : old;
    }
}

static uint64_t atomic_value(const Instruction *i, uint64_t old, uint64_t b, uint64_t c) {
    switch (i->type) {
    case TYPE_F32: return float_bits(bits_float((uint32_t)old) + bits_float((uint32_t)b));
    case TYPE_F64: return double_bits(bits_double(old) + bits_double(b));
    case TYPE_F16: return float_f16(f16_float((uint16_t)old) + f16_float((uint16_t)b));
    case TYPE_BF16: return float_bf16(bf16_float((uint16_t)old) + bf16_float((uint16_t)b));
    case TYPE_F16X2: {
        uint32_t low = float_f16(f16_float((uint16_t)old) + f16_float((uint16_t)b));
        return low | (uint32_t)float_f16(f16_float((uint16_t)(old >> 16)) + f16_float((uint16_t)(b >> 16))) << 16;
    }
    case TYPE_BF16X2: {
        uint32_t low = float_bf16(bf16_float((uint16_t)old) + bf16_float((uint16_t)b));
        return low | (uint32_t)float_bf16(bf16_float((uint16_t)(old >> 16)) + bf16_float((uint16_t)(b >> 16))) << 16;
    }
    default: return atomic_integer(i, old, b, c);
    }
}

static uint64_t register_lane(const Warp *warp, int32_t offset, uint32_t lane, size_t n_bytes) {
    uint64_t value = 0;
    if (offset != NOWHERE) memcpy(&value, (char *)warp_register(warp, offset) + lane * n_bytes, n_bytes);
    return value;
}

static void atomic_lanes(Warp *warp, const Instruction *i, Access *access, Shadow *shadow) {
    shadow_access(shadow, access);
    for (uint32_t lanes = access->mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(lanes);
        char *data = shadow_data(shadow, access->address[lane]);
        uint64_t old = 0, b = register_lane(warp, i->s[1], lane, i->d_bytes);
        uint64_t c = register_lane(warp, i->s[2], lane, i->d_bytes);
        memcpy(&old, data, i->d_bytes);
        uint64_t value = atomic_value(i, old, b, c);
        memcpy(data, &value, i->d_bytes);
        if (i->d != NOWHERE) memcpy((char *)warp_register(warp, i->d) + lane * i->d_bytes, &old, i->d_bytes);
        if (emulator.options.checks && shadow == &emulator.global) {
            order_atomic(&emulator.block->order, warp->index, lane, access->address[lane]);
        }
    }
}

void memory_atomic(Warp *warp, const Instruction *i, uint32_t mask) {
    Access access = {.warp = warp, .instruction = i, .kind = ACCESS_ATOMIC, .n_bytes = i->d_bytes};
    lane_addresses(warp, i, i->s[0], i->is_wide, i->immediate, access.address);
    uint32_t shared, local;
    split_lanes(i, access.address, mask, &shared, &local);
    if (local) warp_fail(warp, i, (uint32_t)__builtin_ctz(local), "atomic on local memory");
    emulator.counts.float_atomics += i->type >= TYPE_F16;
    if ((access.mask = mask & ~shared)) {
        check_arena(&access);
        atomic_lanes(warp, i, &access, &emulator.global);
    }
    if ((access.mask = shared)) atomic_lanes(warp, i, &access, &emulator.shared);
}

// ---------------------------------------------------------------------------------------------------------------
// cp.async: the copy happens as late as is legal, when its group is waited for

// What of the source is read: the shadow wants powers of two.
static void check_source(Warp *warp, const Instruction *i, uint32_t lane, uint64_t from, uint32_t n_source) {
    Access access = {.warp = warp, .instruction = i, .kind = ACCESS_READ, .mask = 1u << lane};
    while (n_source > 0) {
        access.n_bytes = n_source & -n_source;
        access.address[lane] = from + n_source - access.n_bytes;
        check_arena(&access);
        shadow_access(&emulator.global, &access);
        n_source -= access.n_bytes;
    }
}

void copy_async(Warp *warp, const Instruction *i, uint32_t mask) {
    Access to = {.warp = warp, .instruction = i, .kind = ACCESS_WRITE, .n_bytes = i->n_vector, .mask = mask};
    uint64_t from[LANES];
    Instruction source = *i;
    source.space = SPACE_GLOBAL;
    lane_addresses(warp, &source, i->s[1], i->flag, emulator.block->function->operands[i->operands], from);
    source.space = SPACE_SHARED;
    lane_addresses(warp, &source, i->s[0], i->is_wide, i->immediate, to.address);
    shadow_access(&emulator.shared, &to);
    Access all = {.warp = warp, .instruction = i, .kind = ACCESS_READ, .n_bytes = i->n_vector};
    memcpy(all.address, from, sizeof(from));
    for (; mask != 0; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask), n_source = i->n_vector;
        if (i->s[2] != NOWHERE) n_source = (uint32_t)register_lane(warp, i->s[2], lane, 4);
        if (n_source > i->n_vector) warp_fail(warp, i, lane, "cp.async: %u source bytes of %u", n_source, i->n_vector);
        if (n_source > 0 && from[lane] % i->n_vector != 0) {
            warp_fail(warp, i, lane, "misaligned access: cp.async of %u bytes from 0x%llx", i->n_vector,
                      (unsigned long long)from[lane]);
        }
        if (n_source == i->n_vector) {
            all.mask |= 1u << lane;
        } else {
            check_source(warp, i, lane, from[lane], n_source);
        }
        shadow_set_state(&emulator.shared, to.address[lane], i->n_vector, PENDING);
        memset(shadow_data(&emulator.shared, to.address[lane]), 0xff, i->n_vector);
        warp->copies = grown(warp->copies, warp->n_copies, sizeof(PendingCopy));
        warp->copies[warp->n_copies++] =
            (PendingCopy){to.address[lane], from[lane], i->n_vector, n_source, warp->group[lane], lane, i};
    }
    if (all.mask == 0) return;
    check_arena(&all);
    shadow_access(&emulator.global, &all);
}

static void copy_land(Warp *warp, const PendingCopy *copy) {
    Access to = {.warp = warp,
                 .instruction = copy->instruction,
                 .kind = ACCESS_WRITE,
                 .n_bytes = copy->n_bytes,
                 .mask = 1u << copy->lane};
    to.address[copy->lane] = copy->to;
    shadow_access(&emulator.shared, &to);
    char *data = shadow_data(&emulator.shared, copy->to);
    if (copy->n_source > 0) memcpy(data, shadow_data(&emulator.global, copy->from), copy->n_source);
    memset(data + copy->n_source, 0, copy->n_bytes - copy->n_source);
}

void copy_wait(Warp *warp, const Instruction *i, uint32_t mask) {
    size_t kept = 0;
    for (size_t c = 0; c < warp->n_copies; c++) {
        const PendingCopy *copy = &warp->copies[c];
        bool is_due = i->flag || (int64_t)copy->group < (int64_t)warp->group[copy->lane] - i->immediate;
        if ((mask >> copy->lane & 1) && is_due) {
            copy_land(warp, copy);
        } else {
            warp->copies[kept++] = *copy;
        }
    }
    warp->n_copies = kept;
}

void copy_check_exit(Warp *warp, const Instruction *i, uint32_t lanes) {
    for (size_t c = 0; c < warp->n_copies; c++) {
        if (!(lanes >> warp->copies[c].lane & 1)) continue;
        char where[512];
        report_location(emulator.block->function, warp->copies[c].instruction->location, where, sizeof(where));
        warp_fail(warp, i, warp->copies[c].lane, "exit before cp.async.wait: the copy begun at %s was never waited for",
                  where);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// ldmatrix: lane q * 8 + r names row r of matrix q, 8 values of 16 bits; lane l gets values 2 (l % 4) and the next of
// row l / 4, or the same of the transposed matrix.

void load_matrix(Warp *warp, const Instruction *i) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    Access access;
    access.warp = warp;
    access.instruction = i;
    access.kind = ACCESS_READ;
    access.strong = access.read_only = false;
    access.n_bytes = 16;
    access.mask = i->n_vector == 4 ? ALL_LANES : (1u << 8 * i->n_vector) - 1;
    lane_addresses(warp, i, i->s[0], i->is_wide, i->immediate, access.address);
    shadow_access(&emulator.shared, &access);
    uint32_t result[4][LANES];
    for (int q = 0; q < i->n_vector; q++) {
        const uint16_t *rows[8];
        for (int r = 0; r < 8; r++) rows[r] = (void *)shadow_data(&emulator.shared, access.address[8 * q + r]);
        for (int l = 0; l < LANES; l++) {
            int row = l / 4, column = l % 4 * 2;
            uint32_t low = i->flag ? rows[column][row] : rows[row][column];
            uint32_t high = i->flag ? rows[column + 1][row] : rows[row][column + 1];
            result[q][l] = high << 16 | low;
        }
    }
    for (int q = 0; q < i->n_vector; q++) memcpy(warp_register(warp, operands[q]), result[q], sizeof(result[q]));
}

// ---------------------------------------------------------------------------------------------------------------
// printf

static const char *generic_data(const Warp *warp, uint32_t lane, uint64_t address) {
    if (is_in_window(address, LOCAL_WINDOW)) {
        return warp->local + (size_t)lane * emulator.block->function->local_bytes + (uint32_t)(address - LOCAL_WINDOW);
    }
    if (is_in_window(address, SHARED_WINDOW)) return shadow_data(&emulator.shared, address);
    return address - emulator.global.base < emulator.arena_bytes ? memory_data((void *)(uintptr_t)address) : "";
}

// One conversion of a format; arguments lie aligned to their size. Returns where the next argument begins.
static size_t print_one(const Warp *warp, uint32_t lane, const char *spec, size_t n_spec, const char *arguments,
                        size_t offset) {
    char format[64], kind = spec[n_spec - 1];
    snprintf(format, sizeof(format), "%.*s", (int)n_spec, spec);
    bool is_wide = strchr("aAeEfFgGsp", kind) || strchr(format, 'l') || strchr(format, 'z') || strchr(format, 'j');
    offset = round_up(offset, is_wide ? 8 : 4);
    uint64_t value = 0;
    memcpy(&value, arguments + offset, is_wide ? 8 : 4);
    if (strchr("aAeEfFgG", kind)) {
        printf(format, bits_double(value));
    } else if (kind == 's') {
        printf(format, generic_data(warp, lane, value));
    } else if (is_wide) {
        printf(format, value);
    } else {
        printf(format, (uint32_t)value);
    }
    return offset + (is_wide ? 8 : 4);
}

static void print_lane(const Warp *warp, uint32_t lane, const char *format, const char *arguments) {
    size_t offset = 0;
    while (*format != '\0') {
        size_t plain = strcspn(format, "%");
        fwrite(format, 1, plain, stdout);
        format += plain;
        if (*format == '\0') return;
        size_t n = 1 + strspn(format + 1, "-+ #0123456789.lhzj");
        if (format[n] == '\0') return;
        if (format[n] == '%') {
            putchar('%');
        } else {
            offset = print_one(warp, lane, format, n + 1, arguments, offset);
        }
        format += n + 1;
    }
}

void print_lanes(Warp *warp, const Instruction *i, uint32_t mask) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    size_t size = emulator.block->function->local_bytes;
    for (; mask != 0; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        uint64_t format, arguments;
        memcpy(&format, warp->local + lane * size + operands[0], 8);
        memcpy(&arguments, warp->local + lane * size + operands[1], 8);
        print_lane(warp, lane, generic_data(warp, lane, format), arguments ? generic_data(warp, lane, arguments) : "");
    }
}
