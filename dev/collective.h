// collective.h - how ranks work together: exchange of shards, gathering of shards, and a little talk between hosts.
//
// N ranks are N processes, started by mpirun or srun. On the CPU device MPI moves the data; on CUDA NCCL does, with MPI
// to bring the ranks together. One process needs neither. A whole buffer has N equal shards, shard r being rank r's:
//
//     exchange   every rank sends piece [at, at+n) of shard j of its buffer to rank j; each receives N-1 pieces of its
//                own shard: received[0 ... N-2], in rank order without its own
//     sum        out (+)= ((g0 + g1) + g2) + ...  in rank order, fp32; with the exchange, this is a reduce-scatter
//                whose bits depend on nothing but N
//     gather     every rank sends its shard to all others: each has the whole buffer
//
// Each moves every byte once: (N-1)/N of the buffer leaves a rank. Data moves on the collective queue, in the order of
// the calls, which is the same on all ranks; talk between hosts happens on the calling thread while that queue is idle.
#ifndef COLLECTIVE_H
#define COLLECTIVE_H

#include <sched.h>

#include "device.h"
#ifdef USE_MPI
#include <mpi.h>
#endif
#if defined(USE_MPI) && defined(USE_NCCL) && defined(__CUDACC__)
#define HAVE_NCCL 1
#include <nccl.h>
#endif

typedef struct {
    int rank, size;              // this process's, and how many there are
    int local_rank, local_size;  // on this machine
    double processors;           // this rank's part of the processors that it may run on, at most 1
    size_t n_sent;               // bytes that this rank sent; counted by PLAN, too
#ifdef USE_MPI
    MPI_Comm hosts, data;    // of the calling thread, and of the collective queue
    MPI_Datatype unit;       // COLLECTIVE_UNIT bytes
    MPI_Request *requests;   // 2 N
#endif
#ifdef HAVE_NCCL
    ncclComm_t nccl;
#endif
} Ranks;

enum { COLLECTIVE_UNIT = 4096 };  // buffers of shards come in multiples of this, bytes

// One rank, or a plan for `size` of them.
static inline void ranks_open_plan(Ranks *ranks, int size) {
    memset(ranks, 0, sizeof(*ranks));
    ranks->size = ranks->local_size = size;
    ranks->processors = 1.0;
}

#ifdef USE_MPI
static inline void ranks_abort(int status) {
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (begun && !ended) MPI_Abort(MPI_COMM_WORLD, status);
}

// A processor on which several ranks of this machine may run is shared by them; launchers may bind each to its own.
static inline double ranks_processors(MPI_Comm local) {
    enum { MOST = 4096 };
    cpu_set_t *set = CPU_ALLOC(MOST);
    int *counts = (int *)calloc(MOST, sizeof(int)), own = 0;
    double part = 0;
    const size_t n_bytes = CPU_ALLOC_SIZE(MOST);
    if (!set || !counts) die("out of memory at the start");
    const bool known = sched_getaffinity(0, n_bytes, set) == 0;
    for (int i = 0; i < MOST; i++) counts[i] = !known || CPU_ISSET_S((size_t)i, n_bytes, set);
    MPI_Allreduce(MPI_IN_PLACE, counts, MOST, MPI_INT, MPI_SUM, local);
    for (int i = 0; i < MOST; i++) {
        if (known && !CPU_ISSET_S((size_t)i, n_bytes, set)) continue;
        part += 1.0 / counts[i];
        own++;
    }
    free(counts);
    CPU_FREE(set);
    return own > 0 ? part / own : 1.0;
}
#endif

