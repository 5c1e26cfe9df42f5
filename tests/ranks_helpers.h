// ranks_helpers.h - trainers of several ranks within a test program.
#ifndef RANKS_HELPERS_H
#define RANKS_HELPERS_H

#include "launch_helpers.h"
#include "trainer_helpers.h"

static inline int n_ranks(void) { return error_launched(false); }

// Like open_trainer(); what goes wrong from here on is told with the command line.
__attribute__((format(printf, 1, 2))) static inline Trainer *open_rank(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check_note, sizeof(check_note), format, arguments);
    va_end(arguments);
    return open_trainer("%s", check_note);
}

// What all ranks have is the same.
static inline void check_same_on_all(Trainer *trainer, double value) {
    double all[64];
    CHECK(trainer->ranks->size <= 64);
    ranks_gather(trainer->ranks, all, &value, 1);
    for (int r = 0; r < trainer->ranks->size; r++) CHECK(memcmp(&all[r], &value, sizeof(value)) == 0);
}

#endif
