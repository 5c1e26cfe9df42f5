// transfer.h - bytes on their way from tier to tier, on a queue.
//
// Between the device and the host a transfer is one copy; to and from the disk it is a call of the queue's thread.
// Between a GPU and the disk there is no direct way, so the bytes go in pieces through two buffers of the host's, and
// the disk has one while the bus has the other; the disk's side has a queue of its own, which begins no sooner than
// `queue` would:
//
//     READ      | piece 0 -> a | piece 1 -> b | piece 2 -> a | ...         `queue`  | a -> GPU | b -> GPU | ...
#ifndef TRANSFER_H
#define TRANSFER_H

#include "memory.h"
#include "slot.h"

enum { TRANSFER_PIECE = 4 << 20 };  // bytes through a buffer at a time

// The way of one queue's transfers between a GPU and the disk.
typedef struct {
    Slot slots[2];
    DeviceEvent *reached;  // the other side has come as far
    size_t n_pieces;
} TransferBounce;

typedef struct {
    Memory *memory;
    TransferBounce bounce[QUEUES];
} Transfers;

// disk: something may have its home there; then, on a GPU, two buffers are kept for each queue that may ask.
static inline void transfers_open(Transfers *transfers, Memory *memory, bool disk) {
    memset(transfers, 0, sizeof(*transfers));
    transfers->memory = memory;
    for (int q = QUEUE_FETCH; q <= QUEUE_COLLECTIVE && disk && memory->device->real == DEVICE_CUDA; q++) {
        for (int i = 0; i < 2; i++) {
            slot_open(&transfers->bounce[q].slots[i], memory->device,
                      memory_keep_aligned(memory, TIER_HOST, KIND_FILES, TRANSFER_PIECE, MEMORY_PAGE,
                                          "between the disk and the device"));
        }
        transfers->bounce[q].reached = device_event(memory->device);
    }
}

typedef struct {
    Disk *disk;
    char *memory;
    size_t offset, n_bytes;
} TransferDisk;

static inline void transfer_read(void *argument) {
    const TransferDisk *c = (const TransferDisk *)argument;
    disk_read(c->disk, c->memory, c->offset, c->n_bytes);
}

static inline void transfer_write(void *argument) {
    const TransferDisk *c = (const TransferDisk *)argument;
    disk_write(c->disk, c->memory, c->offset, c->n_bytes);
}

// The host's bytes to a place on the disk, or back.
static inline void transfer_disk(Memory *memory, Queue queue, char *host, const char *place, size_t n_bytes,
                                 bool write) {
    Device *device = memory->device;
    TransferDisk call;
    memset(&call, 0, sizeof(call));
    call.disk = &memory->disk;
    call.memory = host;
    call.offset = (size_t)(place - memory->slabs[TIER_DISK].base);
    call.n_bytes = n_bytes;
    if (device->kind == DEVICE_PLAN) {
        if (write) memory->disk.n_written += n_bytes;
        else memory->disk.n_read += n_bytes;
        return;
    }
    if (device->observer) device->observer->call(device_stream(device, queue), host, n_bytes, !write);
    device_call(device, queue, write ? transfer_write : transfer_read, &call, sizeof(call));
    device_note_use(device, queue, host, n_bytes, !write);
}

static inline void transfer_bounce(Transfers *transfers, Queue queue, char *on_device, const char *place,
                                   size_t n_bytes, bool write) {
    Device *device = transfers->memory->device;
    TransferBounce *bounce = &transfers->bounce[queue];
    const Queue first = write ? queue : QUEUE_READ, second = write ? QUEUE_WRITE : queue;
    if (!write) {
        device_record(device, queue, bounce->reached);
        device_await(device, QUEUE_READ, bounce->reached);
    }
    for (size_t done = 0, n; done < n_bytes; done += n) {
        Slot *slot = &bounce->slots[bounce->n_pieces++ % 2];
        n = size_min(TRANSFER_PIECE, n_bytes - done);
        slot_fetch(device, slot, first);
        if (write) device_copy(device, queue, slot->data, on_device + done, n);
        else transfer_disk(transfers->memory, QUEUE_READ, slot->data, place + done, n, false);
        slot_send(device, slot, first, second);
        if (write) transfer_disk(transfers->memory, QUEUE_WRITE, slot->data, place + done, n, true);
        else device_copy(device, queue, on_device + done, slot->data, n);
        slot_done(device, slot, second);
    }
    if (!write || n_bytes == 0) return;
    device_record(device, QUEUE_WRITE, bounce->reached);
    device_await(device, queue, bounce->reached);  // what follows on `queue` finds it written
}

// n_bytes from one place to another, on a queue. Places on the disk, and those that are exchanged with it, are
// multiples of MEMORY_PAGE.
static inline void transfer(Transfers *transfers, Queue queue, Tier to_tier, void *to, Tier from_tier, const void *from,
                            size_t n_bytes) {
    Memory *memory = transfers->memory;
    const bool write = to_tier == TIER_DISK;
    if (!write && from_tier != TIER_DISK) {
        device_copy(memory->device, queue, to, from, n_bytes);
        return;
    }
    char *other = (char *)(uintptr_t)(write ? from : to);
    const char *place = (const char *)(write ? to : from);
    if (memory_on_gpu(memory, write ? from_tier : to_tier)) {
        transfer_bounce(transfers, queue, other, place, n_bytes, write);
    } else {
        transfer_disk(memory, queue, other, place, n_bytes, write);
    }
}

#endif
