// bench_offload.c - make bench-offload: what it costs to keep parts of the model elsewhere. Nothing here is asserted.
//
// One model (d12, bf16, 4 x 256 tokens in a micro-batch) in four placements, in turns within one run, medians:
//   adamw     the update where all states are in the memory of the processor: its bytes per second beside a copy's
//   update    the update alone in every placement, beside what the disk can do with the same pieces: reading alone,
//             writing alone, and both at once; share = what both at once take / the update, and in brackets the longer
//             of reading and writing alone / the update: the strictest bound, as if neither disturbed the other
//   step      steps of 1,024 and of 8,192 tokens; the price is the ratio of the medians. A placement of the optimizer
//             changes nothing but the update, and neighbours of a shared machine disturb a whole step more than an
//             update lasts, so the price also stands there as (update - resident update) / resident step; and for 8,192
//             tokens with eight times the forward and backward of 1,024
// The swap files are in the current directory, which must be on a real disk.
//   bench_offload [UPDATES STEPS_1024 STEPS_8192]     how many of each are measured
#define _GNU_SOURCE
#include "bench_helpers.h"

#define D12 "-e d12 --vocab 50257 --max-length 1024 "
#define MODEL D12 "-p bf16 -b 4 -t 256 "

enum { RESIDENT, HOST, DISK, WEIGHTS, SIDES };

typedef struct {
    const char *flags;
    Trainer *trainer;
    double updates[SAMPLES_MOST];   // alone
    double steps[2][SAMPLES_MOST], parts[2][SAMPLES_MOST];  // of 1,024 and 8,192 tokens; their updates
    double n_read, n_written;       // bytes of an update alone
} Side;

static const int MICRO_BATCHES[2] = {1, 8};

// Seconds of one update, as the step does it, with the gradients that are there.
static double update_seconds(Trainer *trainer) {
    memory_begin(trainer->context.memory, PHASE_UPDATE);
    AdamW update = adamw_step(1e-5f, 0.1f, 10, 1.0f, true);
    trainer->context.memory->disk.n_read = trainer->context.memory->disk.n_written = 0;
    double start = device_seconds();
    update_blocks(&trainer->store, &update);
    double seconds = device_seconds() - start;
    memory_abandon(trainer->context.memory);
    return seconds;
}

// One step, like train_step(); *update: the seconds from the last backward's end on.
static double step_seconds(Trainer *trainer, int micro_batches, double *update) {
    StepRow row;
    memset(&row, 0, sizeof(row));
    trainer->config.micro_batches = (size_t)micro_batches;
    double start = device_seconds();
    for (int i = 0; i < micro_batches; i++) {
        batch_train(&trainer->batch, trainer->step, (size_t)i);
        const float scale = 1.0f / (float)config_tokens(&trainer->config, trainer->ranks->size);
        train_micro_batch(trainer, scale, i == 0, i + 1 == micro_batches);
    }
    double middle = device_seconds();
    train_update(trainer, &row);
    trainer->step++;
    trainer->updates++;
    *update = device_seconds() - middle;
    return device_seconds() - start;
}

// ---------------------------------------------------------------------------------------------------------------
// The disk alone

// Pieces of `n_streams` arrays in turns, as an update reads and writes them.
typedef struct {
    Disk disk;
    char *buffers[2];  // to read into, to write from
    size_t n_streams, stream_bytes, piece_bytes;
} Raw;

static void raw_open(Raw *raw, size_t n_streams, size_t stream_bytes, size_t piece_bytes) {
    memset(raw, 0, sizeof(*raw));
    raw->n_streams = n_streams;
    raw->stream_bytes = size_round_up(stream_bytes, DISK_SECTOR);
    raw->piece_bytes = piece_bytes;
    disk_open(&raw->disk, ".", n_streams * raw->stream_bytes, 1);
    if (!raw->disk.direct) printf("note: this directory does not allow O_DIRECT, so these are rates of a cache\n");
    for (int i = 0; i < 2; i++) {
        raw->buffers[i] = (char *)aligned_alloc(DISK_SECTOR, piece_bytes);
        if (!raw->buffers[i]) die("out of memory");
        memset(raw->buffers[i], 1, piece_bytes);
    }
}

