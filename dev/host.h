// host.h - what the host itself does to memory that the program planned.
//
// Reading tokens, first values, AdamW on the host, poison, sums of results and files are operations like any other:
// host_reads() or host_writes() stands before them. PLAN skips them; the other devices first wait for the queues that
// still use those bytes (device_note_use, device.h), and who watches the device is told.
#ifndef HOST_H
#define HOST_H

#include "device.h"

// Waits for the queues that still use these bytes of the host's memory: if `write`, those that read them, too. False on
// PLAN.
static inline bool host_touches(Device *device, const void *pointer, size_t n_bytes, bool write) {
    const char *begin = (const char *)pointer, *end = begin + n_bytes;
    if (device->kind == DEVICE_PLAN) return false;
    for (int q = 0; q < QUEUES && n_bytes > 0; q++) {
        DeviceUses *uses = &device->uses[q];
        for (size_t i = 0; i < uses->n; i++) {
            DeviceUse *use = &uses->uses[(uses->first + i) % DEVICE_USES];
            const bool concerned = use->begin < end && begin < use->end && (write || use->write);
            if (concerned && !device_event_passed(device, &use->done)) device_wait_event(device, &use->done);
        }
    }
    if (device->observer && n_bytes > 0) device->observer->host(pointer, n_bytes, write);
    return true;
}

// The host's memory that queues may use from here on: [pointer, pointer + n_bytes), pinned for a GPU; n_bytes 0: none
// any more, once all queues have left it.
static inline void host_memory(Device *device, void *pointer, size_t n_bytes) {
    if (device->host) {
        host_touches(device, device->host, (size_t)(device->host_end - device->host), true);
        if (device->kind == DEVICE_CUDA) CUDA_ONLY(CUDA_CHECK(cudaHostUnregister((void *)(uintptr_t)device->host)));
    }
    if (n_bytes > 0 && device->kind == DEVICE_CUDA) {
        CUDA_ONLY(CUDA_CHECK(cudaHostRegister(pointer, n_bytes, cudaHostRegisterDefault)));
    }
    device->host = (const char *)pointer;
    device->host_end = device->host + n_bytes;
    memset(device->uses, 0, sizeof(device->uses));
}

// Before the host reads these bytes of its memory. False on PLAN, which has none: then it must not.
static inline bool host_reads(Device *device, const void *pointer, size_t n_bytes) {
    return host_touches(device, pointer, n_bytes, false);
}

// Before the host writes them, or gives them back to whoever takes them next.
static inline bool host_writes(Device *device, const void *pointer, size_t n_bytes) {
    return host_touches(device, pointer, n_bytes, true);
}

#endif
