// warp.cuh - sums and maxima over the lanes of a warp, in fixed orders; every lane gets the result.
#ifndef WARP_CUH
#define WARP_CUH

#include "../cuda.h"

__device__ static inline float warp_sum(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

__device__ static inline float warp_maximum(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = other > x ? other : x;
    }
    return x;
}

#endif
