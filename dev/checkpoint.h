// checkpoint.h - a run's state in one file, from which it goes on bit for bit.
//
//     | header, 1024 bytes | master weights | m | v |        fp32, little-endian, each n_parameters long
//
// Tensors stand in the order of the blocks, without paddings, so that the file depends on neither ranks nor places.
// The header has the model, the position of the run and a hash of every section and of itself.
//
// Invariant: a file named checkpoint_*.bin is whole. It is written beside as *.partial, synced, then renamed, so that
// a kill, a full disk or a power cut leaves the last good one. Rank 0 writes; its room for a piece on its way
// (store_push_piece) is all that saving takes. Every rank reads what it needs.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

#include "file.h"
#include "store.h"

enum { CHECKPOINT_FORMAT = 3, CHECKPOINT_HEADER = 1024, CHECKPOINT_SECTIONS = 3 };
static const char CHECKPOINT_MAGIC[8] = {'T', 'R', 'A', 'I', 'N', 'G', 'P', 'T'};

typedef struct {
    char magic[8];
    int64_t format;
    int64_t L, NH, C, V, maxT;
    int64_t dtype;                          // Dtype, the compute type of the run
    int64_t step, updates;                  // attempted and applied
    int64_t B, T, tokens_per_step, tokens;  // tokens: trained on so far
    uint64_t seed, data;                    // data: the loader's fingerprint
    double loss_scale;                      // 1 without loss scaling
    int64_t good_steps;                     // since the last change of the loss scale
    int64_t n_parameters;
    uint64_t tuned;  // hash of --tune's choices, 0 if there were none
    uint64_t hashes[CHECKPOINT_SECTIONS];
    uint64_t header_hash;  // of everything before
} CheckpointHeader;

// The hash of everything before header_hash.
static inline uint64_t checkpoint_header_hash(const CheckpointHeader *header) {
    return file_hash(1, header, offsetof(CheckpointHeader, header_hash));
}

// The model's shape, as the header has it.
static inline ModelShape checkpoint_shape(const CheckpointHeader *header) {
    ModelShape shape;
    shape.L = (size_t)header->L;
    shape.NH = (size_t)header->NH;
    shape.C = (size_t)header->C;
    shape.V = (size_t)header->V;
    shape.Vp = size_round_up(shape.V, 128);
    shape.maxT = (size_t)header->maxT;
    return shape;
}

// ---------------------------------------------------------------------------------------------------------------
// Saving

// A file could not be written (errno): what there is of it goes, and the program ends.
static inline void checkpoint_fail(int fd, const char *partial, const char *path) {
    const char *text = error_text();
    if (fd >= 0) close(fd);
    unlink(partial);
    die("can't write %s: %s. Earlier checkpoints are untouched; free some space or choose another -o", path, text);
}

// The section's home.
static const int CHECKPOINT_HOMES[CHECKPOINT_SECTIONS] = {HOME_MASTER, HOME_M, HOME_V};

// The next stretch of a block's elements [begin, begin + n) that a checkpoint holds, from tensor *i on: false if there
// is none.
static inline bool checkpoint_stretch(const BlockLayout *layout, size_t begin, size_t n, size_t *i, size_t *first,
                                      size_t *end) {
    for (; *i < layout->n_tensors; ++*i) {
        const Tensor *tensor = &layout->tensors[*i];
        *first = size_max(tensor->offset, begin);
        *end = size_min(tensor->offset + tensor->n_saved, begin + n);
        if (*first >= *end) continue;
        ++*i;
        return true;
    }
    return false;
}

static inline void checkpoint_path(char *path, size_t size, const char *directory, int64_t step) {
    int n = snprintf(path, size, "%s/checkpoint_%08lld.bin", directory, (long long)step);
    if (n < 0 || (size_t)n >= size) die("-o %s: the path is too long", directory);
}

