// context.h - where an operation of the model runs: on which device, with which memory for its scratch, and the type
// that activations and weights are stored in.
//
// Every operation that the model calls takes it first. What works on host memory, or on fp32 alone, takes a Device.
#ifndef CONTEXT_H
#define CONTEXT_H

#include "memory.h"

typedef struct {
    Device *device;
    Memory *memory;
    Dtype dtype;
} Context;

#endif
