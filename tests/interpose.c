// interpose.c - preloaded into ./train_gpt by tests: watches allocations, and makes files misbehave.
//
//   INTERPOSE_REPORT=FILE   at exit, writes how many allocations the program's own code made, and how many of 64 KiB or
//                           more anybody made, after the first step's row went to steps.csv and before the last table
//   INTERPOSE_KILL=N        the Nth write to a *.partial file kills the process, after half of it was written
//   INTERPOSE_FULL=N        the Nth write to a *.partial file and all later ones fail with ENOSPC
//   INTERPOSE_SHORT=1       reads and writes of files move at most 1000 bytes, and every third one is interrupted; of
//                           a swap file (disk.h): any part, also of a sector, and every fourth is interrupted
//   INTERPOSE_THREADS=N     the Nth thread of a process and all later ones can't be made (EAGAIN)
//
// Swap files alone:
//   INTERPOSE_SWAP_FULL=1       no room: fallocate() fails with ENOSPC
//   INTERPOSE_SWAP_ZEROS=1      fallocate() is not supported; with INTERPOSE_SWAP_FULL, writes fail with ENOSPC
//   INTERPOSE_SWAP_BUFFERED=N   O_DIRECT is refused; N = 2: only when something is read or written
//   INTERPOSE_SWAP_FAIL=N       the Nth transfer and all later ones fail with EIO
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

// A file, not a pipe or a socket: libraries don't expect those to be interrupted.
static bool is_file(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
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
    if (setting("INTERPOSE_SHORT") && fd > 2 && is_file(fd)) {
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

// ---------------------------------------------------------------------------------------------------------------
// Swap files

static bool is_swap(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0) return false;
    path[n] = 0;
    return strstr(path, "/train_gpt_swap_") != NULL;
}

static int fail_with(int error) {
    errno = error;
    return -1;
}

static ssize_t real_pread(int fd, void *data, size_t n, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pread");
    return real(fd, data, n, at);
}

static ssize_t real_pwrite(int fd, const void *data, size_t n, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    return real(fd, data, n, at);
}

static int real_fcntl(int fd, int command, void *argument) {
    static int (*real)(int, int, ...);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fcntl");
    return real(fd, command, argument);
}

// A transfer of a swap file, to the file if `from`. A short one moves whole sectors if the file is O_DIRECT, as the
// kernel would refuse others, and tells of a part of one more; what it did not read it spoils.
static ssize_t swap_transfer(int fd, void *to, const void *from, size_t n, off_t at) {
    static volatile long n_transfers;
    const long number = __sync_add_and_fetch(&n_transfers, 1);
    const bool direct = (real_fcntl(fd, F_GETFL, NULL) & O_DIRECT) != 0;
    if (direct && setting("INTERPOSE_SWAP_BUFFERED") == 2) return fail_with(EINVAL);
    if (setting("INTERPOSE_SWAP_FAIL") && number >= setting("INTERPOSE_SWAP_FAIL")) return fail_with(EIO);
    if (from && setting("INTERPOSE_SWAP_ZEROS") && setting("INTERPOSE_SWAP_FULL")) return fail_with(ENOSPC);
    size_t told = n;
    if (setting("INTERPOSE_SHORT")) {
        if (number % 4 == 0) return fail_with(EINTR);
        if (number % 4 == 2) told = n / 2 + 1;
        if (number % 4 == 3 && n > 5000) told = 5000;
    }
    const size_t moved = direct && told < n ? told - told % 4096 : told;
    ssize_t result = !from ? real_pread(fd, to, n, at) : moved > 0 ? real_pwrite(fd, from, moved, at) : 0;
    if (result < 0 || told == n) return result;
    if (!from) memset((char *)to + moved, 0xee, n - moved);
    return (ssize_t)told;
}

ssize_t pread(int fd, void *data, size_t n, off_t at) {
    if (is_swap(fd)) return swap_transfer(fd, data, NULL, n, at);
    if (setting("INTERPOSE_SHORT")) {
        if (++calls % 3 == 0) {
            errno = EINTR;
            return -1;
        }
        if (n > 7) n = 7;
    }
    return real_pread(fd, data, n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    return is_swap(fd) ? swap_transfer(fd, NULL, data, n, at) : real_pwrite(fd, data, n, at);
}

int fallocate(int fd, int mode, off_t at, off_t n) {
    static int (*real)(int, int, off_t, off_t);
    static bool interrupted;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fallocate");
    if (is_swap(fd)) {
        if (setting("INTERPOSE_SWAP_ZEROS")) return fail_with(EOPNOTSUPP);
        if (setting("INTERPOSE_SWAP_FULL")) return fail_with(ENOSPC);
        if (setting("INTERPOSE_SHORT") && !interrupted) {
            interrupted = true;
            return fail_with(EINTR);
        }
    }
    return real(fd, mode, at, n);
}

int fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (command == F_SETFL && ((intptr_t)argument & O_DIRECT) && setting("INTERPOSE_SWAP_BUFFERED") == 1 &&
        is_swap(fd)) {
        return fail_with(EINVAL);
    }
    return real_fcntl(fd, command, argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static long n_made;
    static pid_t process;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (process != getpid()) n_made = 0;  // a child counts its own
    process = getpid();
    if (setting("INTERPOSE_THREADS") && ++n_made >= setting("INTERPOSE_THREADS")) return EAGAIN;
    return real(thread, attributes, run, argument);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("INTERPOSE_REPORT");
    watching = false;
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "own %ld large %ld\n", own, large);
    fclose(file);
}