// Joins the other ranks, if the program was started with any. Only rank 0 goes on printing.
static inline void ranks_open(Ranks *ranks) {
    ranks_open_plan(ranks, 1);
    int launched = error_launched(false);
    if (launched <= 1) return;
#ifdef USE_MPI
    int provided = 0, begun = 0;
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // a rank that waits must not take a core from one that computes
    MPI_Comm local;
    MPI_Initialized(&begun);
    if (begun) MPI_Query_thread(&provided);
    else MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    *error_ranks() = ranks_abort;
    MPI_Comm_rank(MPI_COMM_WORLD, &ranks->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks->size);
    if (provided < MPI_THREAD_SERIALIZED) die("this MPI allows calls from one thread only (level %d)", provided);
    if (ranks->size != launched) {
        die("the launcher started %d ranks, MPI found %d: the program was built with another MPI than the launcher's",
            launched, ranks->size);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &ranks->hosts);
    MPI_Comm_dup(MPI_COMM_WORLD, &ranks->data);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, ranks->rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &ranks->local_rank);
    MPI_Comm_size(local, &ranks->local_size);
    ranks->processors = ranks_processors(local);
    MPI_Comm_free(&local);
    MPI_Type_contiguous(COLLECTIVE_UNIT, MPI_BYTE, &ranks->unit);
    MPI_Type_commit(&ranks->unit);
    ranks->requests = (MPI_Request *)calloc(2 * (size_t)ranks->size, sizeof(MPI_Request));
    if (!ranks->requests) die("out of memory at the start");
    if (ranks->rank > 0 && !freopen("/dev/null", "w", stdout)) die("can't open /dev/null: %s", error_text());
#else
    die("%d ranks were started, but this program was built without MPI: make setup, then make train", launched);
#endif
}

#ifdef HAVE_NCCL
static inline void nccl_check(ncclResult_t status, const char *what, const char *file, int line) {
    if (status != ncclSuccess) die("NCCL: %s (%s:%d): %s", what, file, line, ncclGetErrorString(status));
}
#define NCCL_CHECK(call) nccl_check((call), #call, __FILE__, __LINE__)
#endif

// ---------------------------------------------------------------------------------------------------------------
// Talk between hosts, on the calling thread

// all (N,n) = own (n) of every rank, in rank order. `all` may not overlap `own`.
static inline void ranks_gather(Ranks *ranks, double *all, const double *own, int n) {
#ifdef USE_MPI
    if (ranks->size > 1) {
        MPI_Allgather(own, n, MPI_DOUBLE, all, n, MPI_DOUBLE, ranks->hosts);
        return;
    }
#else
    (void)ranks;
#endif
    memcpy(all, own, (size_t)n * sizeof(double));
}

// data (n_bytes, at most 1 GiB) of rank `from` goes to rank 0; called by those two.
static inline void ranks_to_root(Ranks *ranks, int from, void *data, size_t n_bytes) {
    if (from == 0) return;
#ifdef USE_MPI
    if (ranks->rank == from) MPI_Send(data, (int)n_bytes, MPI_BYTE, 0, 0, ranks->hosts);
    else if (ranks->rank == 0) MPI_Recv(data, (int)n_bytes, MPI_BYTE, from, 0, ranks->hosts, MPI_STATUS_IGNORE);
#else
    (void)ranks;
    (void)data;
    (void)n_bytes;
#endif
}

// No rank goes on before all have come here.
static inline void ranks_barrier(Ranks *ranks) {
#ifdef USE_MPI
    if (ranks->requests) MPI_Barrier(ranks->hosts);  // not for a plan for ranks that are not here
#else
    (void)ranks;
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// Data, on the collective queue

typedef struct {
    Ranks *ranks;
    char *whole;
    const float *pieces;
    float *received;
    size_t n_bytes, shard_elements, at, n;
} CollectiveCall;

static inline void collective_gather_mpi(void *argument) {
#ifdef USE_MPI
    const CollectiveCall *c = (const CollectiveCall *)argument;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->whole, (int)(c->n_bytes / COLLECTIVE_UNIT), c->ranks->unit,
                  c->ranks->data);
#else
    (void)argument;
#endif
}

// Where the piece from `peer` lies in what rank `rank` receives.
static inline size_t collective_place(int rank, int peer) { return (size_t)(peer < rank ? peer : peer - 1); }

