// ptx_warp.c - what single instructions do to the registers of a warp; memory and control are elsewhere.
//
// Invariant: only the lanes of `mask` change.
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "ptx.h"

// ---------------------------------------------------------------------------------------------------------------
// Plain instructions

void run_lanes(const Warp *warp, const Instruction *i, uint32_t mask) {
    uint64_t scratch[LANES];
    void *d = warp_register(warp, i->d), *to = mask == ALL_LANES ? d : scratch;
    const void *s[4];
    for (int j = 0; j < 4; j++) s[j] = warp_register(warp, i->s[j]);
    if (UNLIKELY(i->control)) {
#ifdef __SSE__
        unsigned saved = _mm_getcsr();
        _mm_setcsr(saved | i->control);
        i->lanes(to, s, i);
        _mm_setcsr(saved);
#else
        warp_fail(warp, i, 0, "directed rounding and .ftz need SSE");
#endif
    } else {
        i->lanes(to, s, i);
    }
    if (UNLIKELY(i->is_saturated) && i->type == TYPE_F32) {
        float *x = to;
        for (int l = 0; l < LANES; l++) x[l] = x[l] > 0 ? x[l] < 1 ? x[l] : 1 : 0;
    }
    if (mask != ALL_LANES) lanes_blend(d, scratch, mask, i->d_bytes);
}

void run_select(const Warp *warp, const Instruction *i, uint32_t mask) {
    uint64_t scratch[LANES];
    void *d = warp_register(warp, i->d), *to = mask == ALL_LANES ? d : scratch;
    const void *s[4] = {warp_register(warp, i->s[0]), warp_register(warp, i->s[1]), &warp->predicates[i->s[2]], NULL};
    i->lanes(to, s, i);
    if (mask != ALL_LANES) lanes_blend(d, scratch, mask, i->d_bytes);
}

void run_compare(Warp *warp, const Instruction *i, uint32_t mask) {
    uint32_t result = i->compare(warp_register(warp, i->s[0]), warp_register(warp, i->s[1])), other = ~result;
    if (i->mode != JOIN_NONE) {
        uint32_t joined = warp->predicates[i->s[2]];
        if (i->flag) joined = ~joined;
        result = i->mode == JOIN_AND ? result & joined : i->mode == JOIN_OR ? result | joined : result ^ joined;
        other = i->mode == JOIN_AND ? other & joined : i->mode == JOIN_OR ? other | joined : other ^ joined;
    }
    set_predicate(warp, i->d, result, mask);
    set_predicate(warp, i->s[3], other, mask);
}

void run_predicate(Warp *warp, const Instruction *i, uint32_t mask) {
    uint32_t immediate = i->immediate ? ALL_LANES : 0;
    uint32_t a = i->s[0] == NOWHERE ? immediate : warp->predicates[i->s[0]];
    uint32_t b = i->s[1] == NOWHERE ? immediate : warp->predicates[i->s[1]];
    uint32_t result = a;
    if (i->kind == KIND_PREDICATE_NOT) result = ~a;
    if (i->kind == KIND_PREDICATE_AND) result = a & b;
    if (i->kind == KIND_PREDICATE_OR) result = a | b;
    if (i->kind == KIND_PREDICATE_XOR) result = a ^ b;
    set_predicate(warp, i->d, result, mask);
}

void run_pack(const Warp *warp, const Instruction *i, uint32_t mask) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    uint64_t wide[LANES] = {0}, scratch[LANES];
    for (int j = 0; j < i->n_vector; j++) {
        const void *part = warp_register(warp, operands[j]);
        for (int l = 0; l < LANES; l++) {
            uint64_t value = i->mode == 2 ? ((const uint16_t *)part)[l] : ((const uint32_t *)part)[l];
            wide[l] |= value << 8 * i->mode * j;
        }
    }
    if (i->d_bytes == 4) {
        for (int l = 0; l < LANES; l++) ((uint32_t *)scratch)[l] = (uint32_t)wide[l];
        lanes_blend(warp_register(warp, i->d), scratch, mask, 4);
    } else {
        lanes_blend(warp_register(warp, i->d), wide, mask, 8);
    }
}

void run_unpack(const Warp *warp, const Instruction *i, uint32_t mask) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    uint64_t wide[LANES];
    const void *s = warp_register(warp, i->s[0]);
    for (int l = 0; l < LANES; l++) wide[l] = i->d_bytes == 4 ? ((const uint32_t *)s)[l] : ((const uint64_t *)s)[l];
    for (int j = 0; j < i->n_vector; j++) {
        if (operands[j] == NOWHERE) continue;
        uint32_t scratch[LANES];
        if (i->mode == 2) {
            for (int l = 0; l < LANES; l++) ((uint16_t *)scratch)[l] = (uint16_t)(wide[l] >> 16 * j);
        } else {
            for (int l = 0; l < LANES; l++) scratch[l] = (uint32_t)(wide[l] >> 32 * j);
        }
        lanes_blend(warp_register(warp, operands[j]), scratch, mask, i->mode);
    }
}

