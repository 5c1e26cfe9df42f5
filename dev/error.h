// error.h - one way to stop: say on stderr what is wrong and what to do about it, exit with 1.
//
// With several ranks, one that stops takes the others with it. Rank 0 speaks at once and the others four seconds later,
// so that a fault which all of them meet is told once.
//
// How the others are taken along, ranks.h knows; it leaves the way here (error_ranks).
//
// Invariant: nothing in the program calls exit(1) or perror() by itself; a wrong command line exits with 2 (flags.h).
#ifndef ERROR_H
#define ERROR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define PRINTF_LIKE(format_index, first_argument)
#endif

// What the launcher says: this process's number among its ranks, or (rank false) how many there are; 0 and 1 without a
// launcher. In a step of SLURM's srun only, since a batch script's shell has numbers, too.
static inline int error_launched(bool rank) {
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = getenv(names[i][0]) ? getenv(names[i][rank ? 1 : 0]) : NULL;
        if (value) return atoi(value);
    }
    return rank ? 0 : 1;
}

// What ends the other ranks, with an exit status; NULL while there are none. The only thing that a program which ends
// must find without being told.
static inline void (**error_ranks(void))(int) {
    static void (*end_all)(int) = NULL;
    return &end_all;
}

// Says "train_gpt: MESSAGE", or from another rank than 0 "train_gpt: rank 2: MESSAGE", and ends all ranks. All of it is
// one write, as a launcher mixes what it reads from stdout and stderr, and only the first thread speaks. A thread
// beside the main one ends without the library's clean-up, which would race with it.
static inline void error_end(int status, const char *after, const char *format, va_list arguments) {
    static pid_t ending = 0;            // the thread that ends the program; two queues may fail at the same time
    char message[8192], rank[32] = "";  // room for a path of PATH_MAX
    pid_t nobody = 0;
    if (!__atomic_compare_exchange_n(&ending, &nobody, gettid(), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        while (nobody != gettid()) pause();
    }
    vsnprintf(message, sizeof(message), format, arguments);
    if (error_launched(true) > 0) {
        snprintf(rank, sizeof(rank), "rank %d: ", error_launched(true));
        sleep(4);
    }
    fflush(stdout);
    fprintf(stderr, "train_gpt: %s%s\n%s", rank, message, after);
    if (*error_ranks()) (*error_ranks())(status);
    if (gettid() != getpid()) {
        fflush(NULL);
        _exit(status);
    }
    exit(status);
}

// Prints "train_gpt: MESSAGE" to stderr and exits with status 1. The message names the thing, then the way out.
PRINTF_LIKE(1, 2)
static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    error_end(1, "", format, arguments);
    va_end(arguments);
}

// What errno means, for messages.
static inline const char *error_text(void) { return strerror(errno); }

#endif
