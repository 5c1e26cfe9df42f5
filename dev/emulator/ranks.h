// ranks.h - starts the ranks of a test: processes, forked before any of them uses CUDA.
//
//     static void body(int rank, int n_ranks, RankPage *page, void *argument) {
//         ncclUniqueId id;
//         if (rank == 0) ncclGetUniqueId(&id);
//         ranks_share(page, rank, &id, sizeof(id));
//         ncclCommInitRank(&communicator, n_ranks, id, rank); …
//     }
//     int status = ranks_run(3, body, argument);
//
// Invariant: ranks_run returns when all ranks have ended, however they did; a rank that hangs is ended by its alarm.
#ifndef RANKS_H
#define RANKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 32, RANK_SECONDS = 100 };

// Memory that all ranks share, zeroed at the start.
typedef struct RankPage {
    volatile int n_arrived, has_bytes;
    char bytes[1024];
    volatile long notes[RANKS_MOST];  // for the test
} RankPage;

typedef void RankBody(int rank, int n_ranks, RankPage *page, void *argument);

// Rank 0's bytes, at most 1,024, to all. Once.
static inline void ranks_share(RankPage *page, int rank, void *bytes, size_t n_bytes) {
    if (rank == 0) {
        memcpy(page->bytes, bytes, n_bytes);
        __sync_synchronize();
        page->has_bytes = 1;
    }
    while (!page->has_bytes) usleep(200);
    __sync_synchronize();
    memcpy(bytes, page->bytes, n_bytes);
}

// The largest exit status of a rank, 0 where body() returned; a rank ended by a signal counts as 128 + the signal,
// unless that is SIGKILL, which only a test sends.
static inline int ranks_run(int n_ranks, RankBody *body, void *argument) {
    RankPage *page =
        (RankPage *)mmap(NULL, sizeof(RankPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || n_ranks > RANKS_MOST) return 127;
    fflush(NULL);
    for (int rank = 0; rank < n_ranks; rank++) {
        if (fork() != 0) continue;
        alarm(RANK_SECONDS);
        body(rank, n_ranks, page, argument);
        fflush(NULL);
        _exit(0);
    }
    int worst = 0;
    for (int i = 0; i < n_ranks; i++) {
        int status;
        if (wait(&status) < 0) return 127;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) == 9 ? 0 : 128 + WTERMSIG(status);
        worst = code > worst ? code : worst;
    }
    munmap(page, sizeof(RankPage));
    return worst;
}

#endif