static uint64_t product_part(uint64_t a, uint64_t b, const Instruction *i) {
    bool is_signed = i->type == TYPE_S32 || i->type == TYPE_S64, is_high = i->mode & 16;
    if (i->d_bytes == 4) {
        uint64_t product = is_signed ? (uint64_t)((int64_t)(int32_t)a * (int32_t)b) : a * b;
        return is_high ? product >> 32 : (uint32_t)product;
    }
    if (!is_high) return a * b;
    return is_signed ? (uint64_t)((SignedWide)(int64_t)a * (int64_t)b >> 64) : (uint64_t)((Wide)a * b >> 64);
}

void run_carry(Warp *warp, const Instruction *i, uint32_t mask) {
    bool is_sub = i->mode & 1, takes = i->mode & 2, gives = i->mode & 4, is_mad = i->mode & 8;
    for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(lanes), carry = takes ? warp->carry >> l & 1 : 0;
        uint64_t s[3] = {0, 0, 0};
        for (int j = 0; j < 2 + is_mad; j++) {
            memcpy(&s[j], (char *)warp_register(warp, i->s[j]) + l * i->d_bytes, i->d_bytes);
        }
        uint64_t a = is_mad ? product_part(s[0], s[1], i) : s[0], b = is_mad ? s[2] : s[1];
        uint64_t d = is_sub ? a - b - carry : a + b + carry;
        if (i->d_bytes == 4) d = (uint32_t)d;
        bool out = is_sub ? a < b || (carry && a == b) : d < a || (carry && d == a);
        memcpy((char *)warp_register(warp, i->d) + l * i->d_bytes, &d, i->d_bytes);
        if (gives) warp->carry = (warp->carry & ~(1u << l)) | (uint32_t)out << l;
    }
}

void run_is_space(Warp *warp, const Instruction *i, uint32_t mask) {
    const uint64_t *a = warp_register(warp, i->s[0]);
    uint32_t result = 0;
    for (int l = 0; l < LANES; l++) {
        bool is_shared = a[l] - SHARED_WINDOW < WINDOW_BYTES, is_local = a[l] - LOCAL_WINDOW < WINDOW_BYTES;
        bool is_it = i->space == SPACE_SHARED  ? is_shared
                     : i->space == SPACE_LOCAL ? is_local
                                               : !is_shared && !is_local;
        result |= (uint32_t)is_it << l;
    }
    set_predicate(warp, i->d, result, mask);
}

void run_counter(const Warp *warp, const Instruction *i, uint32_t mask) {
    uint64_t scratch[LANES], now = emulator.counts.warp_instructions;
    lanes_fill(scratch, now, i->d_bytes);
    lanes_blend(warp_register(warp, i->d), scratch, mask, i->d_bytes);
}

// ---------------------------------------------------------------------------------------------------------------
// Instructions of several lanes

// Which of the lanes that have come here have all others that their mask names; lanes that have exited don't count.
uint32_t lanes_ready(const Warp *warp, const Instruction *i, uint32_t arrived) {
    const uint32_t *masks = warp_register(warp, i->kind == KIND_SYNCWARP ? i->s[0] : i->s[3]);
    uint32_t ready = 0, common = ALL_LANES;
    for (int l = 0; l < LANES; l++) common &= masks[l];
    if (LIKELY(common == ALL_LANES && arrived == ALL_LANES)) return ALL_LANES;
    for (uint32_t lanes = arrived; lanes != 0; lanes &= lanes - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(lanes);
        if (!(masks[l] >> l & 1)) {
            warp_fail(warp, i, l, "lane %u calls a warp function with mask 0x%08x, which does not name it", l,
                      masks[l]);
        }
        if ((masks[l] & warp->live & ~arrived) == 0) ready |= 1u << l;
    }
    return ready;
}

// The lane that a lane reads, or its own number and bit 5 where that is out of its segment.
static inline uint32_t shuffle_source(uint32_t mode, uint32_t lane, uint32_t b, uint32_t c) {
    uint32_t segment = c >> 8 & 31, least = lane & segment, most = least | (c & ~segment & 31);
    b &= 31;
    uint32_t from = mode == SHUFFLE_DOWN ? lane + b : mode == SHUFFLE_BFLY ? lane ^ b : least | (b & ~segment);
    bool is_valid = from <= most;
    if (mode == SHUFFLE_UP) {
        from = lane - b;
        is_valid = (int32_t)from >= (int32_t)most;
    }
    return is_valid ? from : lane | LANES;
}

