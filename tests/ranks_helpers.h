// ranks_helpers.h - trainers of several ranks within a test program, which starts itself again as N ranks.
//
//     launch_ranks(3, "overflow", directory)   mpirun ... PROGRAM --ranks overflow DIRECTORY, and must end with 0
//
// The ranks' half of a test has no cmocka around it: what is wrong there ends all ranks with a message.
#ifndef RANKS_HELPERS_H
#define RANKS_HELPERS_H

#include "trainer_helpers.h"

// Dies with the place and the values' texts unless the condition holds; all ranks end.
#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) die("%s:%d: %s (%s)", __FILE__, __LINE__, #condition, check_note); \
    } while (0)

static char check_note[512] = "";  // what is being checked

static const char *test_program;  // argv[0]

static inline bool have_ranks(void) {
#ifdef USE_MPI
    return system("command -v mpirun >/dev/null") == 0;
#else
    return false;
#endif
}

static inline int n_ranks(void) { return error_launched(false); }

// Skips the test where ranks can't be started.
static inline void need_ranks(void) {
    if (have_ranks()) return;
    SKIP_AS("there is no mpirun or no MPI");
}

// Runs this program as n ranks, in `mode`. The threads are as many for any number of ranks.
static inline void launch_ranks(int n, const char *mode, const char *directory) {
    expect_command(0, "", "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive scripts/launch.sh %d %s --ranks %s %s >/dev/null",
                   n, test_program, mode, directory);
}

// Like open_trainer(); what goes wrong from here on is told with the command line.
__attribute__((format(printf, 1, 2))) static inline Trainer *open_rank(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check_note, sizeof(check_note), format, arguments);
    va_end(arguments);
    return open_trainer("%s", check_note);
}

// What all ranks have is the same.
static inline void check_same_on_all(Trainer *m, double value) {
    double all[64];
    CHECK(m->ranks->size <= 64);
    ranks_gather(m->ranks, all, &value, 1);
    for (int r = 0; r < m->ranks->size; r++) CHECK(memcmp(&all[r], &value, sizeof(value)) == 0);
}

#endif
