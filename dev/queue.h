// queue.h - which queues a device has: where operations wait in order, one behind the other, while other queues go on.
//
// The CPU's queues are threads (queue_cpu.h), CUDA's are streams (cuda.h); events order them (device.h).
#ifndef QUEUE_H
#define QUEUE_H

typedef enum {
    QUEUE_COMPUTE,
    QUEUE_FETCH,       // into the memory that computes
    QUEUE_STASH,       // out of it
    QUEUE_COLLECTIVE,  // between ranks
    QUEUE_READ,        // the disk's side of transfers between a GPU and the disk
    QUEUE_WRITE,
    QUEUES
} Queue;

enum { QUEUE_ARGUMENT = 128 };  // bytes that a call on a queue may have as its argument

#endif
