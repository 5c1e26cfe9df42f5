// ptx_run.c - executes a launch: blocks one after the other, the warps of a block in turns, lanes of a warp together.
//
// Lanes of a warp that are at the same instruction form a fragment; the fragment with the lowest address runs, until it
// has caught up with another one (they join), branches apart, waits, or exits. An instruction that needs other lanes
// (.sync) waits until they have come to it. A warp runs until it waits at a barrier, has exited, or its turn is over.
//
// Invariant: nothing depends on time or on the host: the same launch takes the same steps.
#include <time.h>

#include "ptx.h"

enum { TURN = 1 << 16 };  // instructions of a warp before the next warp gets a turn: for those that spin

#define NO_PC UINT32_MAX

// ---------------------------------------------------------------------------------------------------------------
// Fragments

static void fragment_add(Warp *warp, uint32_t pc, uint32_t mask, bool waiting) {
    for (uint32_t i = 0; i < warp->n_fragments; i++) {
        if (warp->fragments[i].pc != pc || warp->fragments[i].waiting != waiting) continue;
        warp->fragments[i].mask |= mask;
        return;
    }
    warp->fragments[warp->n_fragments++] = (Fragment){pc, mask, waiting};
}

// Takes the fragment with the lowest address that may run; false if all wait. *limit: the next one's address.
static bool fragment_next(Warp *warp, uint32_t *pc, uint32_t *mask, uint32_t *limit) {
    uint32_t best = LANES;
    for (uint32_t i = 0; i < warp->n_fragments; i++) {
        if (warp->fragments[i].waiting) continue;
        if (best == LANES || warp->fragments[i].pc < warp->fragments[best].pc) best = i;
    }
    if (best == LANES) return false;
    *pc = warp->fragments[best].pc;
    *mask = warp->fragments[best].mask;
    warp->fragments[best] = warp->fragments[--warp->n_fragments];
    *limit = NO_PC;
    for (uint32_t i = 0; i < warp->n_fragments; i++) {
        if (!warp->fragments[i].waiting && warp->fragments[i].pc < *limit) *limit = warp->fragments[i].pc;
    }
    return true;
}

// Lanes that wait at this address join those that come to it.
static uint32_t fragment_collect(Warp *warp, uint32_t pc, uint32_t mask) {
    for (uint32_t i = 0; i < warp->n_fragments; i++) {
        if (warp->fragments[i].pc != pc || !warp->fragments[i].waiting) continue;
        mask |= warp->fragments[i].mask;
        warp->fragments[i] = warp->fragments[--warp->n_fragments];
        i--;
    }
    return mask;
}

// ---------------------------------------------------------------------------------------------------------------
// Barriers

static void barrier_arrive(Block *block, Warp *warp, const Instruction *i, uint32_t pc, uint32_t mask) {
    uint32_t lane = (uint32_t)__builtin_ctz(mask);
    uint32_t id = ((uint32_t *)warp_register(warp, i->s[0]))[lane];
    uint32_t threads = i->s[1] == NOWHERE ? 0 : ((uint32_t *)warp_register(warp, i->s[1]))[lane];
    if (id > 15) warp_fail(warp, i, lane, "barrier %u: there are 16", id);
    if (threads % LANES != 0) {
        warp_fail(warp, i, lane, "barrier for %u threads: not a multiple of the warp size", threads);
    }
    if (i->mode >= BARRIER_POPC) {
        uint32_t value = warp->predicates[i->s[2]];
        if (i->flag) value = ~value;
        uint32_t n = (uint32_t)__builtin_popcount(value & mask), all = n == (uint32_t)__builtin_popcount(mask);
        block->named[id].value += i->mode == BARRIER_POPC ? n : i->mode == BARRIER_OR ? n > 0 : !all;
    }
    if (i->mode == BARRIER_ARRIVE) {
        block->named[id].arrived_warps |= 1u << warp->index;
        block->named[id].threads = threads;
        return;
    }
    warp->at_barrier = true;
    warp->barrier = id;
    warp->barrier_threads = threads;
    warp->barrier_pc = pc;
    warp->barrier_instruction = i;
    fragment_add(warp, pc + 1, mask, true);
}

