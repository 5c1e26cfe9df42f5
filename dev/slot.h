// slot.h - room for one block on its way: filled by one queue, read by another, and filled again only when it is empty.
//
//     fetch     | fill it            |                      | fill it with the next
//     compute                        | read it              |
//                             filled ^              drained ^
//
// Who fills it says slot_fetch() before and slot_filled() after; who reads it says slot_ready() before and slot_done()
// after. A block that was made in a slot goes away by slot_send(): filled by the queue that made it, read by the one
// that takes it away. These are all events that a slot has; everything that travels (batches, weights, gradients,
// activations, pieces of the update, bounced pieces of the disk) goes by them.
#ifndef SLOT_H
#define SLOT_H

#include "device.h"

typedef struct {
    char *data;
    size_t block;  // what it holds, or will once it is filled
    bool valid;    // it holds it
    DeviceEvent *filled, *drained;
} Slot;

// An empty slot.
static inline void slot_open(Slot *slot, Device *device, void *data) {
    memset(slot, 0, sizeof(*slot));
    slot->data = (char *)data;
    slot->filled = device_event(device);
    slot->drained = device_event(device);
}

// Whether the block is in the slot, or on its way into it.
static inline bool slot_holds(const Slot *slot, size_t block) { return slot->valid && slot->block == block; }

// The queue may write the slot from here on: whoever read it is done.
static inline void slot_fetch(Device *device, Slot *slot, Queue queue) { device_await(device, queue, slot->drained); }

// What the queue was told so far has filled the slot.
static inline void slot_filled(Device *device, Slot *slot, Queue queue) { device_record(device, queue, slot->filled); }

// The queue may read the slot from here on.
static inline void slot_ready(Device *device, Slot *slot, Queue queue) { device_await(device, queue, slot->filled); }

// The queue was told all that it does with the slot.
static inline void slot_done(Device *device, Slot *slot, Queue queue) { device_record(device, queue, slot->drained); }

// What `from` was told so far has made what is in the slot; `to` may take it away.
static inline void slot_send(Device *device, Slot *slot, Queue from, Queue to) {
    slot_filled(device, slot, from);
    slot_ready(device, slot, to);
}

#endif
