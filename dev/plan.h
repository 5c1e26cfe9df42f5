// plan.h - what a run does, what it costs, whether it fits, and what would.
//
// A Config is all that the training step depends on besides data and weights. The same step run on the PLAN device
// (device.h) says what it takes of each tier; here that is held against what there is, and changed until it fits.
#ifndef PLAN_H
#define PLAN_H

#include "devices.h"
#include "kernels/attention.h"
#include "placement.h"

// What a run does, after the flags, the data and a checkpoint have been looked at.
typedef struct {
    ModelShape shape;
    Number type;
    size_t B, T;           // sequences per micro-batch of a rank, tokens per sequence
    size_t micro_batches;  // per step
    AttentionKind attention;
    int recompute;            // level of -r
    size_t recompute_layers;  // for the first so many layers
    size_t head_chunks;
    Placement place;
    int64_t steps;
    size_t sample_length;       // 0: no samples
    size_t validation_batches;  // 0: no validation
    bool save, load, resume;    // there will be checkpoints; weights come from one; and the moments, too
} Config;

enum { LEVEL_BLOCKS = 3 };  // the level of -r that keeps nothing of a layer but its input

// Recompute level of a layer: -r for the first --recompute-layers layers, 0 for the rest.
static inline int config_level(const Config *config, size_t l) {
    return l < config->recompute_layers ? config->recompute : 0;
}

// ---------------------------------------------------------------------------------------------------------------
// Least costs of a step

// Model operations per token of a training step: 6 N + 6 L C T, the causal half of attention counted once.
static inline double plan_flops_per_token(const Config *config) {
    const ModelShape *s = &config->shape;
    return 6.0 * (double)store_parameters(s) + 6.0 * (double)(s->L * s->C * config->T);
}

// Bytes that a rank must send in a step: a reduce-scatter of the gradients (fp32) and a gather of the gradients or the
// weights, (N-1)/N of each. More micro-batches of stage 2 and 3, and the gathers of stage 3, come on top.
static inline size_t plan_least_sent(const Config *c, int n_ranks) {
    size_t N = (size_t)n_ranks, n = store_parameters(&c->shape);
    size_t gathered = c->place.stage == 0 ? sizeof(float) : number_size(c->type);
    return n * (N - 1) / N * (sizeof(float) + gathered);
}

// Bytes that a step must write to the disk: what lives there and changes, once.
static inline size_t plan_least_written(const Config *c, int n_ranks) {
    const Placement *p = &c->place;
    size_t N = (size_t)n_ranks, n = store_parameters(&c->shape), size = number_size(c->type), n_bytes = 0;
    if (p->optimizer == TIER_DISK) {
        n_bytes += n / (p->stage >= 1 ? N : 1) * sizeof(float) * (c->type == FP32 ? 2 : 3);
    }
    if (p->gradients == TIER_DISK) n_bytes += n / (p->stage >= 2 ? N : 1) * sizeof(float) * c->micro_batches;
    if (p->weights == TIER_DISK) n_bytes += n / (p->stage >= 3 ? N : 1) * size;
    if (p->activations == TIER_DISK) n_bytes += c->shape.L * c->B * c->T * c->shape.C * size * c->micro_batches;
    return n_bytes;
}

// ---------------------------------------------------------------------------------------------------------------
// What there is

typedef struct {
    size_t bytes[TIERS];  // that this rank may use of the device and the host
    bool shared;          // these are the same memory, and each has all of it
} Budget;

// The sizes of the flags, or this rank's part of what is available, less the headroom. Without such flags a CPU's
// "device" and host memory come out of the same RAM.
static inline void budget_open(Budget *budget, const Options *o, const Device *device, const Ranks *ranks) {
    const bool cpu = device->real == DEVICE_CPU;
    const double here = 1.0 / ranks->local_size, free_part = 1.0 - o->headroom / 100.0;
    double on_device = o->device_memory, on_host = o->host_memory;
    if (on_device == 0) on_device = (double)device_available(device) * (cpu ? here : 1.0);
    if (on_host == 0) {
        on_host = (double)device_memory_available() * here;
        if (cpu && o->device_memory > 0) on_host -= fmin(on_host, o->device_memory);
    }
    memset(budget, 0, sizeof(*budget));
    budget->shared = cpu && o->device_memory == 0 && o->host_memory == 0;
    budget->bytes[TIER_DEVICE] = (size_t)(on_device * free_part);
    budget->bytes[TIER_HOST] = (size_t)(on_host * free_part);
}

static inline size_t budget_needed(const Budget *budget, const Ledger *ledger, Tier tier) {
    size_t other = budget->shared ? ledger_peak(ledger, tier == TIER_DEVICE ? TIER_HOST : TIER_DEVICE) : 0;
    return ledger_peak(ledger, tier) + other;
}

static inline bool budget_fits(const Budget *budget, const Ledger *ledger) {
    return budget_needed(budget, ledger, TIER_DEVICE) <= budget->bytes[TIER_DEVICE] &&
           (budget->shared || budget_needed(budget, ledger, TIER_HOST) <= budget->bytes[TIER_HOST]);
}

// ---------------------------------------------------------------------------------------------------------------
// What would fit

// The next thing to try with a run whose ledger does not fit, the cheapest in time first; false if there is nothing
// left. Where device and host are the same memory, moving from one to the other is no help.
static inline bool plan_relax(Config *config, const Budget *budget, const Ledger *ledger) {
    const bool shared = budget->shared;
    const bool host_full = shared || budget_needed(budget, ledger, TIER_HOST) > budget->bytes[TIER_HOST];
    if (config->recompute < LEVEL_BLOCKS || config->recompute_layers < config->shape.L) {
        config->recompute = config->recompute_layers < config->shape.L ? config->recompute : config->recompute + 1;
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

// The flags of a configuration that was found for another one.
static inline void plan_flags(const Config *c, const Config *asked, int n_ranks, char *text, size_t size) {
    char offload[128];
    int n = snprintf(text, size, "-b %zu -t %zu -r %d", c->B, c->T, c->recompute);
    if (c->micro_batches > 1) {
        n += snprintf(text + n, size - (size_t)n, " -d %zu", c->B * c->T * c->micro_batches * (size_t)n_ranks);
    }
    if (c->head_chunks > 1) n += snprintf(text + n, size - (size_t)n, " --head-chunks %zu", c->head_chunks);
    placement_text(&c->place, offload, sizeof(offload));
    if (offload[0]) n += snprintf(text + n, size - (size_t)n, " --offload %s", offload);
    if (c->place.stage > 0) n += snprintf(text + n, size - (size_t)n, " -z %d", c->place.stage);
    if (c->attention != asked->attention) snprintf(text + n, size - (size_t)n, " --attention fused");
}

#endif
