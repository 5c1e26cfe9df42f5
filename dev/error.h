// error.h - one way to stop: say on stderr what is wrong and what to do about it, exit with 1.
//
// Invariant: nothing in the program calls exit(1) or perror() by itself; a wrong command line exits with 2 (flags.h).
#ifndef ERROR_H
#define ERROR_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define PRINTF_LIKE(format_index, first_argument)
#endif

// Prints "train_gpt: MESSAGE" to stderr and exits with status 1. The message names the thing, then the way out.
PRINTF_LIKE(1, 2)
static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("train_gpt: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

// What errno means, for messages.
static inline const char *error_text(void) { return strerror(errno); }

#endif
