// placement.h - from the flags -z, --offload and --update to where everything has its home.
#ifndef PLACEMENT_H
#define PLACEMENT_H

#include "flags.h"
#include "store.h"

// One "KIND=TIER" of --offload.
static inline void placement_set(Placement *place, const char *word, size_t n) {
    static const char *const kinds[] = {"optimizer", "gradients", "weights", "activations"};
    Tier *const tiers[] = {&place->optimizer, &place->gradients, &place->weights, &place->activations};
    const char *equals = (const char *)memchr(word, '=', n);
    size_t length = equals ? (size_t)(equals - word) : n, rest = n - length;
    Tier tier = rest == 5 && strncmp(equals, "=host", 5) == 0   ? TIER_HOST
                : rest == 5 && strncmp(equals, "=disk", 5) == 0 ? TIER_DISK
                                                                : TIER_DEVICE;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (length != strlen(kinds[i]) || strncmp(word, kinds[i], length) != 0) continue;
        if (tier == TIER_DEVICE) break;
        if (*tiers[i] != TIER_DEVICE) flags_fail("--offload names %s twice", kinds[i]);
        *tiers[i] = tier;
        return;
    }
    flags_fail("--offload %.*s: optimizer, gradients, weights or activations, = host or disk", (int)n, word);
}

// What does not make sense is refused, with the reason.
static inline void placement_open(Placement *place, const Options *o, int n_ranks, bool keeps_inputs_only) {
    memset(place, 0, sizeof(*place));
    place->optimizer = place->gradients = place->weights = place->activations = TIER_DEVICE;
    place->stage = n_ranks > 1 ? (int)o->zero : 0;
    for (const char *word = o->offload; word && *word;) {
        size_t n = strcspn(word, ",");
        placement_set(place, word, n);
        word += n + (word[n] == ',');
        if (!*word && word[-1] == ',') flags_fail("--offload ends with a comma");
    }
    if (place->activations != TIER_DEVICE && !keeps_inputs_only) {
        flags_fail("--offload activations: sends away the inputs of layers, which are all that -r 3 keeps; add -r 3 "
                   "for all layers");
    }
    place->update_on_host = strcmp(o->update, "auto") == 0 ? place->optimizer != TIER_DEVICE
                                                           : strcmp(o->update, "host") == 0;
    if (place->update_on_host && place->optimizer == TIER_DEVICE) {
        flags_fail("--update host: the states are on the device, where the update is; add --offload optimizer=host");
    }
}

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
