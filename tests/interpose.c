// interpose.c - preloaded into ./train_gpt by test_program.c: watches allocations, and makes files misbehave.
//
//   INTERPOSE_REPORT=FILE   at exit, writes how many allocations the program's own code made, and how many of 64 KiB or
//                           more anybody made, after the first step's row went to steps.csv and before the last table
//   INTERPOSE_KILL=N        the Nth write to a *.partial file kills the process, after half of it was written
//   INTERPOSE_FULL=N        the Nth write to a *.partial file and all later ones fail with ENOSPC
//   INTERPOSE_SHORT=1       reads and writes of files move at most 1000 bytes, and every third one is interrupted
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uintptr_t program_start, program_end;
static volatile bool watching;
static volatile long own, large, calls;

static int find_program(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
        if (!program_start || start < program_start) program_start = start;
        if (end > program_end) program_end = end;
    }
    return 1;  // the first object is the program
}

__attribute__((constructor)) static void prepare(void) { dl_iterate_phdr(find_program, NULL); }

static void note(void *caller, size_t n_bytes) {
    if (!watching) return;
    if ((uintptr_t)caller >= program_start && (uintptr_t)caller < program_end) __sync_fetch_and_add(&own, 1);
    if (n_bytes >= 65536) __sync_fetch_and_add(&large, 1);
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) {
    note(__builtin_return_address(0), n);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    note(__builtin_return_address(0), n * size);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    note(__builtin_return_address(0), n);
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t alignment, size_t n) {
    note(__builtin_return_address(0), n);
    return __libc_memalign(alignment, n);
}
int posix_memalign(void **p, size_t alignment, size_t n) {
    note(__builtin_return_address(0), n);
    *p = __libc_memalign(alignment, n);
    return *p ? 0 : ENOMEM;
}
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "mmap");
    if (flags & MAP_ANONYMOUS) note(__builtin_return_address(0), n);
    return real(at, n, protection, flags, fd, offset);
}

static long setting(const char *name) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

// Does the file's name end so?
static bool named(int fd, const char *end) {
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0) return false;
    path[n] = 0;
    return (size_t)n >= strlen(end) && strcmp(path + n - strlen(end), end) == 0;
}

ssize_t write(int fd, const void *data, size_t n) {
    static ssize_t (*real)(int, const void *, size_t);
    static long partial_writes;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "write");
    const char *report = getenv("INTERPOSE_REPORT");
    if (report && n > 14 && memcmp(data, "measured, MiB", 13) == 0) watching = false;
    if (report && fd > 2 && named(fd, "steps.csv")) watching = true;
    if ((setting("INTERPOSE_KILL") || setting("INTERPOSE_FULL")) && fd > 2 && named(fd, ".bin.partial")) {
        partial_writes++;
        if (partial_writes == setting("INTERPOSE_KILL")) {
            if (real(fd, data, n / 2) < 0) abort();
            kill(getpid(), SIGKILL);
        }
        if (setting("INTERPOSE_FULL") && partial_writes >= setting("INTERPOSE_FULL")) {
            errno = ENOSPC;
            return -1;
        }
    }
    if (setting("INTERPOSE_SHORT") && fd > 2) {
        if (++calls % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        if (n > 1000) n = 1000;
    }
    return real(fd, data, n);
}

ssize_t read(int fd, void *data, size_t n) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "read");
    if (setting("INTERPOSE_SHORT") && named(fd, ".bin")) {
        if (++calls % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        if (n > 1000) n = 1000;
    }
    return real(fd, data, n);
}

ssize_t pread(int fd, void *data, size_t n, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pread");
    if (setting("INTERPOSE_SHORT")) {
        if (++calls % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        if (n > 7) n = 7;
    }
    return real(fd, data, n, at);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("INTERPOSE_REPORT");
    watching = false;
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "own %ld large %ld\n", own, large);
    fclose(file);
}
