// tune.h - --tune FILE: which of cuBLASLt's algorithms makes each product, timed once and kept in a file.
//
// A line of the file is a choice for one shape, on one kind of device, by one version of the library:
//
//     VERSION CAPABILITY M N K A_TRANSPOSED B_TRANSPOSED A_TYPE C_TYPE BIAS ADD ALIGNMENT CHOICE
//
// CHOICE is the rank in the library's own list for that shape. What the file has is used as it is, so that runs with
// the same file have the same bits; what it lacks is timed and added. All candidates use the same workspace: tuning
// never changes a byte of memory. A checkpoint names the choices by their hash.
#ifndef TUNE_H
#define TUNE_H

#include "file.h"
#include "kernels/matmul.h"
#include "memory.h"

#ifdef __CUDACC__
enum { TUNE_TRIALS = 5, TUNE_COLUMNS = 13 };

static inline void tune_line(const Device *device, const MatmulEntry *entry, long long *line) {
    const MatmulShape *s = &entry->shape;
    const long long values[TUNE_COLUMNS] = {(long long)cublasLtGetVersion(), device->compute_capability,
                                            (long long)s->M, (long long)s->N, (long long)s->K, s->a_transposed,
                                            s->b_transposed, s->a_dtype, s->c_dtype, s->bias, s->add, s->alignment,
                                            entry->cuda.choice};
    memcpy(line, values, sizeof(values));
}

// Choices that the file has. Which entries it knew is left in `known`.
static inline void tune_read(Device *device, const char *path, bool *known) {
    FILE *file = fopen(path, "r");
    char text[512];
    if (!file && errno == ENOENT) return;
    if (!file) die("--tune %s: %s", path, error_text());
    for (int number = 1; fgets(text, sizeof(text), file); number++) {
        long long line[TUNE_COLUMNS], own[TUNE_COLUMNS];
        int n = 0, offset = 0, step = 0;
        while (n < TUNE_COLUMNS && sscanf(text + offset, "%lld%n", &line[n], &step) == 1) {
            offset += step;
            n++;
        }
        if (n < TUNE_COLUMNS || line[n - 1] < 0 || line[n - 1] >= MATMUL_CANDIDATES) {
            die("--tune %s, line %d: not a line that --tune writes. Remove the file to tune again", path, number);
        }
        for (size_t i = 0; i < device->matmul->n_entries; i++) {
            MatmulEntry *entry = &device->matmul->entries[i];
            tune_line(device, entry, own);
            if (memcmp(line, own, (TUNE_COLUMNS - 1) * sizeof(line[0])) != 0) continue;
            entry->cuda.choice = (int)line[TUNE_COLUMNS - 1];
            known[i] = true;
        }
    }
    fclose(file);
}

static inline double tune_seconds(Device *device, MatmulEntry *entry, char *base) {
    const MatmulShape *s = &entry->shape;
    char *a = base, *b = a + size_round_up(s->M * s->K * number_size(s->a_dtype), MATMUL_WORKSPACE_ALIGN);
    char *bias = b + size_round_up(s->K * s->N * number_size(s->b_dtype), MATMUL_WORKSPACE_ALIGN);
    char *c = bias + size_round_up(s->N * sizeof(float), MATMUL_WORKSPACE_ALIGN);
    char *workspace = c + size_round_up(s->M * s->N * number_size(s->c_dtype), MATMUL_WORKSPACE_ALIGN);
    double best = 1e9;
    for (int trial = 0; trial < TUNE_TRIALS; trial++) {
        cuda_wait(device->cuda);
        double start = device_seconds();
        matmul_cuda(device, s, &entry->cuda, c, a, b, s->bias ? bias : NULL, workspace);
        cuda_wait(device->cuda);
        best = fmin(best, device_seconds() - start);
    }
    return best;
}

// Bytes that tune_seconds() lays out.
static inline size_t tune_bytes(const MatmulEntry *entry) {
    const MatmulShape *s = &entry->shape;
    return s->M * s->K * number_size(s->a_dtype) + s->K * s->N * number_size(s->b_dtype) + s->N * sizeof(float) +
           s->M * s->N * number_size(s->c_dtype) + entry->scratchpad + 5 * MATMUL_WORKSPACE_ALIGN;
}

static inline void tune_write(const Device *device, const char *path, const bool *known) {
    FILE *file = fopen(path, "a");
    if (!file) die("--tune %s: %s. Choose a path that can be written", path, error_text());
    for (size_t i = 0; i < device->matmul->n_entries; i++) {
        long long line[TUNE_COLUMNS];
        if (known[i] || device->matmul->entries[i].cuda.own_kernel) continue;
        tune_line(device, &device->matmul->entries[i], line);
        for (int n = 0; n < TUNE_COLUMNS; n++) fprintf(file, n ? " %lld" : "%lld", line[n]);
        fputc('\n', file);
    }
    if (fclose(file) != 0) die("--tune %s: %s", path, error_text());
}

// Chooses for every product that the plan has found. Memory is the run's own, before anything is in it.
static inline void tune_cuda(Device *device, Memory *memory, const char *path) {
    Slab *slab = &memory->slabs[TIER_DEVICE];
    bool known[MATMUL_ENTRIES] = {false};
    size_t timed = 0;
    tune_read(device, path, known);
    for (size_t i = 0; i < device->matmul->n_entries; i++) {
        MatmulEntry *entry = &device->matmul->entries[i];
        const int choice = entry->cuda.choice;
        int candidates = matmul_cuda_choose(device, &entry->shape, &entry->cuda);
        if (known[i] && entry->cuda.choice != choice) {
            die("--tune %s: it names an algorithm that the library does not have. Remove the file to tune again", path);
        }
        if (known[i] || entry->cuda.own_kernel || tune_bytes(entry) > slab->capacity) continue;
        double best = 1e9;
        int fastest = 0;
        device_zero(device, slab->base, tune_bytes(entry));
        for (entry->cuda.choice = 0; entry->cuda.choice < candidates; entry->cuda.choice++) {
            matmul_cuda_choose(device, &entry->shape, &entry->cuda);
            double seconds = tune_seconds(device, entry, slab->base);
            if (seconds < best) fastest = entry->cuda.choice;
            best = fmin(best, seconds);
        }
        entry->cuda.choice = fastest;
        matmul_cuda_choose(device, &entry->shape, &entry->cuda);
        timed++;
    }
    tune_write(device, path, known);
    printf("tune       %zu products timed, the rest from %s\n", timed, path);
}
#endif

// A number for all choices together; 0 if nothing was tuned.
static inline uint64_t tune_hash(const Device *device) {
    uint64_t hash = 0;
#ifdef __CUDACC__
    for (size_t i = 0; i < device->matmul->n_entries && device->real == DEVICE_CUDA; i++) {
        long long line[TUNE_COLUMNS];
        if (device->matmul->entries[i].cuda.choice == 0) continue;
        tune_line(device, &device->matmul->entries[i], line);
        hash ^= file_hash(1, line, sizeof(line));  // in whatever order
    }
#else
    (void)device;
#endif
    return hash;
}

#endif
