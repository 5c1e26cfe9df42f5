// witness.h - the proof that the ledger is true: memory that nobody should have touched still holds poison.
//
// In a phase's first occurrence the free middle of a slab (memory.h) is filled with poison before; afterwards nothing
// may be found touched beyond the ledger's peak, and the touched top must lie within MEMORY_ALIGN bytes of it:
//
//     kept | poison poison poison poison | ? what the phase took, up to the ledger's peak |
//                          first touched ^ must be here, at most MEMORY_ALIGN bytes later
//
// unless the top is a workspace: how much of that is used is a library's affair, or depends on how threads share the
// work. The emulator of the tests watches over each buffer of its device's memory itself, and stands in for the witness
// there.
#ifndef WITNESS_H
#define WITNESS_H

#include "host.h"
#include "ledger.h"

enum { MEMORY_ALIGN = 64 };  // bytes of which every take is a multiple
#define WITNESS_POISON 0x7ff5a3c97fa5c5e3ull  // NaN as fp64, fp32 and bf16, and unlikely as anything else

#ifdef __CUDACC__
__global__ static void witness_poison_kernel(uint64_t *words, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) words[i] = WITNESS_POISON;
}

// *first = index of the first word without poison, if there is one.
__global__ static void witness_untouched_kernel(unsigned long long *first, const uint64_t *words, size_t n) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        if (words[i] == WITNESS_POISON) continue;
        atomicMin(first, (unsigned long long)i);
        return;
    }
}

static inline size_t witness_untouched_cuda(Device *device, const char *from, size_t n_bytes) {
    const size_t n = n_bytes / sizeof(uint64_t);
    unsigned long long first = n;
    device_upload(device, device->cuda->word, &first, sizeof(first));
    CUDA_RUN(device, witness_untouched_kernel, size_min(cuda_blocks(n), 4096), CUDA_THREADS, 0, device->cuda->word,
             (const uint64_t *)(const void *)from, n);
    device_download(device, &first, device->cuda->word, sizeof(first));
    return (size_t)first * sizeof(uint64_t);
}
#endif

// Fills memory with poison, that of a GPU or of the host.
static inline void witness_poison(Device *device, bool on_gpu, char *from, size_t n_bytes) {
    uint64_t *words = (uint64_t *)(void *)from;
    const int64_t n = (int64_t)(n_bytes / sizeof(uint64_t));
    if (on_gpu && device->observer) return;
    if (on_gpu) {
        CUDA_ONLY(CUDA_RUN(device, witness_poison_kernel, size_min(cuda_blocks((size_t)n), 4096), CUDA_THREADS, 0,
                           words, (size_t)n));
        return;
    }
    if (!host_writes(device, from, n_bytes)) return;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) words[i] = WITNESS_POISON;
}

// Bytes from `from` that still hold poison, at most n_bytes.
static inline size_t witness_untouched(Device *device, bool on_gpu, const char *from, size_t n_bytes) {
    const uint64_t *words = (const uint64_t *)(const void *)from;
    const size_t n = n_bytes / sizeof(uint64_t);
    size_t i = 0;
#ifdef __CUDACC__
    if (on_gpu) return witness_untouched_cuda(device, from, n_bytes);
#else
    (void)on_gpu;
#endif
    if (!host_reads(device, from, n_bytes)) return n_bytes;
    while (i < n && words[i] == WITNESS_POISON) i++;
    return i * sizeof(uint64_t);
}

// Dies unless the phase has touched what the ledger says of a tier. free_bytes of `capacity` are free, from `from` on.
static inline void witness_check(Device *device, bool on_gpu, const char *from, size_t free_bytes, size_t capacity,
                                 Tier tier, Phase p, const PhaseLedger *phase) {
    if (on_gpu && device->observer) return;
    const size_t touched = capacity - witness_untouched(device, on_gpu, from, free_bytes);
    const bool reached = touched + MEMORY_ALIGN >= phase->peak[tier] || phase->top[tier] == KIND_WORKSPACE;
    if (touched <= phase->peak[tier] && reached) return;
    die("%s memory, phase %s: the ledger says %zu bytes, %zu were really touched. This is a bug, please report it with "
        "the command line", ledger_tier_name(tier), ledger_phase_name(p), phase->peak[tier], touched);
}

#endif
