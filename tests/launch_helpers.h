// launch_helpers.h - tests among real ranks: a test program starts itself again as N ranks.
//
//     launch_ranks(3, "--talk %d", 3);   scripts/launch.sh 3 PROGRAM --talk 3, which must end with 0
//
// The ranks' half of a test has no cmocka around it: what is wrong there ends all ranks with a message (CHECK).
#ifndef LAUNCH_HELPERS_H
#define LAUNCH_HELPERS_H

#include "program_helpers.h"

#include "../dev/error.h"

// Dies with the place, the condition's text and check_note unless the condition holds; all ranks end.
#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) die("%s:%d: %s %s", __FILE__, __LINE__, #condition, check_note); \
    } while (0)

static char check_note[512] = "";  // what is being checked

static const char *test_program;  // argv[0]

// Skips the test where this program can't be started as several ranks.
static inline void need_ranks(void) {
#ifndef USE_MPI
    SKIP_AS("this was built without MPI");
#endif
    if (system("command -v mpirun >/dev/null") != 0) SKIP_AS("there is no mpirun");
}

// Runs this program as n ranks, with these arguments; they must end with 0.
__attribute__((format(printf, 2, 3))) static inline void launch_ranks(int n, const char *format, ...) {
    char words[1024];
    va_list arguments;
    va_start(arguments, format);
    assert_true(vsnprintf(words, sizeof(words), format, arguments) < (int)sizeof(words));
    va_end(arguments);
    expect_command(0, "", LAUNCH " %d %s %s >/dev/null", n, test_program, words);
}

#endif
