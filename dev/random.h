// random.h - random numbers: a function of (seed, stream, index) and nothing else.
//
// So no state has to be saved, and any rank or thread can draw any element. Mixing: the finaliser of splitmix64, once
// per key.
#ifndef RANDOM_H
#define RANDOM_H

#include "number.h"

HOST_DEVICE uint64_t random_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

HOST_DEVICE uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    return random_mix(random_mix(random_mix(seed) ^ stream) ^ index);
}

// Uniform in [0, 1), 53 bits.
static inline double random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

// Two independent standard normal numbers (Box-Muller).
static inline void random_normal_pair(uint64_t seed, uint64_t stream, uint64_t index, float *pair) {
    uint64_t bits = random_bits(seed, stream, index);
    double radius = sqrt(-2.0 * log(((double)(bits >> 32) + 0.5) * 0x1p-32));
    double angle = 6.283185307179586 * ((double)(bits & 0xffffffffu) * 0x1p-32);
    pair[0] = (float)(radius * cos(angle));
    pair[1] = (float)(radius * sin(angle));
}

// Position of element `index` in a random order of 0 ... n-1 (a bijection): a four-round Feistel network over the
// next even number of bits, walked until it lands below n.
static inline uint64_t random_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index) {
    int half = 1;
    while (half < 31 && ((uint64_t)1 << (2 * half)) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t next = left ^ (random_bits(seed, stream * 4 + round, right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}

#endif
