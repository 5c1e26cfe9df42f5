// size.h - arithmetic of sizes.
#ifndef SIZE_H
#define SIZE_H

#include <stddef.h>

#include "host_device.h"

HOST_DEVICE size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
HOST_DEVICE size_t size_max(size_t a, size_t b) { return a > b ? a : b; }

// a / b, rounded up; b > 0.
HOST_DEVICE size_t size_ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

// The smallest multiple of `multiple` that is at least a.
HOST_DEVICE size_t size_round_up(size_t a, size_t multiple) { return size_ceil_div(a, multiple) * multiple; }

// In MiB, for people.
static inline double size_mib(size_t n_bytes) { return (double)n_bytes / (1024.0 * 1024.0); }

#endif
