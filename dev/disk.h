// disk.h - one swap file per rank: where blocks live that neither the device nor the host has room for.
//
// The file is unlinked as soon as it is open, so it goes away with the process, however that ends. All of its bytes are
// allocated at the start, so a disk that is too small is found then. Where the file system can, transfers bypass the
// page cache (O_DIRECT): it would take the memory that the swap file is to spare, and copy everything once more.
//
// Invariants: whole sectors in memory and in the file; a transfer is complete or the run ends. Any number of threads
// may transfer at a time, if their parts of the file differ.
#ifndef DISK_H
#define DISK_H

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include "error.h"
#include "number.h"

enum { DISK_SECTOR = 4096, DISK_CALL = 1 << 30 };  // bytes; DISK_CALL: of one system call, the kernel takes below 2^31

typedef struct {
    int fd;
    bool direct;       // O_DIRECT
    size_t n_bytes;    // of the file, a multiple of DISK_SECTOR
    uint64_t n_read;   // bytes since the start, in whole sectors if `direct`; atomic
    uint64_t n_written;
    char path[PATH_MAX];  // its name while it had one, for messages
} Disk;

static inline unsigned char *disk_sector_in(unsigned char *two_sectors) {
    return two_sectors + (DISK_SECTOR - (uintptr_t)two_sectors % DISK_SECTOR) % DISK_SECTOR;
}

// Moves bytes to the file if `from`, otherwise into `to`, and returns how many: all, or errno says why (0: end of the
// file, or no progress). Where a direct transfer ends within a sector, it goes on at that sector's start.
static inline size_t disk_transfer(int fd, bool direct, unsigned char *to, const unsigned char *from, size_t offset,
                                   size_t n_bytes) {
    size_t done = 0;
    for (int tries = 0; done < n_bytes && tries < 100;) {
        const size_t wanted = size_min(n_bytes - done, DISK_CALL);
        const ssize_t n = from ? pwrite(fd, from + done, wanted, (off_t)(offset + done))
                               : pread(fd, to + done, wanted, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return done;
        const size_t moved = direct ? (size_t)n - (size_t)n % DISK_SECTOR : (size_t)n;
        tries = moved > 0 ? 0 : tries + 1;
        done += moved;
    }
    errno = 0;
    return done;
}

// ---------------------------------------------------------------------------------------------------------------
// Opening

// Bytes that this user may still write in a directory.
static inline size_t disk_available(const char *directory) {
    struct statvfs status;
    if (statvfs(directory, &status) != 0) return 0;
    return (size_t)status.f_bavail * (size_t)status.f_frsize;
}

// Zeros into the whole file, for file systems without fallocate(); 0, or -1 with errno.
static inline int disk_write_zeros(int fd, size_t n_bytes) {
    static const unsigned char zeros[1 << 16] = {0};
    for (size_t done = 0; done < n_bytes; done += sizeof(zeros)) {
        const size_t n = size_min(sizeof(zeros), n_bytes - done);
        if (disk_transfer(fd, false, NULL, zeros, done, n) != n) return -1;
    }
    return fdatasync(fd);  // some allocate no sooner
}

static inline void disk_allocate(Disk *disk, const char *directory) {
    struct rlimit limit;  // beyond it, a signal would end the process
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < disk->n_bytes) {
        die("--swap-dir %s: %zu bytes are needed, but files may only have %zu. Raise the limit (ulimit -f) or offload "
            "less", directory, disk->n_bytes, (size_t)limit.rlim_cur);
    }
    if (disk->n_bytes == 0) return;
    int status;
    do status = fallocate(disk->fd, 0, 0, (off_t)disk->n_bytes);
    while (status != 0 && errno == EINTR);
    if (status != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) status = disk_write_zeros(disk->fd, disk->n_bytes);
    if (status == 0) return;
    const int error = errno;
    const int given_back = ftruncate(disk->fd, 0);  // so that the message counts what it got
    (void)given_back;
    die("--swap-dir %s: %zu bytes are needed, %zu are free: %s. Choose another --swap-dir or offload less", directory,
        disk->n_bytes, disk_available(directory), strerror(error));
}

// Whether a sector comes back as it went out. Some file systems take the flag and refuse the transfers.
static inline bool disk_sector_works(int fd) {
    unsigned char out[2 * DISK_SECTOR], in[2 * DISK_SECTOR], *sector = disk_sector_in(out), *back = disk_sector_in(in);
    for (size_t i = 0; i < DISK_SECTOR; i++) sector[i] = (unsigned char)(i * 7 + i / 256);
    memset(back, 0, DISK_SECTOR);
    return disk_transfer(fd, true, NULL, sector, 0, DISK_SECTOR) == DISK_SECTOR &&
           disk_transfer(fd, true, back, NULL, 0, DISK_SECTOR) == DISK_SECTOR &&
           memcmp(sector, back, DISK_SECTOR) == 0;
}

// Turns O_DIRECT on if it works. Not by open(), which may leave a file behind when it refuses the flag.
static inline void disk_go_direct(Disk *disk) {
#ifdef O_DIRECT
    const int flags = fcntl(disk->fd, F_GETFL);
    if (flags < 0 || fcntl(disk->fd, F_SETFL, flags | O_DIRECT) != 0) return;
    disk->direct = disk_sector_works(disk->fd);
    if (!disk->direct && fcntl(disk->fd, F_SETFL, flags) != 0) {
        die("%s: can't turn O_DIRECT off: %s. Choose another --swap-dir", disk->path, error_text());
    }
    unsigned char room[2 * DISK_SECTOR], *zeros = disk_sector_in(room);  // the file starts as zeros
    memset(zeros, 0, DISK_SECTOR);
    if (disk_transfer(disk->fd, disk->direct, NULL, zeros, 0, DISK_SECTOR) != DISK_SECTOR) {
        die("%s: can't write: %s. Choose another --swap-dir", disk->path, error_text());
    }
#endif
}