static inline void collective_exchange_mpi(void *argument) {
#ifdef USE_MPI
    const CollectiveCall *c = (const CollectiveCall *)argument;
    const int N = c->ranks->size, rank = c->ranks->rank, count = (int)(c->n * sizeof(float) / COLLECTIVE_UNIT);
    for (int i = 1; i < N; i++) {
        int from = (rank + N - i) % N, to = (rank + i) % N;
        MPI_Irecv(c->received + collective_place(rank, from) * c->n, count, c->ranks->unit, from, 1, c->ranks->data,
                  &c->ranks->requests[2 * i - 2]);
        MPI_Isend(c->pieces + (size_t)to * c->shard_elements + c->at, count, c->ranks->unit, to, 1, c->ranks->data,
                  &c->ranks->requests[2 * i - 1]);
    }
    MPI_Waitall(2 * N - 2, c->ranks->requests, MPI_STATUSES_IGNORE);
#else
    (void)argument;
#endif
}

#ifdef HAVE_NCCL
static inline void collective_exchange_nccl(Ranks *ranks, Device *device, const float *whole, size_t shard_elements,
                                            size_t at, size_t n, float *received) {
    cudaStream_t stream = device->cuda->queues[QUEUE_COLLECTIVE];
    NCCL_CHECK(ncclGroupStart());
    for (int peer = 0; peer < ranks->size; peer++) {
        if (peer == ranks->rank) continue;
        NCCL_CHECK(ncclSend(whole + (size_t)peer * shard_elements + at, n, ncclFloat32, peer, ranks->nccl, stream));
        NCCL_CHECK(ncclRecv(received + collective_place(ranks->rank, peer) * n, n, ncclFloat32, peer, ranks->nccl,
                            stream));
    }
    NCCL_CHECK(ncclGroupEnd());
}
#define NCCL_ONLY(...) __VA_ARGS__
#else
#define NCCL_ONLY(...) die("this program was built without NCCL, and several ranks on GPUs need it")
#endif

// Every rank's shard (shard_bytes, a multiple of COLLECTIVE_UNIT), which is in its place in `whole`, to all.
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

// Piece [at, at + n) of shard j of `whole` (N shards of shard_elements) to rank j; received (N-1, n). at and n are
// multiples of COLLECTIVE_UNIT elements.
static inline void collective_exchange(Ranks *ranks, Device *device, const float *whole, size_t shard_elements,
                                       size_t at, size_t n, float *received) {
    CollectiveCall call;
    ranks->n_sent += (size_t)(ranks->size - 1) * n * sizeof(float);
    memset(&call, 0, sizeof(call));
    call.ranks = ranks;
    call.pieces = whole;
    call.received = received;
    call.shard_elements = shard_elements;
    call.at = at;
    call.n = n;
    switch (device->kind) {
    case DEVICE_PLAN: return;
    case DEVICE_CPU: device_call(device, QUEUE_COLLECTIVE, collective_exchange_mpi, &call, sizeof(call)); return;
    case DEVICE_CUDA:
        NCCL_ONLY(collective_exchange_nccl(ranks, device, whole, shard_elements, at, n, received));
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
static inline void ranks_open_nccl(Ranks *ranks, Device *device) {
    enum { TRIAL = 2 * COLLECTIVE_UNIT };
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
static inline void ranks_open_device(Ranks *ranks, Device *device) {
    if (ranks->size > 1 && device->real == DEVICE_CUDA && device->cuda) NCCL_ONLY(ranks_open_nccl(ranks, device));
}

static inline void ranks_close(Ranks *ranks) {
    if (ranks->size == 1) return;
#ifdef HAVE_NCCL
    if (ranks->nccl) NCCL_CHECK(ncclCommDestroy(ranks->nccl));
#endif
#ifdef USE_MPI
    if (!ranks->requests) return;  // a plan for ranks that are not here
    free(ranks->requests);
    MPI_Type_free(&ranks->unit);
    MPI_Comm_free(&ranks->data);
    MPI_Comm_free(&ranks->hosts);
#endif
}

// The last call of a program: no ranks can be opened afterwards.
static inline void ranks_end(void) {
#ifdef USE_MPI
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (begun && !ended) MPI_Finalize();
#endif
}

#endif
