// emulator.h - what a test may ask of the CUDA emulator that its program is linked with.
//
// The program itself needs nothing of this: it calls the CUDA runtime and cuBLASLt, which the emulator stands in for.
// These functions tell the emulator what the CUDA API has no word for (which part of a slab belongs to which buffer),
// and tell the test what was done.
//
// Invariant: a fault that the emulator finds ends the process: one message on stderr that begins with "emulator: " and
// the name of the check, exit status 1.
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What was done since the start of the process or the last emulator_reset_counts().
typedef struct {
    uint64_t launches;                 // kernels
    uint64_t matmuls;                  // cublasLtMatmul calls
    uint64_t collectives;              // calls of NCCL that move data, also ncclSend and ncclRecv
    uint64_t sent_bytes;               // by this rank to others, each byte once where NCCL could do that
    uint64_t copies, copied_bytes;     // cudaMemcpy* and cudaMemset*
    uint64_t pageable_copies;          // asynchronous ones from or to host memory that is not pinned
    uint64_t warp_instructions;        // executed by warps
    uint64_t float_atomics;            // warp instructions: sums that depend on the order of threads
    uint64_t device_synchronisations;  // host waits for all streams; also the implicit ones of cudaFree and cudaMemcpy
    uint64_t stream_synchronisations;  // host waits for one stream or one event
    uint64_t allocations, frees;       // of device memory
    uint64_t host_allocations;         // of pinned host memory: allocated or registered
    uint64_t live_bytes;               // device memory allocated now; not reset
    double kernel_seconds;             // of processor time, spent executing kernels
} EmulatorCounts;

EmulatorCounts emulator_counts(void);
void emulator_reset_counts(void);

// Takes [pointer, pointer + n_bytes) out of a larger allocation as a buffer of its own, under this name (copied), in
// the order of `stream` (0: the legacy stream). From the first such call on, nothing in that allocation may be touched
// outside a region, a kernel may only touch regions that one of its arguments points into, and what a region holds at
// its beginning is uninitialised. Regions must not overlap; pointers are multiples of 16.
void emulator_region(void *pointer, size_t n_bytes, const char *name, void *stream);

// Gives the region that begins at `pointer` back, in the order of `stream`.
void emulator_region_end(void *pointer, void *stream);

// A name for an allocation, for messages. Does nothing but this.
void emulator_name(const void *pointer, const char *name);

// How many devices there are; before the first call of CUDA. EMULATOR_DEVICES says the same, 1 is the default. A
// process uses one of them.
void emulator_devices(int n);

// The host reads or writes pinned host memory: the calling thread now, or the host function of a stream that calls
// this. What the streams do with these bytes must be ordered with it.
void emulator_host_reads(const void *pointer, size_t n_bytes);
void emulator_host_writes(const void *pointer, size_t n_bytes);

// The host function that is launched on `stream` next reads or writes pinned host memory. Said before it is launched,
// so that it counts whenever the function may run.
void emulator_call_reads(void *stream, const void *pointer, size_t n_bytes);
void emulator_call_writes(void *stream, const void *pointer, size_t n_bytes);

// Called with the message before the process would end; it may longjmp out of a test, or return.
void emulator_on_fault(void (*handler)(const char *message));

#ifdef __cplusplus
}
#endif

#endif
