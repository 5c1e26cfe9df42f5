// budget.h - what memory a run may take: of the flags, or of what is available; and whether a ledger fits.
#ifndef BUDGET_H
#define BUDGET_H

#include "devices.h"

typedef struct {
    size_t bytes[TIERS];  // that this rank may use of the device and the host
    bool shared;          // these are the same memory, and each has all of it
} Budget;

// The sizes of the flags, or this rank's part of what is available, less the headroom. Without such flags a CPU's
// "device" and host memory come out of the same RAM.
static inline void budget_open(Budget *budget, const Options *o, const Device *device, const Ranks *ranks) {
    const bool cpu = device->real == DEVICE_CPU;
    const double here = 1.0 / ranks->local_size, free_part = 1.0 - o->headroom / 100.0;
    const double available = (double)process_memory_available() * here;  // asked once: it changes all the time
    double on_device = o->device_memory, on_host = o->host_memory;
    if (on_device == 0) on_device = cpu ? available : (double)device_available(device);
    if (on_host == 0) {
        on_host = available;
        if (cpu && o->device_memory > 0) on_host -= fmin(on_host, o->device_memory);
    }
    memset(budget, 0, sizeof(*budget));
    budget->shared = cpu && o->device_memory == 0 && o->host_memory == 0;
    budget->bytes[TIER_DEVICE] = (size_t)(on_device * free_part);
    budget->bytes[TIER_HOST] = (size_t)(on_host * free_part);
}

// Bytes of a tier's memory that a run with this ledger needs; where device and host are one, of both.
static inline size_t budget_needed(const Budget *budget, const Ledger *ledger, Tier tier) {
    size_t other = budget->shared ? ledger_peak(ledger, tier == TIER_DEVICE ? TIER_HOST : TIER_DEVICE) : 0;
    return ledger_peak(ledger, tier) + other;
}

// Whether a run with this ledger fits.
static inline bool budget_fits(const Budget *budget, const Ledger *ledger) {
    return budget_needed(budget, ledger, TIER_DEVICE) <= budget->bytes[TIER_DEVICE] &&
           (budget->shared || budget_needed(budget, ledger, TIER_HOST) <= budget->bytes[TIER_HOST]);
}

#endif
