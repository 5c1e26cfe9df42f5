// config.h - what a run does: all that the training step depends on besides data and weights.
//
// job.h makes a Config of the command line; a plan is a function of it (plan.h), and what would fit is another Config,
// which config_flags() tells as flags.
#ifndef CONFIG_H
#define CONFIG_H

#include "kernels/attention.h"
#include "layout.h"
#include "levels.h"
#include "placement.h"
#include "schedule.h"

typedef struct {
    ModelShape shape;
    Dtype dtype;
    // Where memory goes
    size_t B, T;           // sequences per micro-batch of a rank, tokens per sequence
    size_t micro_batches;  // per step
    AttentionKind attention;
    Level recompute;
    size_t recompute_layers;  // for the first so many layers
    size_t head_chunks;
    Placement place;
    // What else the run does
    int64_t steps;
    size_t sample_length, n_prompt;  // tokens, of a sample in all and of its beginning; 0: no samples
    size_t validation_batches;       // 0: no validation
    bool save, load, resume;         // there will be checkpoints; weights come from one; and the moments, too
    // How it trains
    uint64_t seed;
    bool overfit;  // on the first batch only
    double clip, decay, temperature;
    Schedule schedule;
} Config;

// Recompute level of a layer: -r for the first --recompute-layers layers, nothing for the rest.
static inline Level config_level(const Config *config, size_t l) {
    return l < config->recompute_layers ? config->recompute : LEVEL_NOTHING;
}

// Bytes of the residual stream of a micro-batch, (B,T,C).
static inline size_t config_stream_bytes(const Config *config) {
    return config->B * config->T * config->shape.C * number_size(config->dtype);
}

// Sequences of a step, of all ranks.
static inline size_t config_windows(const Config *config, int n_ranks) {
    return config->micro_batches * config->B * (size_t)n_ranks;
}

// Tokens of a step, of all ranks.
static inline size_t config_tokens(const Config *config, int n_ranks) {
    return config_windows(config, n_ranks) * config->T;
}

// The same run without memory flags.
static inline Config config_plain(const Config *config) {
    Config plain = *config;
    plain.recompute = LEVEL_NOTHING;
    plain.head_chunks = 1;
    memset(&plain.place, 0, sizeof(plain.place));
    return plain;
}

// The flags of a configuration that was found for another one.
static inline void config_flags(const Config *c, const Config *asked, int n_ranks, char *text, size_t size) {
    char offload[128];
    int n = snprintf(text, size, "-b %zu -t %zu -r %d", c->B, c->T, (int)c->recompute);
    if (c->micro_batches > 1) n += snprintf(text + n, size - (size_t)n, " -d %zu", config_tokens(c, n_ranks));
    if (c->head_chunks > 1) n += snprintf(text + n, size - (size_t)n, " --head-chunks %zu", c->head_chunks);
    placement_text(&c->place, offload, sizeof(offload));
    if (offload[0]) n += snprintf(text + n, size - (size_t)n, " --offload %s", offload);
    if (c->place.stage > 0) n += snprintf(text + n, size - (size_t)n, " -z %d", c->place.stage);
    if (c->attention != asked->attention) snprintf(text + n, size - (size_t)n, " --attention fused");
}

// ---------------------------------------------------------------------------------------------------------------
// Least costs of a step

// Model operations per token of a training step: 6 N + 6 L C T, the causal half of attention counted once.
static inline double config_flops_per_token(const Config *config) {
    const ModelShape *s = &config->shape;
    return 6.0 * (double)layout_parameters(s) + 6.0 * (double)(s->L * s->C * config->T);
}

// Bytes that a rank must send in a step: a reduce-scatter of the gradients (fp32) and a gather of the gradients or the
// weights, (N-1)/N of each. More micro-batches of stage 2 and 3, and the gathers of stage 3, come on top.
static inline size_t config_least_sent(const Config *c, int n_ranks) {
    size_t N = (size_t)n_ranks, n = layout_parameters(&c->shape);
    size_t gathered = placement_updates_shard(&c->place) ? number_size(c->dtype) : sizeof(float);
    return n * (N - 1) / N * (sizeof(float) + gathered);
}

// Bytes that a step must write to the disk: what lives there and changes, once.
static inline size_t config_least_written(const Config *c, int n_ranks) {
    const Placement *p = &c->place;
    size_t N = (size_t)n_ranks, n = layout_parameters(&c->shape), size = number_size(c->dtype), n_bytes = 0;
    for (int home = 0; home < HOMES; home++) {
        const size_t n_here = n / (placement_sharded(p, home) ? N : 1);
        if (placement_tier(p, home) != TIER_DISK || (home == HOME_MASTER && c->dtype == FP32)) continue;
        if (home == HOME_WEIGHTS) n_bytes += n_here * size;
        else n_bytes += n_here * sizeof(float) * (home == HOME_GRADIENTS ? c->micro_batches : 1);
    }
    if (p->activations == TIER_DISK) n_bytes += c->shape.L * config_stream_bytes(c) * c->micro_batches;
    return n_bytes;
}

#endif