static void barrier_result(const Block *block, Warp *warp) {
    const Instruction *i = warp->barrier_instruction;
    uint32_t value = block->named[warp->barrier].value;
    if (i->mode < BARRIER_POPC) return;
    if (i->mode == BARRIER_POPC) {
        uint32_t scratch[LANES];
        lanes_fill(scratch, value, 4);
        lanes_blend(warp_register(warp, i->d), scratch, warp->live, 4);
    } else {
        bool holds = i->mode == BARRIER_OR ? value > 0 : value == 0;
        set_predicate(warp, i->d, holds ? ALL_LANES : 0, warp->live);
    }
}

static void barrier_complete(Block *block, uint32_t id, uint32_t waiting) {
    order_barrier(&block->order, waiting | block->named[id].arrived_warps);
    for (uint32_t w = 0; w < block->n_warps; w++) {
        Warp *warp = &block->warps[w];
        if (!(waiting >> w & 1)) continue;
        barrier_result(block, warp);
        warp->at_barrier = false;
        for (uint32_t f = 0; f < warp->n_fragments; f++) warp->fragments[f].waiting = false;
    }
    memset(&block->named[id], 0, sizeof(block->named[id]));
}

// All warps of the block must come to the same barrier: not to different ones in the branches of a condition.
static void barrier_check(const Block *block, uint32_t waiting, uint32_t first) {
    const Warp *one = &block->warps[first];
    for (uint32_t w = 0; w < block->n_warps; w++) {
        const Warp *other = &block->warps[w];
        if (!(waiting >> w & 1) || other->barrier_threads != 0 || other->barrier_pc == one->barrier_pc) continue;
        char where[512];
        report_location(block->function, other->barrier_instruction->location, where, sizeof(where));
        warp_fail(one, one->barrier_instruction, (uint32_t)__builtin_ctz(one->live),
                  "divergent barrier: warp %u waits at another barrier, %s", w, where);
    }
}

// Completes every barrier that has all it waits for; false if none has.
static bool barriers_complete(Block *block) {
    bool any = false;
    for (uint32_t id = 0; id < 16; id++) {
        uint32_t waiting = 0, live = 0, expected = 0, first = MOST_WARPS;
        for (uint32_t w = 0; w < block->n_warps; w++) {
            const Warp *warp = &block->warps[w];
            live |= (uint32_t)(warp->live != 0) << w;
            if (!warp->at_barrier || warp->barrier != id) continue;
            waiting |= 1u << w;
            expected = warp->barrier_threads;
            first = first == MOST_WARPS ? w : first;
        }
        if (waiting == 0) continue;
        uint32_t arrived = waiting | block->named[id].arrived_warps;
        bool is_complete =
            expected == 0 ? (arrived & live) == live : (uint32_t)__builtin_popcount(arrived) * LANES >= expected;
        if (!is_complete) continue;
        if (expected == 0) barrier_check(block, waiting, first);
        barrier_complete(block, id, waiting);
        any = true;
    }
    return any;
}

// ---------------------------------------------------------------------------------------------------------------
// A warp

// A lane may exit early, so that others need not wait for it; but not after it has gone on to other work while they
// already waited: then the condition around the barrier or warp function was not the same for all.
static void check_exit(const Warp *warp, const Instruction *i, uint32_t mask) {
    for (uint32_t f = 0; f < warp->n_fragments; f++) {
        const Fragment *fragment = &warp->fragments[f];
        if (!fragment->waiting) continue;
        const Instruction *other = &emulator.block->function->code[fragment->pc];
        uint32_t lane = (uint32_t)__builtin_ctz(fragment->mask), wanted = ALL_LANES;
        bool is_barrier = other->kind == KIND_BARRIER;
        if (!is_barrier) {
            wanted = ((uint32_t *)warp_register(warp, other->kind == KIND_SYNCWARP ? other->s[0] : other->s[3]))[lane];
        }
        if (!(wanted & mask)) continue;
        char where[512];
        report_location(emulator.block->function, i->location, where, sizeof(where));
        warp_fail(warp, other, lane, "divergent %s: lanes 0x%08x wait here, but lanes 0x%08x went on, and exit at %s",
                  is_barrier ? "barrier" : "warp function", fragment->mask, wanted & mask, where);
    }
}

static void warp_exit(Warp *warp, const Instruction *i, uint32_t mask) {
    if (warp->n_copies > 0) copy_check_exit(warp, i, mask);
    if (warp->has_waiting && warp->went_on) check_exit(warp, i, mask);
    warp->live &= ~mask;
    // Those that waited for these lanes need not any more.
    for (uint32_t f = 0; f < warp->n_fragments; f++) warp->fragments[f].waiting = false;
    warp->has_waiting = warp->went_on = false;
}

