// log.h - the files that a run writes beside its checkpoints: steps.csv and memory.csv.
//
// steps.csv has one row per attempted step. Rows are written whole, one write each, so that a killed run leaves whole
// rows; a resumed run drops the rows after its checkpoint. Nothing here allocates after log_open().
#ifndef LOG_H
#define LOG_H

#include <limits.h>
#include <sys/stat.h>

#include "ranks.h"
#include "file.h"
#include "ledger.h"

#define LOG_STEPS_HEADER                                                                                      \
    "step,tokens,train_loss,val_loss,norm,lr,ms,tokens_per_second,mfu,peak_device_bytes,peak_host_bytes,skipped," \
    "loss_scale,good_steps,sent_bytes,disk_read_bytes,disk_written_bytes\n"
#define LOG_MEMORY_HEADER "rank,phase,tier,kind,planned_bytes,measured_bytes\n"

typedef struct {
    int64_t step, tokens;
    double train_loss, val_loss;  // val_loss NaN: not measured
    bool validated;
    double norm, lr, ms, tokens_per_second, mfu;
    size_t peak_device_bytes, peak_host_bytes;
    bool skipped;
    double loss_scale;
    int64_t good_steps;
    size_t sent_bytes, disk_read_bytes, disk_written_bytes;  // of this rank
} StepRow;

typedef struct {
    const char *directory;  // NULL: no files, as in a log of zeros that was never opened
    int steps_fd;
} Log;

// directory/name to `path` (size).
static inline void log_path(char *path, size_t size, const char *directory, const char *name) {
    int n = snprintf(path, size, "%s/%s", directory, name);
    if (n < 0 || (size_t)n >= size) die("-o %s: the path is too long", directory);
}

// mkdir -p
static inline void log_make_directory(const char *directory) {
    char path[PATH_MAX];
    log_path(path, sizeof(path), directory, "");
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST) die("-o %s: can't make %s: %s", directory, path, error_text());
        *slash = '/';
    }
    struct stat status;
    if (stat(directory, &status) != 0 || !S_ISDIR(status.st_mode)) die("-o %s is not a directory", directory);
}

// Copies the header and the rows up to `last_step` of an old steps.csv into `to`.
static inline void log_copy_rows(FILE *old, FILE *to, int64_t last_step) {
    char line[1024];
    while (fgets(line, sizeof(line), old)) {
        long long step;
        if (sscanf(line, "%lld,", &step) == 1 && step <= last_step && strchr(line, '\n')) fputs(line, to);
    }
}

// Makes the directory and starts steps.csv; a resumed run (last_step >= 0) keeps the rows up to its checkpoint.
static inline void log_open(Log *log, const char *directory, int64_t last_step) {
    log->directory = directory;
    log->steps_fd = -1;
    if (!directory) return;
    char path[PATH_MAX], partial[PATH_MAX];
    log_path(path, sizeof(path), directory, "steps.csv");
    log_path(partial, sizeof(partial), directory, "steps.csv.partial");
    FILE *to = fopen(partial, "w");
    if (!to) die("can't write %s: %s", partial, error_text());
    fputs(LOG_STEPS_HEADER, to);
    FILE *old = last_step >= 0 ? fopen(path, "r") : NULL;
    if (old) {
        log_copy_rows(old, to, last_step);
        fclose(old);
    }
    if (fclose(to) != 0 || rename(partial, path) != 0) die("can't write %s: %s", path, error_text());
    log->steps_fd = open(path, O_WRONLY | O_APPEND);
    if (log->steps_fd < 0) die("can't write %s: %s", path, error_text());
}

// What was written is in the file already.
static inline void log_close(Log *log) {
    if (log->directory) close(log->steps_fd);
}

// Appends a step's line to steps.csv.
static inline void log_step(Log *log, const StepRow *r) {
    if (!log->directory) return;
    char line[512], val[32] = "";
    if (r->validated) snprintf(val, sizeof(val), "%.9g", r->val_loss);
    int n = snprintf(line, sizeof(line), "%lld,%lld,%.9g,%s,"
                                         "%.9g,%.9g,%.3f,%.1f,%.4f,%zu,%zu,%d,%.9g,%lld,%zu,%zu,%zu\n",
                     (long long)r->step, (long long)r->tokens, r->train_loss, val, r->norm, r->lr, r->ms,
                     r->tokens_per_second, r->mfu, r->peak_device_bytes, r->peak_host_bytes, r->skipped ? 1 : 0,
                     r->loss_scale, (long long)r->good_steps, r->sent_bytes, r->disk_read_bytes,
                     r->disk_written_bytes);
    if (!file_write(log->steps_fd, line, (size_t)n)) {
        die("can't write %s/steps.csv: %s. Free some space, then go on with -y 1", log->directory, error_text());
    }
}

// A rank's lines of memory.csv; measured NULL: of a plan that was not run.
static inline void log_memory_rank(FILE *file, int rank, const Ledger *plan, const Ledger *measured) {
    for (int p = 0; p < PHASES; p++) {
        for (int t = 0; t < TIERS && plan->phases[p].occurred; t++) {
            for (int k = 0; k < KINDS; k++) {
                fprintf(file, "%d,%s,%s,%s,%zu,", rank, ledger_phase_name(p), ledger_tier_name(t), ledger_kind_name(k),
                        plan->phases[p].kinds[t][k]);
                if (measured && measured->phases[p].occurred) fprintf(file, "%zu", measured->phases[p].kinds[t][k]);
                fputc('\n', file);
            }
        }
    }
}

// memory.csv, written by rank 0: planned, which is the same on every rank, and what was measured on each of the phases
// that have occurred (measured NULL: a plan only).
static inline void log_memory_csv(const char *directory, Ranks *ranks, const Ledger *plan, const Ledger *measured) {
    char path[PATH_MAX], partial[PATH_MAX];
    log_path(path, sizeof(path), directory, "memory.csv");
    log_path(partial, sizeof(partial), directory, "memory.csv.partial");
    Ledger of_rank;
    FILE *file = ranks->rank == 0 ? fopen(partial, "w") : NULL;
    if (ranks->rank == 0 && !file) die("can't write %s: %s", partial, error_text());
    if (file) fputs(LOG_MEMORY_HEADER, file);
    for (int r = 0; r < ranks->size; r++) {
        if (measured && r == ranks->rank) of_rank = *measured;
        if (measured) ranks_to_root(ranks, r, &of_rank, sizeof(of_rank));
        if (file) log_memory_rank(file, r, plan, measured ? &of_rank : NULL);
    }
    if (!file) return;
    if (fclose(file) != 0 || rename(partial, path) != 0) die("can't write %s: %s", path, error_text());
}

#endif
