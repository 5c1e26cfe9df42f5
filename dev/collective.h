// collective.h - how ranks (ranks.h) exchange what is on their devices: exchange of shards, gathering of shards.
//
// On the CPU device MPI moves the data, on CUDA NCCL. A whole buffer has N equal shards, shard r being rank r's:
//
//     exchange   every rank sends piece [begin, begin + n) of shard j of its buffer to rank j; each receives N-1 pieces
//                of its own shard: received[0 ... N-2], in rank order without its own
//     sum        out (+)= ((g0 + g1) + g2) + ...  in rank order, fp32; with the exchange, this is a reduce-scatter
//                whose bits depend on nothing but N
//     gather     every rank sends its shard to all others: each has the whole buffer
//
// Each moves every byte once: (N-1)/N of the buffer leaves a rank. Data moves on the collective queue, in the order of
// the calls, which is the same on all ranks.
#ifndef COLLECTIVE_H
#define COLLECTIVE_H

#include "device.h"
#include "ranks.h"

typedef struct {
    Ranks *ranks;
    char *whole;
    const float *pieces;
    float *received;
    size_t n_bytes, shard_elements, begin, n;
} CollectiveCall;

// Every rank's shard to all ranks, in place; called on the queue with a CollectiveCall.
static inline void collective_gather_mpi(void *argument) {
#ifdef USE_MPI
    const CollectiveCall *c = (const CollectiveCall *)argument;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->whole, (int)(c->n_bytes / RANKS_UNIT), c->ranks->unit,
                  c->ranks->data);
#else
    (void)argument;
#endif
}

// Where the piece from `peer` lies in what rank `rank` receives.
static inline size_t collective_place(int rank, int peer) { return (size_t)(peer < rank ? peer : peer - 1); }

// The exchange of pieces by MPI; called on the queue with a CollectiveCall.
static inline void collective_exchange_mpi(void *argument) {
#ifdef USE_MPI
    const CollectiveCall *c = (const CollectiveCall *)argument;
    const int N = c->ranks->size, rank = c->ranks->rank, count = (int)(c->n * sizeof(float) / RANKS_UNIT);
    for (int i = 1; i < N; i++) {
        int from = (rank + N - i) % N, to = (rank + i) % N;
        MPI_Irecv(c->received + collective_place(rank, from) * c->n, count, c->ranks->unit, from, 1, c->ranks->data,
                  &c->ranks->requests[2 * i - 2]);
        MPI_Isend(c->pieces + (size_t)to * c->shard_elements + c->begin, count, c->ranks->unit, to, 1, c->ranks->data,
                  &c->ranks->requests[2 * i - 1]);
    }
    MPI_Waitall(2 * N - 2, c->ranks->requests, MPI_STATUSES_IGNORE);
#else
    (void)argument;
#endif
}

#ifdef HAVE_NCCL
// The exchange of pieces by NCCL, put on the collective queue.
static inline void collective_exchange_nccl(Ranks *ranks, Device *device, const float *whole, size_t shard_elements,
                                            size_t begin, size_t n, float *received) {
    cudaStream_t stream = device->cuda->queues[QUEUE_COLLECTIVE];
    NCCL_CHECK(ncclGroupStart());
    for (int peer = 0; peer < ranks->size; peer++) {
        if (peer == ranks->rank) continue;
        NCCL_CHECK(ncclSend(whole + (size_t)peer * shard_elements + begin, n, ncclFloat32, peer, ranks->nccl, stream));
        NCCL_CHECK(ncclRecv(received + collective_place(ranks->rank, peer) * n, n, ncclFloat32, peer, ranks->nccl,
                            stream));
    }
    NCCL_CHECK(ncclGroupEnd());
}
#endif

// Every rank's shard (shard_bytes, a multiple of RANKS_UNIT), which is in its place in `whole`, to all.
static inline void collective_gather(Ranks *ranks, Device *device, char *whole, size_t shard_bytes) {
    CollectiveCall call;
    if (ranks->size == 1) return;
    ranks->n_sent += (size_t)(ranks->size - 1) * shard_bytes;
    memset(&call, 0, sizeof(call));
    call.ranks = ranks;
    call.whole = whole;
    call.n_bytes = shard_bytes;
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: device_call(device, QUEUE_COLLECTIVE, collective_gather_mpi, &call, sizeof(call)); return;
    case DEVICE_CUDA:
        NCCL_ONLY(NCCL_CHECK(ncclAllGather(whole + (size_t)ranks->rank * shard_bytes, whole, shard_bytes, ncclInt8,
                                           ranks->nccl, device->cuda->queues[QUEUE_COLLECTIVE])));
        return;
    }
}

