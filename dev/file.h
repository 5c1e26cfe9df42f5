// file.h - files that are read and written whole, hashed, and put in their place only when they are complete.
//
// Invariant: a transfer is complete or says why not (errno); EINTR and short transfers are nobody else's business.
#ifndef FILE_H
#define FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include "error.h"

// Goes on with a hash over n_bytes, in words of four; a rest of fewer than four bytes does not count.
static inline uint64_t file_hash(uint64_t hash, const void *data, size_t n_bytes) {
    const char *from = (const char *)data;
    for (size_t i = 0; i + 4 <= n_bytes; i += 4) {
        uint32_t word;
        memcpy(&word, from + i, 4);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return hash;
}

// Writes all n_bytes. False: errno says why (ENOSPC also where nothing was written).
static inline bool file_write(int fd, const void *data, size_t n_bytes) {
    const char *from = (const char *)data;
    while (n_bytes > 0) {
        ssize_t n = write(fd, from, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = ENOSPC;
            return false;
        }
        from += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

// False at the end of the file or an error (errno 0 tells the end).
static inline bool file_read(int fd, void *data, size_t n_bytes) {
    char *to = (char *)data;
    while (n_bytes > 0) {
        ssize_t n = read(fd, to, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = 0;
            return false;
        }
        to += n;
        n_bytes -= (size_t)n;
    }
    return true;
}

// Renames a finished, still open file over its final name, so that both survive a power cut. False: see errno.
static inline bool file_commit(int fd, const char *partial, const char *path, const char *directory) {
    if (fsync(fd) != 0 || close(fd) != 0 || rename(partial, path) != 0) return false;
    int directory_fd = open(directory, O_RDONLY);
    if (directory_fd < 0) return false;
    bool synced = fsync(directory_fd) == 0 || errno == EINVAL;  // some file systems can't sync directories
    close(directory_fd);
    return synced;
}

#endif