// Lanes come to a place where they wait for others.
static void warp_wait(Warp *warp, uint32_t pc, uint32_t mask) {
    fragment_add(warp, pc, mask, true);
    if (!warp->has_waiting) warp->went_on = false;
    warp->has_waiting = true;
}

__attribute__((noreturn)) static void warp_stuck(const Block *block, const Warp *warp) {
    char places[1024];
    int n = 0;
    const Instruction *first = NULL;
    for (uint32_t f = 0; f < warp->n_fragments && n < 900; f++) {
        const Instruction *i = &block->function->code[warp->fragments[f].pc];
        char where[256];
        report_location(block->function, i->location, where, sizeof(where));
        n += snprintf(places + n, sizeof(places) - (size_t)n, "%slanes 0x%08x at %s", f > 0 ? "; " : "",
                      warp->fragments[f].mask, where);
        if (!first || i->kind == KIND_BARRIER) first = i;
    }
    warp_fail(warp, first, (uint32_t)__builtin_ctz(warp->live),
              "%s: lanes of warp %u wait for lanes that don't come: %s",
              first->kind == KIND_BARRIER ? "divergent barrier" : "divergent warp function", warp->index, places);
}

static void check_together(const Warp *warp, const Instruction *i, uint32_t mask) {
    if (mask == warp->live && mask == ALL_LANES) return;
    warp_fail(warp, i, (uint32_t)__builtin_ctz(mask), "divergent warp function: all 32 lanes must be here, mask 0x%08x",
              mask);
}

__attribute__((noreturn)) static void run_assert(const Warp *warp, const Instruction *i, uint32_t mask) {
    const int32_t *operands = emulator.block->function->operands + i->operands;
    uint32_t lane = (uint32_t)__builtin_ctz(mask);
    uint64_t message = 0;
    memcpy(&message, warp->local + lane * (size_t)emulator.block->function->local_bytes + operands[0], 8);
    bool is_known = message - emulator.global.base < emulator.arena_bytes;
    warp_fail(warp, i, lane, "device assertion failed: %s", is_known ? memory_data((void *)(uintptr_t)message) : "?");
}

__attribute__((noreturn)) static void budget_fail(const Warp *warp, const Instruction *i, uint32_t mask) {
    warp_fail(warp, i, (uint32_t)__builtin_ctz(mask),
              "runaway loop: the launch took more than %llu warp instructions (EMULATOR_BUDGET)",
              (unsigned long long)emulator.options.instruction_budget);
}

// Lanes that take a branch go to `target`, the others to the next instruction; the lower address goes on.
static uint32_t branch(Warp *warp, uint32_t pc, uint32_t target, uint32_t taken, uint32_t *mask, uint32_t *limit) {
    uint32_t other = *mask & ~taken;
    if (other == 0) return target;
    if (taken == 0) return pc + 1;
    uint32_t low = target <= pc ? target : pc + 1, high = target <= pc ? pc + 1 : target;
    fragment_add(warp, high, low == target ? other : taken, false);
    *mask = low == target ? taken : other;
    *limit = high < *limit ? high : *limit;
    return low;
}

static uint32_t branch_index(Warp *warp, const Instruction *i, uint32_t mask) {
    const int32_t *targets = emulator.block->function->operands + i->operands;
    const uint32_t *index = warp_register(warp, i->s[0]);
    for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(lanes);
        if (index[l] >= i->n_operands) {
            warp_fail(warp, i, l, "branch table of %u entries, index %u", i->n_operands, index[l]);
        }
        fragment_add(warp, (uint32_t)targets[index[l]], 1u << l, false);
    }
    return 0;
}