// Piece [begin, begin + n) of shard j of `whole` (N shards of shard_elements) to rank j; received (N-1, n). begin and n
// are multiples of RANKS_UNIT elements.
static inline void collective_exchange(Ranks *ranks, Device *device, const float *whole, size_t shard_elements,
                                       size_t begin, size_t n, float *received) {
    CollectiveCall call;
    ranks->n_sent += (size_t)(ranks->size - 1) * n * sizeof(float);
    memset(&call, 0, sizeof(call));
    call.ranks = ranks;
    call.pieces = whole;
    call.received = received;
    call.shard_elements = shard_elements;
    call.begin = begin;
    call.n = n;
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: device_call(device, QUEUE_COLLECTIVE, collective_exchange_mpi, &call, sizeof(call)); return;
    case DEVICE_CUDA:
        NCCL_ONLY(collective_exchange_nccl(ranks, device, whole, shard_elements, begin, n, received));
        return;
    }
}

typedef struct {
    float *out;
    const float *own, *received;
    size_t n;
    int rank, size;
    bool add;
} CollectiveSum;

// Element i of the sum in rank order.
HOST_DEVICE float collective_sum_element(const CollectiveSum *c, size_t i) {
    float sum = c->rank == 0 ? c->own[i] : c->received[i];
    for (int peer = 1; peer < c->size; peer++) {
        sum += peer == c->rank ? c->own[i] : c->received[(size_t)(peer < c->rank ? peer : peer - 1) * c->n + i];
    }
    return c->add ? c->out[i] + sum : sum;
}

static inline void collective_sum_cpu(void *argument) {
    const CollectiveSum c = *(const CollectiveSum *)argument;
    enum { BLOCK = 1024 };
    for (size_t i0 = 0; i0 < c.n; i0 += BLOCK) {
        float sum[BLOCK];
        const size_t n = size_min(BLOCK, c.n - i0);
        for (int peer = 0; peer < c.size; peer++) {
            const float *x = peer == c.rank ? c.own + i0 : c.received + collective_place(c.rank, peer) * c.n + i0;
            for (size_t i = 0; i < n; i++) sum[i] = peer == 0 ? x[i] : sum[i] + x[i];
        }
        for (size_t i = 0; i < n; i++) c.out[i0 + i] = c.add ? c.out[i0 + i] + sum[i] : sum[i];
    }
}

#ifdef __CUDACC__
__global__ static void collective_sum_kernel(CollectiveSum c) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.n; i += step) {
        c.out[i] = collective_sum_element(&c, i);
    }
}
#endif

// out (n) (+)= own (n) and received (N-1, n), summed in rank order. out may be own. On the collective queue.
static inline void collective_sum(const Ranks *ranks, Device *device, float *out, const float *own,
                                  const float *received, size_t n, bool add) {
    CollectiveSum c;
    memset(&c, 0, sizeof(c));
    c.out = out;
    c.own = own;
    c.received = received;
    c.n = n;
    c.rank = ranks->rank;
    c.size = ranks->size;
    c.add = add;
    switch (device->kind) {
    case DEVICE_PLAN:
        device_count(device, (double)n * ranks->size, 4.0 * (double)n * (ranks->size + 1 + (add ? 1 : 0)));
        return;
    case DEVICE_CPU: device_call(device, QUEUE_COLLECTIVE, collective_sum_cpu, &c, sizeof(c)); return;
    case DEVICE_CUDA:
        CUDA_ONLY(CUDA_RUN_QUEUE(device, QUEUE_COLLECTIVE, collective_sum_kernel, cuda_grid(cuda_blocks(n), 1),
                                 CUDA_THREADS, 0, c));
        return;
    }
}

// ---------------------------------------------------------------------------------------------------------------
// NCCL's communicator

#ifdef HAVE_NCCL
// Joins the GPUs of all ranks, and has NCCL take the memory it needs for exchanges and gathers.
static inline void collective_open_nccl(Ranks *ranks, Device *device) {
    enum { TRIAL = 2 * RANKS_UNIT };
    ncclUniqueId id;
    float *trial;
    const size_t N = (size_t)ranks->size;
    if (ranks->rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
    MPI_Bcast(&id, (int)sizeof(id), MPI_BYTE, 0, ranks->hosts);
    NCCL_CHECK(ncclCommInitRank(&ranks->nccl, ranks->size, id, ranks->rank));
    CUDA_CHECK(cudaMalloc((void **)&trial, 2 * N * TRIAL * sizeof(float)));
    CUDA_CHECK(cudaMemsetAsync(trial, 0, 2 * N * TRIAL * sizeof(float), device->cuda->queues[QUEUE_COLLECTIVE]));
    collective_exchange(ranks, device, trial, TRIAL, 0, TRIAL, trial + N * TRIAL);
    collective_gather(ranks, device, (char *)trial, TRIAL * sizeof(float));
    CUDA_CHECK(cudaStreamSynchronize(device->cuda->queues[QUEUE_COLLECTIVE]));
    CUDA_CHECK(cudaFree(trial));
    ranks->n_sent = 0;
}
#endif

// After the device has been opened: what its collectives need.
static inline void collective_open(Ranks *ranks, Device *device) {
    if (ranks->size > 1 && device->real == DEVICE_CUDA && device->cuda) NCCL_ONLY(collective_open_nccl(ranks, device));
}

#endif
