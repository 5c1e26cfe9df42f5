// plants.h - planted bugs for the test of the emulator: each runs wrong, and right in its twin.
#ifndef PLANTS_H
#define PLANTS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Plant {
    const char *name;
    void (*run)(bool bug);
    const char *words;  // of the message, separated by '|'
} Plant;

extern const Plant PLANTS[];
extern const int N_PLANTS;

// Instructions against the host: each returns after all is as it should be, or ends the process with a message.
typedef struct Family {
    const char *name;
    void (*run)(void);
} Family;

extern const Family FAMILIES[];
extern const int N_FAMILIES;
extern const Family PRODUCTS;

// The same for several ranks (ranks.cu), where NCCL's header is.
extern const Plant RANK_PLANTS[];
extern const int N_RANK_PLANTS;
extern const Family RANK_FAMILIES[];
extern const int N_RANK_FAMILIES;
void ranks_leave_segment(char *name, int n_name);

#ifdef __cplusplus
}
#endif

#endif