static void run_shuffle(Warp *warp, const Instruction *i, uint32_t mask) {
    const uint32_t *a = warp_register(warp, i->s[0]), *b = warp_register(warp, i->s[1]);
    const uint32_t *c = warp_register(warp, i->s[2]), *masks = warp_register(warp, i->s[3]);
    uint32_t from[LANES], result[LANES], valid = 0, bad = 0, mode = i->mode;
    for (uint32_t l = 0; l < LANES; l++) from[l] = shuffle_source(mode, l, b[l], c[l]);
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t lane = from[l] & 31;
        bad |= (~(masks[l] & mask) >> lane & 1) << l;
        valid |= (uint32_t)(from[l] < LANES) << l;
        result[l] = a[lane];
    }
    if (UNLIKELY(bad & mask)) {
        uint32_t l = (uint32_t)__builtin_ctz(bad & mask), lane = from[l] & 31;
        warp_fail(warp, i, l, "shuffle reads lane %u, which %s", lane,
                  warp->live >> lane & 1 ? "the mask does not name" : "has exited");
    }
    if (i->d != NOWHERE) lanes_blend(warp_register(warp, i->d), result, mask, 4);
    set_predicate(warp, emulator.block->function->operands[i->operands], valid, mask);
}

static void run_vote(Warp *warp, const Instruction *i, uint32_t mask) {
    const uint32_t *masks = warp_register(warp, i->s[3]);
    uint32_t value = i->s[1] == NOWHERE ? (i->immediate ? ALL_LANES : 0) : warp->predicates[i->s[1]], result[LANES],
             all = 0;
    if (i->flag) value = ~value;
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t members = masks[l] & mask, set = value & members;
        bool holds = i->mode == VOTE_ALL ? set == members : i->mode == VOTE_ANY ? set != 0 : set == members || set == 0;
        result[l] = set;
        all |= (uint32_t)holds << l;
    }
    if (i->mode == VOTE_BALLOT) {
        lanes_blend(warp_register(warp, i->d), result, mask, 4);
    } else {
        set_predicate(warp, i->d, all, mask);
    }
}

static uint64_t lane_value(const void *lanes, uint32_t l, size_t n_bytes) {
    return n_bytes == 8 ? ((const uint64_t *)lanes)[l] : ((const uint32_t *)lanes)[l];
}

static void run_match(Warp *warp, const Instruction *i, uint32_t mask) {
    const uint32_t *masks = warp_register(warp, i->s[3]);
    const void *a = warp_register(warp, i->s[0]);
    uint32_t result[LANES] = {0}, valid = 0;
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t members = masks[l] & mask, same = 0;
        for (uint32_t k = 0; k < LANES; k++) {
            bool is_same = lane_value(a, l, i->n_vector) == lane_value(a, k, i->n_vector);
            same |= (uint32_t)(is_same && (members >> k & 1)) << k;
        }
        result[l] = !i->flag || same == members ? same : 0;
        valid |= (uint32_t)(same == members) << l;
    }
    lanes_blend(warp_register(warp, i->d), result, mask, 4);
    set_predicate(warp, i->s[1], valid, mask);
}

static uint32_t reduce_two(const Instruction *i, uint32_t a, uint32_t b) {
    bool is_signed = i->type == TYPE_S32, is_less = is_signed ? (int32_t)a < (int32_t)b : a < b;
    switch (i->mode) {
    case ATOMIC_ADD: return a + b;
    case ATOMIC_MIN: return is_less ? a : b;
    case ATOMIC_MAX: return is_less ? b : a;
    case ATOMIC_AND: return a & b;
    case ATOMIC_OR: return a | b;
    default: return a ^ b;
    }
}

static void run_reduce(Warp *warp, const Instruction *i, uint32_t mask) {
    const uint32_t *a = warp_register(warp, i->s[0]), *masks = warp_register(warp, i->s[3]);
    uint32_t result[LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t members = masks[l] & mask, n = 0;
        for (uint32_t k = 0; k < LANES; k++) {
            if (members >> k & 1) result[l] = n++ == 0 ? a[k] : reduce_two(i, result[l], a[k]);
        }
    }
    lanes_blend(warp_register(warp, i->d), result, mask, 4);
}

// Lanes with different masks synchronise apart, also where they come together.
static void run_syncwarp(const Warp *warp, const Instruction *i, uint32_t mask) {
    const uint32_t *masks = warp_register(warp, i->s[0]);
    while (mask != 0) {
        uint32_t group = 0, wanted = masks[__builtin_ctz(mask)];
        for (uint32_t l = 0; l < LANES; l++) group |= (uint32_t)((mask >> l & 1) && masks[l] == wanted) << l;
        order_syncwarp(&emulator.block->order, warp->index, group, warp->live);
        mask &= ~group;
    }
}

void run_together(Warp *warp, const Instruction *i, uint32_t mask) {
    switch (i->kind) {
    case KIND_SHUFFLE: run_shuffle(warp, i, mask); break;
    case KIND_VOTE: run_vote(warp, i, mask); break;
    case KIND_MATCH: run_match(warp, i, mask); break;
    case KIND_REDUCE: run_reduce(warp, i, mask); break;
    default: run_syncwarp(warp, i, mask);
    }
}
