// placement.h - where everything has its home: the tier of each kind of state, and the stage of ZeRO.
#ifndef PLACEMENT_H
#define PLACEMENT_H

#include <stdio.h>

#include "ledger.h"

typedef struct {
    int stage;  // of ZeRO; 0 for one rank
    Tier optimizer, gradients, weights, activations;
    bool update_on_host;  // where AdamW runs
} Placement;

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
        n += (size_t)snprintf(text + n, size - n, "%s%s=%s", n ? "," : "", kinds[i].name, TIER_NAMES[kinds[i].tier]);
    }
}

#endif