// Runs until the warp waits, has exited, or its turn is over.
static void warp_run(Block *block, Warp *warp) {
    Function *function = block->function;
    const Instruction *code = function->code;
    uint32_t pc = 0, mask = 0, limit = 0;
    uint64_t turn = TURN < block->budget ? TURN : block->budget, left = turn;
    if (warp->at_barrier) return;
    if (!fragment_next(warp, &pc, &mask, &limit)) {
        if (warp->live != 0) warp_stuck(block, warp);
        return;
    }
    for (;;) {
        if (UNLIKELY(pc >= limit || mask == 0)) {
            if (mask != 0) fragment_add(warp, pc, mask, false);
            mask = 0;
            if (!fragment_next(warp, &pc, &mask, &limit)) break;
        }
        const Instruction *i = &code[pc];
        if (UNLIKELY(left-- == 0)) break;
        uint32_t active = mask;
        if (i->guard != NOWHERE) {
            uint32_t guard = warp->predicates[i->guard];
            active &= i->guard_negated ? ~guard : guard;
            if (active == 0) {
                pc++;
                continue;
            }
        }
        function->executed[i->location] = 1;
        switch ((Kind)i->kind) {
        case KIND_NOTHING: break;
        case KIND_LANES: run_lanes(warp, i, active); break;
        case KIND_COMPARE: run_compare(warp, i, active); break;
        case KIND_SELECT: run_select(warp, i, active); break;
        case KIND_PREDICATE_MOVE:
        case KIND_PREDICATE_NOT:
        case KIND_PREDICATE_AND:
        case KIND_PREDICATE_OR:
        case KIND_PREDICATE_XOR: run_predicate(warp, i, active); break;
        case KIND_PACK: run_pack(warp, i, active); break;
        case KIND_UNPACK: run_unpack(warp, i, active); break;
        case KIND_CARRY: run_carry(warp, i, active); break;
        case KIND_CONVERT_ADDRESS: memory_convert_address(warp, i, active); break;
        case KIND_IS_SPACE: run_is_space(warp, i, active); break;
        case KIND_COUNTER: run_counter(warp, i, active); break;
        case KIND_LOAD: memory_load(warp, i, active); break;
        case KIND_STORE:
            warp->went_on |= warp->has_waiting;
            memory_store(warp, i, active);
            break;
        case KIND_LOAD_PARAM: memory_load_parameter(warp, i, active); break;
        case KIND_ATOMIC: memory_atomic(warp, i, active); break;
        case KIND_COPY_ASYNC: copy_async(warp, i, active); break;
        case KIND_COPY_COMMIT:
            for (int l = 0; l < LANES; l++) warp->group[l] += active >> l & 1;
            break;
        case KIND_COPY_WAIT: copy_wait(warp, i, active); break;
        case KIND_FENCE:
            if (i->mode) order_fence(&block->order, warp->index, active);
            break;
        case KIND_ACTIVE_MASK: {
            uint32_t scratch[LANES];
            lanes_fill(scratch, active, 4);
            lanes_blend(warp_register(warp, i->d), scratch, active, 4);
            break;
        }
        case KIND_PRINT: print_lanes(warp, i, active); break;
        case KIND_ASSERT: run_assert(warp, i, active);
        case KIND_TRAP: warp_fail(warp, i, (uint32_t)__builtin_ctz(active), "trap");
        case KIND_LOAD_MATRIX:
            check_together(warp, i, active);
            load_matrix(warp, i);
            break;
        case KIND_MMA:
            check_together(warp, i, active);
            mma_run(warp, i);
            break;
        case KIND_BRANCH: pc = branch(warp, pc, i->target, active, &mask, &limit); continue;
        case KIND_BRANCH_INDEX:
            if (mask & ~active) fragment_add(warp, pc + 1, mask & ~active, false);
            branch_index(warp, i, active);
            mask = 0;
            continue;
        case KIND_EXIT:
            warp_exit(warp, i, active);
            mask &= ~active;
            limit = 0;  // those that waited for the lanes may run
            pc++;
            continue;
        case KIND_YIELD:
            turn -= left;
            left = 0;
            break;
        case KIND_SHUFFLE:
        case KIND_VOTE:
        case KIND_MATCH:
        case KIND_REDUCE:
        case KIND_SYNCWARP: {
            uint32_t arrived = warp->n_fragments > 0 ? fragment_collect(warp, pc, active) : active;
            uint32_t ready = lanes_ready(warp, i, arrived);
            if (ready != 0) run_together(warp, i, ready);
            warp->has_waiting = false;
            for (uint32_t f = 0; f < warp->n_fragments; f++) warp->has_waiting |= warp->fragments[f].waiting;
            if (arrived & ~ready) warp_wait(warp, pc, arrived & ~ready);
            mask = (mask & ~active) | ready;
            break;
        }
        case KIND_BARRIER: {
            uint32_t arrived = warp->n_fragments > 0 ? fragment_collect(warp, pc, active) : active;
            if (arrived != warp->live) {
                warp_wait(warp, pc, arrived);
            } else {
                warp->has_waiting = false;
                barrier_arrive(block, warp, i, pc, arrived);
                if (i->mode == BARRIER_ARRIVE) {
                    mask = arrived;
                    break;
                }
            }
            mask &= ~active;
            break;
        }
        }
        pc++;
    }
    if (mask != 0) fragment_add(warp, pc, mask, false);
    uint64_t used = turn - (left == UINT64_MAX ? 0 : left);
    emulator.counts.warp_instructions += used;
    block->budget -= used;
    if (block->budget == 0) budget_fail(warp, &code[pc], mask ? mask : warp->live);
    if (warp->live != 0 && mask == 0 && !warp->at_barrier) warp_stuck(block, warp);
}

