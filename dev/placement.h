// placement.h - where everything has its home: the tier of each kind of state, and the stage of ZeRO.
#ifndef PLACEMENT_H
#define PLACEMENT_H

#include <stdbool.h>
#include <stdio.h>

#include "ledger.h"

typedef struct {
    int stage;  // of ZeRO; 0 for one rank
    Tier optimizer, gradients, weights, activations;
    bool update_on_host;  // where AdamW runs
} Placement;

// What every block of parameters is made of, each with a home of its own.
enum { HOME_WEIGHTS, HOME_GRADIENTS, HOME_MASTER, HOME_M, HOME_V, HOMES };

// The tier of a home.
static inline Tier placement_tier(const Placement *place, int home) {
    return home == HOME_WEIGHTS ? place->weights : home == HOME_GRADIENTS ? place->gradients : place->optimizer;
}

// Whether a rank's home holds its shard of every block, not all of it.
static inline bool placement_sharded(const Placement *place, int home) {
    return place->stage >= (home == HOME_WEIGHTS ? 3 : home == HOME_GRADIENTS ? 2 : 1);
}

// Whether a rank updates its shard of every block, not all of it; then it needs no other gradients.
static inline bool placement_updates_shard(const Placement *place) { return placement_sharded(place, HOME_M); }

// Whether anything has its home on the disk.
static inline bool placement_uses_disk(const Placement *place) {
    return place->optimizer == TIER_DISK || place->gradients == TIER_DISK || place->weights == TIER_DISK ||
           place->activations == TIER_DISK;
}

// "weights=host,optimizer=disk", empty if everything is on the device.
static inline void placement_text(const Placement *place, char *text, size_t size) {
    const struct {
        const char *name;
        Tier tier;
    } kinds[] = {{"optimizer", place->optimizer}, {"gradients", place->gradients}, {"weights", place->weights},
                 {"activations", place->activations}};
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < 4; i++) {
        if (kinds[i].tier == TIER_DEVICE) continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s=%s", n ? "," : "", kinds[i].name,
                              ledger_tier_name(kinds[i].tier));
    }
}

#endif