static void *raw_pass(void *argument, bool write) {
    Raw *raw = (Raw *)argument;
    for (size_t at = 0; at < raw->stream_bytes; at += raw->piece_bytes) {
        size_t n = size_min(raw->piece_bytes, raw->stream_bytes - at);
        for (size_t i = 0; i < raw->n_streams; i++) {
            if (write) disk_write(&raw->disk, raw->buffers[1], i * raw->stream_bytes + at, n);
            else disk_read(&raw->disk, raw->buffers[0], i * raw->stream_bytes + at, n);
        }
    }
    return NULL;
}

static void *raw_read(void *raw) { return raw_pass(raw, false); }
static void *raw_write(void *raw) { return raw_pass(raw, true); }

// Seconds to read all, to write all, or both at the same time by two threads.
static double raw_seconds(Raw *raw, bool read, bool write) {
    pthread_t thread;
    double start = device_seconds();
    if (read && write && pthread_create(&thread, NULL, raw_write, raw) != 0) die("can't start a thread");
    if (read) raw_read(raw);
    else raw_write(raw);
    if (read && write) pthread_join(thread, NULL);
    return device_seconds() - start;
}

static void raw_close(Raw *raw) {
    disk_close(&raw->disk);
    free(raw->buffers[0]);
    free(raw->buffers[1]);
}

// ---------------------------------------------------------------------------------------------------------------
// The three tables

static double ms(double *seconds, int n) { return 1e3 * median(seconds, n); }

static void bench_adamw(int rounds) {
    static const char *const lines[] = {D12 "-p fp32 -b 1 -t 64", D12 "-p bf16 -b 1 -t 64"};
    printf("| AdamW in place | MiB read and written | ms (%d) | GB/s | a copy's, plain and past the caches | share |\n"
           "|---|---|---|---|---|---|\n", rounds);
    for (int i = 0; i < 2; i++) {
        Trainer *trainer = bench_open(lines[i]);
        StepRow row;
        Copy copy;
        double seconds[SAMPLES_MOST];
        start_trainer(trainer);
        train_step(trainer, &row);
        copy_open(&copy);
        for (int round = 0; round < rounds; round++) {
            seconds[round] = update_seconds(trainer);
            copy_sample(&copy);
        }
        double bytes = (28.0 + (trainer->config.dtype == FP32 ? 0 : 2)) * (double)trainer->store.n_elements;
        double rate = bytes / median(seconds, rounds);
        double plain = copy_bandwidth(&copy, 0), past = copy_bandwidth(&copy, 1);
        printf("| `%s` | %.0f | %.1f | %.1f | %.1f, %.1f | %.0f %% |\n", lines[i], bytes / (1 << 20),
               ms(seconds, rounds), 1e-9 * rate, 1e-9 * plain, 1e-9 * past, 100 * rate / fmax(plain, past));
        fflush(stdout);
        free(copy.from);
        free(copy.to);
        close_trainer(trainer);
    }
}

// What the disk can do, and the share of it that an update reaches. arithmetic: seconds of the update without a disk;
// if the disk alone needs less, it is not the limit.
static void print_update(Side *side, int rounds, double both, double longer, double arithmetic, const char *disk) {
    double update = median(side->updates, rounds);
    printf("| `%s` | %.1f | %.0f, %.0f | %.2f | %s |", side->flags, 1e3 * update, side->n_read / (1 << 20),
           side->n_written / (1 << 20), 1e-9 * (side->n_read + side->n_written) / update, disk);
    if (both > arithmetic) printf(" %.0f %% (%.0f %%) |\n", 100 * both / update, 100 * longer / update);
    else printf(" %s |\n", both > 0 ? "the disk is not the limit" : "");
}