// Writes directory/checkpoint_STEP.bin; header: magic, format, model, sizes and hashes are filled in here. directory
// NULL (a plan): only takes what that takes.
static inline void checkpoint_save(Store *store, CheckpointHeader *header, const char *directory) {
    char path[PATH_MAX], partial[PATH_MAX + 16], padded[CHECKPOINT_HEADER] = {0};
    memcpy(header->magic, CHECKPOINT_MAGIC, 8);
    header->format = CHECKPOINT_FORMAT;
    header->L = (int64_t)store->shape.L;
    header->NH = (int64_t)store->shape.NH;
    header->C = (int64_t)store->shape.C;
    header->V = (int64_t)store->shape.V;
    header->maxT = (int64_t)store->shape.maxT;
    header->dtype = store->dtype;
    header->n_parameters = (int64_t)layout_parameters(&store->shape);
    const bool writes = directory && store->ranks->rank == 0;
    if (directory) checkpoint_path(path, sizeof(path), directory, header->step);
    if (directory) snprintf(partial, sizeof(partial), "%s.partial", path);
    int fd = writes ? open(partial, O_CREAT | O_TRUNC | O_WRONLY, 0666) : -1;
    if (writes && (fd < 0 || !file_write(fd, padded, sizeof(padded)))) checkpoint_fail(fd, partial, path);
    size_t mark = memory_mark(store->memory, TIER_HOST);
    float *values;
    const size_t room = store_push_piece(store, &values, NULL);
    if (host_writes(store->device, values, room * sizeof(float))) {
        memset(values, 0, room * sizeof(float));  // a rank other than 0 fills its own parts only
    }
    for (int section = 0; section < CHECKPOINT_SECTIONS; section++) {
        uint64_t hash = (uint64_t)section;
        for (size_t block = 0; block < store->n_blocks; block++) {
            const BlockLayout *layout = store_layout(store, block);
            for (size_t begin = 0, n; begin < layout->n_elements; begin += n) {
                n = size_min(room, layout->n_elements - begin);
                store_get(store, CHECKPOINT_HOMES[section], block, begin, n, values);
                if (!host_reads(store->device, values, n * sizeof(float))) continue;
                for (size_t i = 0, first, end; writes && checkpoint_stretch(layout, begin, n, &i, &first, &end);) {
                    hash = file_hash(hash, values + (first - begin), (end - first) * sizeof(float));
                    if (!file_write(fd, values + (first - begin), (end - first) * sizeof(float))) {
                        checkpoint_fail(fd, partial, path);
                    }
                }
            }
        }
        header->hashes[section] = hash;
    }
    memory_release(store->memory, TIER_HOST, mark);
    ranks_barrier(store->ranks);
    if (!writes) return;
    header->header_hash = checkpoint_header_hash(header);
    memcpy(padded, header, sizeof(*header));
    if (lseek(fd, 0, SEEK_SET) != 0 || !file_write(fd, padded, sizeof(padded))) checkpoint_fail(fd, partial, path);
    if (!file_commit(fd, partial, path, directory)) checkpoint_fail(-1, partial, path);
}

// ---------------------------------------------------------------------------------------------------------------
// Loading

// Reads and checks the header of an open file; NULL if it is good, else what is wrong.
static inline const char *checkpoint_read_header(int fd, CheckpointHeader *header) {
    char padded[CHECKPOINT_HEADER];
    struct stat status;
    if (fstat(fd, &status) != 0) return "can't be examined";
    if (!S_ISREG(status.st_mode)) return "is not a file";
    if (!file_read(fd, padded, sizeof(padded))) return "is shorter than a header";
    memcpy(header, padded, sizeof(*header));
    if (memcmp(header->magic, CHECKPOINT_MAGIC, 8) != 0) return "is not a checkpoint of train_gpt";
    if (header->format != CHECKPOINT_FORMAT) return "has a format that this program does not know";
    if (header->header_hash != checkpoint_header_hash(header)) return "has a damaged header";
    ModelShape shape = checkpoint_shape(header);
    bool sane = header->L > 0 && header->NH > 0 && header->C > 0 && header->V > 0 && header->maxT > 0 &&
                header->C % header->NH == 0 && header->n_parameters == (int64_t)layout_parameters(&shape) &&
                header->dtype >= 0 && header->dtype < DTYPES;
    if (!sane) return "has an impossible model";
    int64_t n_bytes = CHECKPOINT_HEADER + CHECKPOINT_SECTIONS * header->n_parameters * (int64_t)sizeof(float);
    if ((int64_t)status.st_size != n_bytes) return "has the wrong length";
    return NULL;
}