// ---------------------------------------------------------------------------------------------------------------
// A block

static void set_special(const Block *block, Warp *warp, int index, uint32_t (*value)(const Block *, uint32_t, uint32_t),
                        uint32_t argument) {
    int32_t offset = block->function->special[index];
    if (offset == NOWHERE) return;
    uint32_t *lanes = warp_register(warp, offset);
    for (uint32_t l = 0; l < LANES; l++) lanes[l] = value(block, warp->index * LANES + l, argument);
}

static uint32_t axis(const dim3 *size, uint32_t i) { return i == 0 ? size->x : i == 1 ? size->y : size->z; }

static uint32_t special_thread(const Block *block, uint32_t thread, uint32_t i) {
    const dim3 *size = &block->launch->block;
    return i == 0 ? thread % size->x : i == 1 ? thread / size->x % size->y : thread / (size->x * size->y);
}
static uint32_t special_block_size(const Block *block, uint32_t thread, uint32_t i) {
    (void)thread;
    return axis(&block->launch->block, i);
}
static uint32_t special_block(const Block *block, uint32_t thread, uint32_t i) {
    (void)thread;
    return block->index[i];
}
static uint32_t special_grid_size(const Block *block, uint32_t thread, uint32_t i) {
    (void)thread;
    return axis(&block->launch->grid, i);
}
// %laneid … in the order of the decoder's list, from 12 on.
static uint32_t special_other(const Block *block, uint32_t thread, uint32_t index) {
    uint32_t lane = thread % LANES, bit = 1u << lane;
    switch (index) {
    case 12: return lane;
    case 13: return thread / LANES;
    case 14: return block->n_warps;
    case 15: return bit;
    case 16: return bit | (bit - 1);
    case 17: return bit - 1;
    case 18: return ~(bit - 1);
    case 19: return ~(bit | (bit - 1));
    case 21: return 4;
    case 23: return (uint32_t)block->launch->dynamic_shared;
    default: return 0;
    }
}

static void warp_begin(const Block *block, Warp *warp) {
    uint32_t threads = block->n_threads - warp->index * LANES;
    warp->live = threads >= LANES ? ALL_LANES : (1u << threads) - 1;
    warp->n_fragments = 0;
    fragment_add(warp, 0, warp->live, false);
    warp->at_barrier = warp->has_waiting = warp->went_on = false;
    warp->carry = 0;
    warp->n_copies = 0;
    memset(warp->group, 0, sizeof(warp->group));
    if (block->function->local_bytes > 0) {
        memset(warp->local_state, FRESH, (size_t)block->function->local_bytes * LANES);
    }
    for (uint32_t i = 0; i < 3; i++) set_special(block, warp, 6 + (int)i, special_block, i);
}

