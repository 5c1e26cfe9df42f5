// ranks.h - the processes of a run: who they are, and a little talk between their hosts.
//
// N ranks are N processes, started by mpirun or srun. MPI brings them together; on CUDA NCCL moves their data, on the
// CPU MPI does (collective.h). One process needs neither. Talk is on the calling thread, while the collective queue is
// idle.
#ifndef RANKS_H
#define RANKS_H

#include <sched.h>

#include "error.h"
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
    MPI_Datatype unit;       // RANKS_UNIT bytes
    MPI_Request *requests;   // 2 N
#endif
#ifdef HAVE_NCCL
    ncclComm_t nccl;
#endif
} Ranks;

enum { RANKS_UNIT = 4096 };  // buffers of shards come in multiples of this, bytes

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
    MPI_Type_contiguous(RANKS_UNIT, MPI_BYTE, &ranks->unit);
    MPI_Type_commit(&ranks->unit);
    ranks->requests = (MPI_Request *)calloc(2 * (size_t)ranks->size, sizeof(MPI_Request));
    if (!ranks->requests) die("out of memory at the start");
    if (ranks->rank > 0 && !freopen("/dev/null", "w", stdout)) die("can't open /dev/null: %s", error_text());
#else
    die("%d ranks were started, but this program was built without MPI: make setup, then make train", launched);
#endif
}

#ifdef HAVE_NCCL
static inline void ranks_check_nccl(ncclResult_t status, const char *what, const char *file, int line) {
    if (status != ncclSuccess) die("NCCL: %s (%s:%d): %s", what, file, line, ncclGetErrorString(status));
}
#define NCCL_CHECK(call) ranks_check_nccl((call), #call, __FILE__, __LINE__)
#define NCCL_ONLY(...) __VA_ARGS__
#else
#define NCCL_ONLY(...) die("this program was built without NCCL, and several ranks on GPUs need it")
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
// The end

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
