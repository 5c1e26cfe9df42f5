// device_helpers.h - a CPU device whose queues run in any order, and memory behind it that is large enough.
//
// A test that goes through EVERY_ORDER shows what a run with threads hides: whether every await is there.
#ifndef DEVICE_HELPERS_H
#define DEVICE_HELPERS_H

#include "test_helpers.h"

#include "../dev/memory.h"

typedef struct {
    QueueOrder order;
    uint64_t seed;
} Order;

static const Order EVERY_ORDER[] = {{QUEUE_THREADS, 0}, {QUEUE_EAGER, 0},  {QUEUE_LAZY, 0},  {QUEUE_SEEDED, 1},
                                    {QUEUE_SEEDED, 2},  {QUEUE_SEEDED, 3}, {QUEUE_SEEDED, 4}, {QUEUE_SEEDED, 5}};
enum { N_ORDERS = sizeof(EVERY_ORDER) / sizeof(EVERY_ORDER[0]) };

// A device without products of matrices. To be closed.
static inline void open_cpu(Device *device, Order order) {
    memset(device, 0, sizeof(*device));
    device->kind = device->real = DEVICE_CPU;
    device->threads = 1;
    device->queues = queues_open(order.order, order.seed);
}

static inline void close_cpu(Device *device) { queues_close(device->queues); }

// Memory of so many bytes of each tier, as if a plan had asked for it; no phase is ever begun. swap: a directory, or
// NULL: no disk. To be closed with memory_close(); `plan` must live as long.
static inline void open_memory(Memory *memory, Device *device, Ledger *plan, size_t n_bytes, const char *swap) {
    memset(plan, 0, sizeof(*plan));
    for (int t = 0; t < TIERS; t++) {
        plan->depth[t] = 256;
        if (t != TIER_DISK || swap) plan->phases[PHASE_SETUP].peak[t] = n_bytes;
    }
    memory_reserve(memory, device, plan, swap, 0);
}

#endif
