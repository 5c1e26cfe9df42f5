// context.h - what every operation of the model needs beside its operands: a device, memory for scratch, a dtype.
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
