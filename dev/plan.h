// plan.h - Config -> Ledger: what a run takes, a pure function; whether it fits, and what would.
//
// The training step itself, and all else that the run does, is called once on a PLAN device with a memory that has
// nothing behind it (device.h, memory.h); what that leaves in the ledger is the plan. Nothing of the run's own is
// touched.
#ifndef PLAN_H
#define PLAN_H

#include "budget.h"
#include "config.h"

typedef struct {
    Ledger ledger;
    double flops, bytes;  // of a step: floating-point operations, bytes that operations read and write
} Plan;

// Does everything once that a run of `config` will do, on a PLAN device; leaves the costs of the step in `plan`.
typedef void (*PlanPass)(const Config *config, Device *device, Memory *memory, Ranks *ranks, Plan *plan);

// For what plans are made.
typedef struct {
    const Device *device;
    int n_ranks;
    PlanPass pass;
} Planner;

// matmul: the device's own products, if this is the plan of the run, which will need those that it finds; else NULL.
static inline void plan_make(const Planner *planner, const Config *config, struct Matmul *matmul, Plan *plan) {
    Device device;
    Memory memory;
    Ranks ranks;
    memset(plan, 0, sizeof(*plan));
    device_open_plan(&device, planner->device, matmul);
    memory_open_plan(&memory, &device);
    ranks_open_plan(&ranks, planner->n_ranks);
    planner->pass(config, &device, &memory, &ranks, plan);
    plan->ledger = memory.ledger;
    memory_close(&memory);
    device_close_plan(&device, matmul);
}

// ---------------------------------------------------------------------------------------------------------------
// What would fit

// The next thing to try with a run whose ledger does not fit, the cheapest in time first; false if there is nothing
// left. Where device and host are the same memory, moving from one to the other is no help.
static inline bool plan_relax(Config *config, const Budget *budget, const Ledger *ledger) {
    const bool shared = budget->shared;
    const bool host_full = shared || budget_needed(budget, ledger, TIER_HOST) > budget->bytes[TIER_HOST];
    if (config->recompute < LEVEL_BLOCKS || config->recompute_layers < config->shape.L) {
        if (config->recompute_layers == config->shape.L) config->recompute = (Level)(config->recompute + 1);
        config->recompute_layers = config->shape.L;
    } else if (config->attention == ATTENTION_PLAIN) {
        config->attention = ATTENTION_FUSED;
    } else if (config->head_chunks < 16 && config->head_chunks < config->B * config->T) {
        config->head_chunks *= 2;
    } else if (!shared && config->place.optimizer == TIER_DEVICE) {
        config->place.optimizer = TIER_HOST;
        config->place.update_on_host = true;
    } else if (host_full && config->place.optimizer != TIER_DISK) {
        config->place.optimizer = TIER_DISK;
        config->place.update_on_host = true;
    } else if (config->B % 2 == 0) {
        config->B /= 2;
        config->micro_batches *= 2;
    } else if (!shared && config->place.activations == TIER_DEVICE) {
        config->place.activations = TIER_HOST;
    } else if (!shared && config->place.gradients == TIER_DEVICE) {
        config->place.gradients = TIER_HOST;
    } else if (!shared && config->place.weights == TIER_DEVICE) {
        config->place.weights = TIER_HOST;
    } else {
        return false;
    }
    return true;
}

// Looks for flags with which a run that takes `ledger` fits; writes them to `text` (size). False if there are none;
// *least: the least that it found to need of `tier`.
static inline bool plan_search(const Planner *planner, const Config *asked, const Ledger *ledger, const Budget *budget,
                               Tier tier, size_t *least, char *text, size_t size) {
    Config config = *asked;
    Plan plan;
    plan.ledger = *ledger;
    *least = budget_needed(budget, &plan.ledger, tier);
    while (plan_relax(&config, budget, &plan.ledger)) {
        plan_make(planner, &config, NULL, &plan);
        *least = size_min(*least, budget_needed(budget, &plan.ledger, tier));
        if (!budget_fits(budget, &plan.ledger)) continue;
        config_flags(&config, asked, planner->n_ranks, text, size);
        return true;
    }
    return false;
}

// Why a run does not fit, and with which flags it would.
static inline void plan_refusal(const Planner *planner, const Config *config, const Ledger *ledger,
                                const Budget *budget, double headroom, char *text, size_t size) {
    const bool device_fits = budget_needed(budget, ledger, TIER_DEVICE) <= budget->bytes[TIER_DEVICE];
    const Tier tier = device_fits ? TIER_HOST : TIER_DEVICE;
    const size_t usable = budget->bytes[tier], needed = budget_needed(budget, ledger, tier);
    size_t least;
    char flags[256];
    int n = snprintf(text, size,
                     "does not fit%s: the plan needs %zu bytes (%.1f MiB, peak in phase %s), %zu bytes (%.1f MiB) are "
                     "usable (%.3g %% headroom). ", tier == TIER_HOST ? " in the host's memory" : "", needed,
                     size_mib(needed), ledger_phase_name(ledger_peak_phase(ledger, tier)), usable, size_mib(usable),
                     headroom);
    if (plan_search(planner, config, ledger, budget, tier, &least, flags, sizeof(flags))) {
        snprintf(text + n, size - (size_t)n, "This would fit: %s", flags);
    } else {
        snprintf(text + n, size - (size_t)n, "No flags make it fit: the least is %.1f MiB on the %s. Take a smaller "
                 "-e, -t or --vocab", size_mib(least), ledger_tier_name(tier));
    }
}

// A configuration that needs less memory.
static inline Config plan_next(const Config *config) {
    Config next = *config;
    next.recompute = LEVEL_BLOCKS;
    next.recompute_layers = next.shape.L;
    next.head_chunks = size_max(next.head_chunks, 8);
    return next;
}

// A command that needs less memory than a run of `config`, to `text` (size); returns its peak on the device, bytes.
static inline size_t plan_suggest(const Planner *planner, const Config *config, const char *model, char *text,
                                  size_t size) {
    const Config next = plan_next(config);
    Plan plan;
    plan_make(planner, &next, NULL, &plan);
    int n = snprintf(text, size, "./train_gpt -e %s ", model);
    config_flags(&next, config, planner->n_ranks, text + n, size - (size_t)n);
    return ledger_peak(&plan.ledger, TIER_DEVICE);
}

#endif