static void block_run(Block *block) {
    order_begin_block(&block->order, block->n_warps);
    if (block->shared_bytes > 0) {
        memset(emulator.shared.data, 0xff, block->shared_bytes);
        memset(emulator.shared.state, RED, round_up(block->shared_bytes, PAGE_BYTES));
        memset(emulator.shared.state, FRESH, block->function->static_shared_bytes);
        memset(emulator.shared.state + block->dynamic_shared_at, FRESH, block->launch->dynamic_shared);
    }
    memset(block->named, 0, sizeof(block->named));
    for (uint32_t w = 0; w < block->n_warps; w++) warp_begin(block, &block->warps[w]);
    for (;;) {
        bool is_live = false, is_running = false;
        for (uint32_t w = 0; w < block->n_warps; w++) {
            warp_run(block, &block->warps[w]);
            is_live |= block->warps[w].live != 0;
            is_running |= block->warps[w].live != 0 && !block->warps[w].at_barrier;
        }
        if (!is_live) return;
        if (!barriers_complete(block) && !is_running) {
            const Warp *warp = NULL;
            for (uint32_t w = 0; w < block->n_warps && !warp; w++) {
                warp = block->warps[w].live ? &block->warps[w] : NULL;
            }
            warp_fail(warp, warp->barrier_instruction, (uint32_t)__builtin_ctz(warp->live),
                      "barrier that never completes: warps of the block wait for threads that don't come");
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// A launch

// Registers of all warps; kept from launch to launch.
static void warps_create(Block *block) {
    const Function *f = block->function;
    uint32_t dynamic = (uint32_t)round_up(f->static_shared_bytes, 16);
    size_t n_bytes = round_up(f->register_bytes, 64), n_predicates = f->n_predicates + 1;
    size_t local = (size_t)f->local_bytes * LANES;
    size_t each = n_bytes + round_up(n_predicates * 4, 64) + 2 * round_up(local, 64);
    if (each * block->n_warps > block->n_memory) {
        free(block->memory);
        block->n_memory = each * block->n_warps;
        block->memory = aligned_alloc(64, round_up(block->n_memory, 64));
        if (!block->memory) fail("the emulator is out of host memory (%zu bytes of registers)", block->n_memory);
    }
    for (uint32_t w = 0; w < block->n_warps; w++) {
        Warp *warp = &block->warps[w];
        warp->index = w;
        warp->registers = block->memory + each * w;
        warp->predicates = (uint32_t *)(void *)(warp->registers + n_bytes);
        memset(warp->predicates, 0, n_predicates * 4);
        warp->local = (char *)warp->predicates + round_up(n_predicates * 4, 64);
        warp->local_state = (uint8_t *)warp->local + round_up(local, 64);
        for (size_t c = 0; c < f->n_constants; c++) {
            const Constant *constant = &f->constants[c];
            uint64_t value = constant->value + (constant->is_dynamic_shared ? dynamic : 0);
            lanes_fill(warp_register(warp, constant->offset), value, constant->n_bytes);
        }
        for (uint32_t i = 0; i < 3; i++) {
            set_special(block, warp, (int)i, special_thread, i);
            set_special(block, warp, 3 + (int)i, special_block_size, i);
            set_special(block, warp, 9 + (int)i, special_grid_size, i);
        }
        for (uint32_t i = 12; i < 24; i++) set_special(block, warp, (int)i, special_other, i);
    }
}

static void grant_regions(const Launch *launch) {
    emulator.n_launches++;
    if (emulator.n_regions <= 1) return;
    for (uint32_t offset = 0; offset + 8 <= launch->function->parameter_bytes; offset += 8) {
        uint64_t word;
        memcpy(&word, launch->parameters + offset, 8);
        memory_grant(word, emulator.n_launches);
    }
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void launch_run(void *payload) {
    const Launch *launch = payload;
    double start = cpu_seconds();
    if (!emulator.block_kept) emulator.block_kept = checked_alloc(sizeof(Block));
    Block *block = emulator.block = emulator.block_kept;
    block->launch = launch;
    block->function = launch->function;
    block->n_threads = launch->block.x * launch->block.y * launch->block.z;
    block->n_warps = (block->n_threads + LANES - 1) / LANES;
    block->dynamic_shared_at = (uint32_t)round_up(launch->function->static_shared_bytes, 16);
    block->shared_bytes = launch->dynamic_shared > 0 ? block->dynamic_shared_at + (uint32_t)launch->dynamic_shared
                                                     : launch->function->static_shared_bytes;
    block->budget = emulator.options.instruction_budget;
    emulator.shared.n_bytes = block->shared_bytes;
    grant_regions(launch);
    warps_create(block);
    order_begin_launch(&block->order, launch->function->has_fences, launch->function->has_named_barriers,
                       launch->function->has_partial_warps);
    uint32_t *index = block->index;
    for (index[2] = 0; index[2] < launch->grid.z; index[2]++) {
        for (index[1] = 0; index[1] < launch->grid.y; index[1]++) {
            for (index[0] = 0; index[0] < launch->grid.x; index[0]++) {
                block_run(block);
                if (emulator.on_progress) emulator.on_progress();
            }
        }
    }
    order_end_launch(&block->order);
    emulator.block = NULL;
    emulator.counts.kernel_seconds += cpu_seconds() - start;
}