// Reads all of it and compares the hashes; NULL if it is good, else what is wrong.
static inline const char *checkpoint_check(const char *path, CheckpointHeader *header) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) return error_text();
    const char *wrong = checkpoint_read_header(fd, header);
    for (int section = 0; section < CHECKPOINT_SECTIONS && !wrong; section++) {
        char buffer[1 << 16];
        uint64_t hash = (uint64_t)section;
        for (size_t left = (size_t)header->n_parameters * sizeof(float), part; left > 0 && !wrong; left -= part) {
            part = size_min(left, sizeof(buffer));
            if (!file_read(fd, buffer, part)) wrong = errno ? error_text() : "ends too early";
            hash = file_hash(hash, buffer, part);
        }
        if (!wrong && hash != header->hashes[section]) wrong = "is damaged: a checksum does not fit";
    }
    close(fd);
    return wrong;
}

// Reads the tensors of elements [begin, begin + n) of a block, which come next in an open file, and goes on with the
// hash.
static inline uint64_t checkpoint_read_piece(int fd, const char *path, const BlockLayout *layout, size_t begin,
                                             size_t n, float *values, uint64_t hash) {
    memset(values, 0, n * sizeof(float));
    for (size_t i = 0, first, end; checkpoint_stretch(layout, begin, n, &i, &first, &end);) {
        const size_t n_bytes = (end - first) * sizeof(float);
        if (!file_read(fd, values + (first - begin), n_bytes)) die("short read in %s", path);
        hash = file_hash(hash, values + (first - begin), n_bytes);
    }
    return hash;
}

// Fills the store from a checked file of the same model; path NULL (a plan): only takes what that takes. with_moments:
// go on with the run; otherwise the weights start a new one.
static inline void checkpoint_load(Store *store, const char *path, bool with_moments) {
    CheckpointHeader header;
    const int fd = path ? open(path, O_RDONLY) : -1;
    if (path && (fd < 0 || checkpoint_read_header(fd, &header))) die("can't read %s again: it has changed", path);
    size_t mark = memory_mark(store->memory, TIER_HOST);
    float *values;
    void *rounded = NULL;
    const size_t room = store_push_piece(store, &values, &rounded);
    store_zero(store);
    for (int section = 0; section < (with_moments ? CHECKPOINT_SECTIONS : 1); section++) {
        uint64_t hash = (uint64_t)section;
        for (size_t block = 0; block < store->n_blocks; block++) {
            const BlockLayout *layout = store_layout(store, block);
            for (size_t begin = 0, n; begin < layout->n_elements; begin += n) {
                n = size_min(room, layout->n_elements - begin);
                if (host_writes(store->device, values, n * sizeof(float))) {
                    hash = checkpoint_read_piece(fd, path, layout, begin, n, values, hash);
                }
                store_put(store, CHECKPOINT_HOMES[section], block, begin, n, values, rounded);
            }
        }
        if (path && hash != header.hashes[section]) die("%s changed while it was read", path);
    }
    if (path) close(fd);
    store_join(store);
    memory_release(store->memory, TIER_HOST, mark);
}

// Step of a file name checkpoint_STEP.bin, or -1.
static inline int64_t checkpoint_name_step(const char *name) {
    long long step;
    int end = 0;
    if (sscanf(name, "checkpoint_%lld.bin%n", &step, &end) != 1 || end == 0 || name[end] || step < 0) return -1;
    return step;
}

// The newest good checkpoint of a directory: its path and header, true. Bad ones are named on stderr (by rank 0) and
// passed over; if all are bad, dies: a run must not start from scratch unasked. False if there is none at all.
// Leftovers of interrupted saves are removed.
static inline bool checkpoint_newest(const char *directory, char *path, size_t size, CheckpointHeader *header) {
    int64_t below = INT64_MAX;
    for (bool any = false;; any = true) {
        DIR *listing = opendir(directory);
        if (!listing) return false;
        int64_t newest = -1;
        for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
            int64_t step = checkpoint_name_step(entry->d_name);
            if (step > newest && step < below) newest = step;
            size_t n = strlen(entry->d_name);
            bool leftover = n > 8 && strcmp(entry->d_name + n - 8, ".partial") == 0;
            if (leftover && strncmp(entry->d_name, "checkpoint_", 11) == 0) unlinkat(dirfd(listing), entry->d_name, 0);
        }
        closedir(listing);
        if (newest < 0 && any) die("%s: no checkpoint is good. Remove them to start from scratch", directory);
        if (newest < 0) return false;
        checkpoint_path(path, size, directory, newest);
        const char *wrong = checkpoint_check(path, header);
        if (!wrong) return true;
        if (error_launched(true) == 0) fprintf(stderr, "train_gpt: %s %s; trying the one before\n", path, wrong);
        below = newest;
    }
}

#endif
