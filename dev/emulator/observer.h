// observer.h - lets the emulator watch what a program does to its memory (DeviceObserver, dev/device.h).
#ifndef OBSERVER_H
#define OBSERVER_H

#include "emulator.h"

static inline void observer_region(void *pointer, size_t n_bytes, const char *owner, void *stream) {
    if (owner) emulator_region(pointer, n_bytes, owner, stream);
    else emulator_region_end(pointer, stream);
}

static inline void observer_host(const void *pointer, size_t n_bytes, bool write) {
    if (write) emulator_host_writes(pointer, n_bytes);
    else emulator_host_reads(pointer, n_bytes);
}

static inline void observer_call(void *stream, const void *pointer, size_t n_bytes, bool write) {
    if (write) emulator_call_writes(stream, pointer, n_bytes);
    else emulator_call_reads(stream, pointer, n_bytes);
}

static const DeviceObserver EMULATOR_OBSERVER = {observer_region, observer_host, observer_call};

#endif
