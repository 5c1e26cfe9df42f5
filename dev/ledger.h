// ledger.h - how memory is counted: by tier (where), kind (what for) and phase (when).
//
// A ledger is what a pass over a run has taken: of the planning pass it is the plan, of the run it is what was
// measured.
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "number.h"

typedef enum { TIER_DEVICE, TIER_HOST, TIER_DISK, TIERS } Tier;

typedef enum {
    KIND_WEIGHTS,               // in the compute type, what forward and backward read
    KIND_MASTER,                // fp32 weights, where the compute type is shorter
    KIND_GRADIENTS,             // of weights, fp32
    KIND_MOMENTS,               // AdamW's m and v, fp32
    KIND_ACTIVATIONS,           // what the forward leaves for the backward
    KIND_ACTIVATION_GRADIENTS,  // what flows back
    KIND_LOGITS,
    KIND_SCRATCH,               // within one layer or one operation
    KIND_WORKSPACE,             // of products of matrices: a library's scratchpad, or our packing buffers
    KIND_COLLECTIVE,            // pieces of gradients from other ranks
    KIND_DATA,                  // tokens and their positions, targets, losses
    KIND_FILES,                 // buffers of checkpoints on their way to and from the disk
    KINDS
} Kind;

typedef enum {
    PHASE_SETUP,
    PHASE_FORWARD,
    PHASE_HEAD,  // final LayerNorm and classifier, forward and backward
    PHASE_BACKWARD,
    PHASE_UPDATE,
    PHASE_VALIDATION,
    PHASE_SAMPLE,
    PHASE_SAVE,
    PHASES
} Phase;

// Names, as they stand in tables and in memory.csv.

static inline const char *ledger_tier_name(int tier) {
    switch ((Tier)tier) {
    case TIER_DEVICE: return "device";
    case TIER_HOST: return "host";
    case TIER_DISK: return "disk";
    case TIERS: break;
    }
    return "";
}

static inline const char *ledger_kind_name(int kind) {
    switch ((Kind)kind) {
    case KIND_WEIGHTS: return "weights";
    case KIND_MASTER: return "master weights";
    case KIND_GRADIENTS: return "gradients";
    case KIND_MOMENTS: return "moments";
    case KIND_ACTIVATIONS: return "activations";
    case KIND_ACTIVATION_GRADIENTS: return "activation gradients";
    case KIND_LOGITS: return "logits";
    case KIND_SCRATCH: return "scratch";
    case KIND_WORKSPACE: return "workspace";
    case KIND_COLLECTIVE: return "collectives";
    case KIND_DATA: return "data";
    case KIND_FILES: return "files";
    case KINDS: break;
    }
    return "";
}

static inline const char *ledger_phase_name(int phase) {
    switch ((Phase)phase) {
    case PHASE_SETUP: return "setup";
    case PHASE_FORWARD: return "forward";
    case PHASE_HEAD: return "head";
    case PHASE_BACKWARD: return "backward";
    case PHASE_UPDATE: return "update";
    case PHASE_VALIDATION: return "validation";
    case PHASE_SAMPLE: return "sample";
    case PHASE_SAVE: return "save";
    case PHASES: break;
    }
    return "";
}

// What one phase takes. `kinds` is the state at the moment when the tier peaks, so its rows add up to the peak.
typedef struct {
    bool occurred;
    uint64_t trace;  // hash of all takes in order, of one occurrence
    size_t peak[TIERS];
    size_t kinds[TIERS][KINDS];
    Kind top[TIERS];  // kind of the topmost entry of the stack at the peak
} PhaseLedger;

typedef struct {
    PhaseLedger phases[PHASES];
    size_t depth[TIERS];  // the most buffers on the stack
} Ledger;

// The most bytes of a tier that are in use at a time.
static inline size_t ledger_peak(const Ledger *ledger, Tier tier) {
    size_t peak = 0;
    for (int p = 0; p < PHASES; p++) peak = size_max(peak, ledger->phases[p].peak[tier]);
    return peak;
}

// The phase in which that is.
static inline Phase ledger_peak_phase(const Ledger *ledger, Tier tier) {
    int best = 0;
    for (int p = 1; p < PHASES; p++) {
        if (ledger->phases[p].peak[tier] > ledger->phases[best].peak[tier]) best = p;
    }
    return (Phase)best;
}

#endif