// Makes a swap file of n_bytes (rounded up to DISK_SECTOR), all zero, in a directory. Dies, with what to do, if the
// directory is missing or can't be written to, or has not that many bytes. Rank 0 says so on stdout if the file is not
// O_DIRECT.
static inline void disk_open(Disk *disk, const char *directory, size_t n_bytes, int rank) {
    memset(disk, 0, sizeof(*disk));
    disk->n_bytes = size_round_up(n_bytes, DISK_SECTOR);
    struct stat status;
    if (stat(directory, &status) != 0) {
        die("--swap-dir %s: %s. Make the directory or choose another --swap-dir", directory, error_text());
    }
    if (!S_ISDIR(status.st_mode)) {
        die("--swap-dir %s is not a directory. Choose another --swap-dir", directory);
    }
    int n = snprintf(disk->path, sizeof(disk->path), "%s/train_gpt_swap_%ld_%d", directory, (long)getpid(), rank);
    if (n < 0 || (size_t)n >= sizeof(disk->path)) die("the name of --swap-dir is too long: %s", directory);
    disk->fd = open(disk->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (disk->fd < 0) {
        die("--swap-dir %s: can't make a file there: %s. Choose another --swap-dir, on a disk that can be written to",
            directory, error_text());
    }
    if (unlink(disk->path) != 0) die("%s: can't unlink: %s. Choose another --swap-dir", disk->path, error_text());
    disk_allocate(disk, directory);
    if (disk->n_bytes > 0) disk_go_direct(disk);
    if (!disk->direct && rank == 0) {
        printf("note: --swap-dir %s does not allow O_DIRECT; transfers go through the page cache\n", directory);
    }
}

// Frees the file's room.
static inline void disk_close(Disk *disk) {
    close(disk->fd);
    disk->fd = -1;
}

// ---------------------------------------------------------------------------------------------------------------
// Transfers

static inline void disk_check(const Disk *disk, const void *memory, size_t offset, size_t n_bytes) {
    if (n_bytes > disk->n_bytes || offset > disk->n_bytes - n_bytes) {
        die("%s: bytes %zu ... %zu + %zu lie beyond the end, %zu. This is a bug, please report it", disk->path, offset,
            offset, n_bytes, disk->n_bytes);
    }
    if (offset % DISK_SECTOR != 0 || (uintptr_t)memory % DISK_SECTOR != 0) {
        die("%s: offset %zu, memory %p: not a multiple of %d. This is a bug, please report it", disk->path, offset,
            memory, (int)DISK_SECTOR);
    }
}

static inline void disk_move(const Disk *disk, unsigned char *to, const unsigned char *from, size_t offset,
                             size_t n_bytes) {
    const size_t moved = disk_transfer(disk->fd, disk->direct, to, from, offset, n_bytes);
    if (moved == n_bytes) return;
    die("%s: %s %zu bytes at offset %zu: %s. Is the disk all right? Otherwise choose another --swap-dir", disk->path,
        from ? "writing" : "reading", n_bytes - moved, offset + moved, errno ? error_text() : "it gets no further");
}

// Bytes that go without detour; the rest goes through a sector of its own.
static inline size_t disk_whole(const Disk *disk, size_t n_bytes) {
    return disk->direct ? n_bytes - n_bytes % DISK_SECTOR : n_bytes;
}

// to[0 ... n_bytes) = the file's bytes from `offset` on; `offset` and `to` are multiples of DISK_SECTOR. Dies with the
// file's name, the offset and the reason.
static inline void disk_read(Disk *disk, void *to, size_t offset, size_t n_bytes) {
    const size_t whole = disk_whole(disk, n_bytes), tail = n_bytes - whole;
    disk_check(disk, to, offset, n_bytes);
    disk_move(disk, (unsigned char *)to, NULL, offset, whole);
    if (tail > 0) {
        unsigned char buffer[2 * DISK_SECTOR], *sector = disk_sector_in(buffer);
        disk_move(disk, sector, NULL, offset + whole, DISK_SECTOR);
        memcpy((unsigned char *)to + whole, sector, tail);
    }
    __atomic_fetch_add(&disk->n_read, whole + (tail > 0 ? DISK_SECTOR : 0), __ATOMIC_RELAXED);
}

// The file's bytes from `offset` on = from[0 ... n_bytes); `offset` and `from` are multiples of DISK_SECTOR. What lies
// behind them in the last sector is undefined afterwards. Dies like disk_read().
static inline void disk_write(Disk *disk, const void *from, size_t offset, size_t n_bytes) {
    const size_t whole = disk_whole(disk, n_bytes), tail = n_bytes - whole;
    disk_check(disk, from, offset, n_bytes);
    disk_move(disk, NULL, (const unsigned char *)from, offset, whole);
    if (tail > 0) {
        unsigned char buffer[2 * DISK_SECTOR], *sector = disk_sector_in(buffer);
        memset(sector, 0, DISK_SECTOR);
        memcpy(sector, (const unsigned char *)from + whole, tail);
        disk_move(disk, NULL, sector, offset + whole, DISK_SECTOR);
    }
    __atomic_fetch_add(&disk->n_written, whole + (tail > 0 ? DISK_SECTOR : 0), __ATOMIC_RELAXED);
}

#endif