static void bench_updates(Side *sides, int rounds) {
    const Store *store = &sides[DISK].trainer->store;
    Raw states, weights;
    enum { READ, WRITE, BOTH, WEIGHTS_WRITE, WAYS = SIDES };
    double raw[WAYS][SAMPLES_MOST];
    raw_open(&states, 3, store->n_elements * sizeof(float), STORE_PIECE * sizeof(float));
    raw_open(&weights, 1, store->n_elements * sizeof(uint16_t), STORE_PIECE * sizeof(uint16_t));
    for (int round = -1; round < rounds; round++) {  // the first one is not counted: it fills the new files
        for (int way = 0; way < WAYS; way++) {
            double seconds = way == WEIGHTS_WRITE ? raw_seconds(&weights, false, true)
                                                  : raw_seconds(&states, way != WRITE, way != READ);
            if (round >= 0) raw[way][round] = seconds;
            Side *side = &sides[way];  // one after each way
            seconds = update_seconds(side->trainer);
            if (round >= 0) side->updates[round] = seconds;
            side->n_read = (double)side->trainer->context.memory->disk.n_read;
            side->n_written = (double)side->trainer->context.memory->disk.n_written;
        }
    }
    const double n = (double)(states.n_streams * states.stream_bytes), read = median(raw[READ], rounds),
                 write = median(raw[WRITE], rounds), both = median(raw[BOTH], rounds),
                 of_weights = median(raw[WEIGHTS_WRITE], rounds);
    char text[128], text_weights[128];
    snprintf(text, sizeof(text), "read %.2f, write %.2f, both at once %.2f", 1e-9 * n / read, 1e-9 * n / write,
             2e-9 * n / both);
    snprintf(text_weights, sizeof(text_weights), "write %.2f", 1e-9 * (double)weights.stream_bytes / of_weights);
    printf("\n| update alone | ms (%d) | disk MiB read, written | GB/s | the disk's own GB/s, same pieces "
           "| share (of the longer) |\n|---|---|---|---|---|---|\n", rounds);
    const double resident = median(sides[RESIDENT].updates, rounds), host = median(sides[HOST].updates, rounds);
    print_update(&sides[RESIDENT], rounds, 0, 0, 0, "");
    print_update(&sides[HOST], rounds, 0, 0, 0, "");
    print_update(&sides[DISK], rounds, both, fmax(read, write), host, text);
    print_update(&sides[WEIGHTS], rounds, of_weights, of_weights, resident, text_weights);
    fflush(stdout);
    raw_close(&states);
    raw_close(&weights);
}

static void bench_steps(Side *sides, int size, int rounds) {
    const int micro_batches = MICRO_BATCHES[size];
    if (rounds == 0) return;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < SIDES; i++) {
            sides[i].steps[size][round] =
                step_seconds(sides[i].trainer, micro_batches, &sides[i].parts[size][round]);
        }
    }
    const double step = ms(sides[RESIDENT].steps[size], rounds), part = ms(sides[RESIDENT].parts[size], rounds);
    const int more = MICRO_BATCHES[1] / micro_batches;
    printf("\n| %d tokens per step | step ms (%d) | price | update ms | price by the update%s |\n"
           "|---|---|---|---|---%s|\n", 1024 * micro_batches, rounds, more > 1 ? " | and of 8192 tokens" : "",
           more > 1 ? "|---" : "");
    for (int i = 0; i < SIDES; i++) {
        double own = ms(sides[i].steps[size], rounds), own_part = ms(sides[i].parts[size], rounds);
        printf("| `%s` | %.0f | %+.1f %% | %.0f | %+.1f %% |", sides[i].flags, own, 100 * (own / step - 1), own_part,
               100 * (own_part - part) / step);
        if (more > 1) printf(" %+.1f %% |", 100 * (own_part - part) / (more * (step - part) + part));
        putchar('\n');
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    threads_give_way(argv);
    static Side sides[SIDES];
    static const char *const flags[SIDES] = {"resident", "--offload optimizer=host", "--offload optimizer=disk",
                                             "--offload weights=disk"};
    if (argc != 1 && argc != 4) die("usage: bench_offload [UPDATES STEPS_1024 STEPS_8192]");
    int counts[3] = {7, 3, 2};
    for (int i = 1; i < argc; i++) counts[i - 1] = (int)size_min((size_t)atoi(argv[i]), SAMPLES_MOST);
    if (counts[0] < 1) die("one update at least");
    printf("build/bench_offload %d %d %d; all steps and updates `" MODEL "`\n\n", counts[0], counts[1], counts[2]);
    bench_adamw(counts[0]);
    for (int i = 0; i < SIDES; i++) {
        char line[256];
        double update;
        sides[i].flags = flags[i];
        snprintf(line, sizeof(line), MODEL "%s", i == RESIDENT ? "" : flags[i]);
        sides[i].trainer = bench_open(line);
        start_trainer(sides[i].trainer);
        step_seconds(sides[i].trainer, 1, &update);
    }
    bench_updates(sides, counts[0]);
    bench_steps(sides, 0, counts[1]);
    bench_steps(sides, 1, counts[2]);
    for (int i = 0; i < SIDES; i++) close_trainer(sides[i].trainer);
    return 0;
}
