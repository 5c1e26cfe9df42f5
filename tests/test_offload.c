// test_offload.c - ranks and homes from within: bytes per rank by formulas of their own, bytes sent, steps that are
// skipped by all ranks, checkpoints that go from any ranks and places to any others.
#include "ranks_helpers.h"

// ---------------------------------------------------------------------------------------------------------------
// Formulas: bytes of a rank by tier and kind, written from ZeRO's definition and the list of buffers

// Elements of a model's blocks, each in whole chunks of 4,096 for each of N ranks.
typedef struct {
    size_t L, N, embedding, layer, all;
} Sizes;

static Sizes model_sizes(const ModelShape *s, size_t N) {
    const size_t unit = 4096 * N, C = s->C;
    Sizes x = {s->L, N, (s->Vp + s->maxT + 2) * C, 12 * C * C + 13 * C, 0};
    x.embedding = (x.embedding + unit - 1) / unit * unit;
    x.layer = (x.layer + unit - 1) / unit * unit;
    x.all = x.embedding + s->L * x.layer;
    return x;
}

typedef size_t Bytes[TIERS][KINDS];

static size_t whole_blocks(const Sizes *x) { return x->embedding + (x->L < 2 ? 1 : 2) * x->layer; }

// Elements that are on their way between ranks at once, of each other rank.
static size_t exchanged_piece(const Sizes *x) {
    size_t piece = 1048576 / (x->N - 1) / 4096 * 4096;
    size_t largest = (x->embedding > x->layer ? x->embedding : x->layer) / x->N;
    return piece < largest ? piece : largest;
}

// What lives for the whole run.
static void formula_kept(Bytes bytes, const Sizes *x, size_t size, const Placement *p) {
    const size_t n = x->all, N = x->N;
    const int z = p->stage;
    memset(bytes, 0, sizeof(Bytes));
    bytes[p->weights][KIND_WEIGHTS] += size * (z >= 3 ? n / N : n);
    bytes[p->gradients][KIND_GRADIENTS] += 4 * (z >= 2 ? n / N : n);
    if (size < 4) bytes[p->optimizer][KIND_MASTER] += 4 * (z >= 1 ? n / N : n);
    bytes[p->optimizer][KIND_MOMENTS] += 8 * (z >= 1 ? n / N : n);
    // Named buffers: slots of whole blocks, pieces from other ranks, a sum per chunk for the norm.
    if (z >= 3 || p->weights != TIER_DEVICE) bytes[TIER_DEVICE][KIND_WEIGHTS] += size * whole_blocks(x);
    if (z >= 2 || p->gradients != TIER_DEVICE) bytes[TIER_DEVICE][KIND_GRADIENTS] += 4 * whole_blocks(x);
    if (N > 1) bytes[TIER_DEVICE][KIND_COLLECTIVE] += 4 * (N - 1) * exchanged_piece(x);
    if (z >= 2 && p->gradients != TIER_DEVICE) bytes[TIER_DEVICE][KIND_COLLECTIVE] += 4 * exchanged_piece(x);
    bytes[TIER_DEVICE][KIND_GRADIENTS] += (8 * (n / N / 4096) + 63) / 64 * 64;
}

// What the update adds: pieces of everything whose home is another memory than that of the processor, one to work on
// and one on its way in each direction.
static void formula_update(Bytes bytes, const Sizes *x, size_t size, const Placement *p) {
    const Tier here = p->update_on_host ? TIER_HOST : TIER_DEVICE;
    const size_t N = p->stage >= 1 ? x->N : 1, embedding = x->embedding / N, layer = x->layer / N;
    size_t piece = embedding > layer ? embedding : layer;
    if (piece > 1048576) piece = 1048576;
    size_t sets = (embedding + piece - 1) / piece + x->L * ((layer + piece - 1) / piece);
    if (sets > 3) sets = 3;
    if (p->weights != here) bytes[here][KIND_WEIGHTS] += sets * size * piece;
    if (p->gradients != here) bytes[here][KIND_GRADIENTS] += sets * 4 * piece;
    if (p->optimizer != here) bytes[here][KIND_MOMENTS] += sets * 8 * piece;
    if (p->optimizer != here && size < 4) bytes[here][KIND_MASTER] += sets * 4 * piece;
}

static const Kind FORMULA_KINDS[] = {KIND_WEIGHTS, KIND_MASTER, KIND_GRADIENTS, KIND_MOMENTS, KIND_COLLECTIVE};

static void check_phase(const Ledger *ledger, Phase phase, Bytes bytes) {
    for (int t = 0; t < TIERS; t++) {
        for (size_t i = 0; i < sizeof(FORMULA_KINDS) / sizeof(FORMULA_KINDS[0]); i++) {
            const Kind kind = FORMULA_KINDS[i];
            const size_t is = ledger->phases[phase].kinds[t][kind];
            // Where nothing of a tier is pushed in a phase, its peak is what is kept.
            if (is == bytes[t][kind]) continue;
            die("%s: phase %s, %s, %s: %zu bytes, by the formula %zu", check_note, ledger_phase_name(phase),
                ledger_tier_name(t), ledger_kind_name(kind), is, bytes[t][kind]);
        }
    }
}

// A ledger, planned or measured, against the formulas. saves: the plan has that phase.
static void check_formulas(const Trainer *m, const Ledger *ledger, bool saves) {
    Bytes bytes;
    const size_t size = m->config.dtype == FP32 ? 4 : 2;
    const Sizes x = model_sizes(&m->config.shape, (size_t)m->ranks->size);
    formula_kept(bytes, &x, size, &m->config.place);
    check_phase(ledger, PHASE_FORWARD, bytes);
    check_phase(ledger, PHASE_HEAD, bytes);
    check_phase(ledger, PHASE_BACKWARD, bytes);
    if (saves) {  // a piece of 1 MiB at most, on the host
        size_t piece = x.all < 262144 ? x.all : 262144, kept = 0;
        check_phase(ledger, PHASE_SAVE, bytes);
        CHECK(ledger->phases[PHASE_SAVE].kinds[TIER_HOST][KIND_FILES] >= 4 * piece);
        for (int k = 0; k < KINDS; k++) kept += ledger->phases[PHASE_FORWARD].kinds[TIER_HOST][k];
        CHECK(ledger->phases[PHASE_SAVE].peak[TIER_HOST] <= kept + 4 * piece + MEMORY_PAGE);
        CHECK(ledger->phases[PHASE_SAVE].peak[TIER_DEVICE] <= ledger->phases[PHASE_UPDATE].peak[TIER_DEVICE]);
    }
    formula_update(bytes, &x, size, &m->config.place);
    check_phase(ledger, PHASE_UPDATE, bytes);
}

// Bytes that a rank sends in a step of A micro-batches.
static size_t formula_sent(const Sizes *x, size_t size, int stage, size_t A, bool applied) {
    const size_t scatter = 4 * x->all, gathered = size * x->all;
    size_t bytes = scatter;                   // the gradients are summed
    if (stage == 0) bytes += scatter;         // and gathered
    if (stage >= 2) bytes += (A - 1) * scatter;  // by every micro-batch
    if (stage >= 3) {
        // The embeddings stay in their slot. Of the layers two do, so each way the rest is gathered anew.
        size_t rest = x->L > 2 ? x->L - 2 : 0;
        bytes += size * (x->embedding + x->layer * (x->L + rest + (A - 1) * 2 * rest));
    } else if (stage >= 1 && applied) {
        bytes += gathered;
    }
    return bytes / x->N * (x->N - 1);
}

static const char *const HOMES_OF[] = {
    "", "--offload optimizer=host", "--offload optimizer=disk,gradients=host,weights=host",
    "--offload weights=disk,gradients=disk --update device", "--offload optimizer=host,weights=disk --update device",
};
enum { N_HOMES_OF = sizeof(HOMES_OF) / sizeof(HOMES_OF[0]) };

// 124M on 1, 2, 4 and 8 ranks, planned: the bytes of ZeRO's paper and the buffers, to the byte.
static void check_plans(void *unused) {
    (void)unused;
    for (int i = 0; i < 4 * 4 * 2 * N_HOMES_OF; i++) {
        const int N = 1 << i % 4, stage = i / 4 % 4, dtype = i / 16 % 2, place = i / 32;
        if ((N == 1 && stage > 0) || (N == 2 && place > 2)) continue;
        Trainer *m = open_rank("-e d12 --vocab 50257 -t 256 -b 1 -i random -g 0 -v 0 -o . --plan --ranks %d -p %s "
                               "-z %d %s", N, dtype ? "bf16" : "fp32", stage, HOMES_OF[place]);
        CHECK(layout_parameters(&m->config.shape) == 124439808 - 768 * 768);  // 256 positions instead of 1,024
        check_formulas(m, &run_of(m)->plan.ledger, true);
        close_trainer(m);
    }
}

static void test_bytes_of_124m_follow_the_formulas(void **state) {
    (void)state;
    expect_exit(check_plans, NULL, 0, "");
}

// The same measured, with the bytes sent. The last run's memory.csv stays for the parent.
static void ranks_formulas(const char *directory) {
    const int N = n_ranks();
    for (int i = 0; i < 4 * 2 * N_HOMES_OF; i++) {
        const int stage = i % 4, dtype = i / 4 % 2, place = i / 8;
        const size_t A = (i + place) % 3 == 0 ? 3 : 1;
        if (N == 1 && stage > 0) continue;
        Trainer *m = open_rank("-e %s --vocab 67 -t 16 -b 1 -d %zu -i random -g 0 -v 0 -o %s -p %s -z %d %s",
                               i % 3 ? "5x48x3" : "1x51x3", A * 16 * (size_t)N, directory, dtype ? "bf16" : "fp32",
                               stage, HOMES_OF[place]);
        start_trainer(m);
        StepRow row;
        const Sizes x = model_sizes(&m->config.shape, (size_t)N);
        for (int step = 0; step < 2; step++) {
            memset(&row, 0, sizeof(row));
            train_step(m, &row);
            CHECK(!row.skipped && isfinite(row.train_loss));
            CHECK(row.sent_bytes == formula_sent(&x, dtype ? 2 : 4, stage, A, true));
            CHECK(row.sent_bytes >= config_least_sent(&m->config, N));
        }
        save(m);
        assert_as_planned(m);
        check_formulas(m, &m->context.memory->ledger, true);
        log_memory_csv(directory, m->ranks, &run_of(m)->plan.ledger, &m->context.memory->ledger);
        close_trainer(m);
    }
}

// memory.csv has the rows of every rank, each measured as planned.
static void check_memory_csv(const char *path, int N) {
    char *csv = read_file(path, NULL);
    int rows[16] = {0}, rank;
    for (char *line = strtok(csv, "\n"); line; line = strtok(NULL, "\n")) {
        char phase[32], tier[32], kind[64];
        size_t planned, measured;
        if (strncmp(line, "rank,", 5) == 0) continue;
        int n = sscanf(line, "%d,%31[^,],%31[^,],%63[^,],%zu,%zu", &rank, phase, tier, kind, &planned, &measured);
        if (n != 6 || rank < 0 || rank >= N || planned != measured) fail_msg("memory.csv: %s", line);
        rows[rank]++;
    }
    for (rank = 0; rank < N; rank++) assert_int_equal(rows[rank], 6 * TIERS * KINDS);  // all but validation and sample
    free(csv);
}

static void check_one_rank(void *directory) {
    ranks_formulas((const char *)directory);
}

static void test_measured_bytes_follow_the_formulas(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    expect_exit(check_one_rank, directory, 0, "");
    check_memory_csv(in_directory(directory, "memory.csv"), 1);
    need_ranks();
    for (int N = 2; N <= 4; N += 2) {
        launch_ranks(N, "formulas", directory);
        check_memory_csv(in_directory(directory, "memory.csv"), N);
    }
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Skipped steps

enum { OVERFLOW_OF_DATA, OVERFLOW_OF_A_SHARD, OVERFLOW_PLACES };

// A step of two micro-batches of which one rank's gradients overflow: all of them, or one element, after the first.
static void overflowing_step(Trainer *m, int how, int rank, StepRow *row) {
    const bool here = m->ranks->rank == rank;
    memory_step(m->context.memory);
    m->ranks->n_sent = m->context.memory->disk.n_read = m->context.memory->disk.n_written = 0;
    const size_t n_targets = batch_step_targets(&m->batch, m->step);
    for (size_t i = 0; i < 2; i++) {
        batch_train(&m->batch, m->step, i);
        float scale = (float)(m->loss_scale / (double)n_targets);
        train_micro_batch(m, here && how == OVERFLOW_OF_DATA ? 1e30f : scale, i == 0, i == 1);
        if (i > 0 || how != OVERFLOW_OF_A_SHARD) continue;
        store_join(&m->store);
        device_wait(m->context.device);
        if (here) *home_at(m, HOME_GRADIENTS, 1, store_shard(&m->store, 1) + 5) = INFINITY;
    }
    train_update(m, row);
    m->step++;
    m->updates += row->skipped ? 0 : 1;
    train_loss_scale(m, row->skipped);
}

// Of a home that is in this process's memory.
static uint64_t home_hash(const Trainer *m, int home) {
    const Home *h = &m->store.homes[home];
    const size_t n = m->store.n_elements / (h->sharded ? (size_t)m->ranks->size : 1);
    return h->tier == TIER_DISK ? 0 : file_hash(1, h->base, n * h->size);
}

static void ranks_overflow(const char *directory) {
    static const char *const places[] = {"", "--offload optimizer=host,gradients=host", "--offload optimizer=disk"};
    for (int i = 0; i < 4 * 3 * OVERFLOW_PLACES; i++) {
        const int stage = i % 4, how = i / 12, rank = i % n_ranks();
        Trainer *runs[2];  // without the step, with it
        StepRow row, other;
        // Every other time in the very first step, when memory.h looks at what is touched.
        const int good = i / 4 % 2;
        for (int k = 0; k < 2; k++) {
            runs[k] = open_rank("-e 2x48x3 --vocab 67 -t 32 -b 1 -d %d -i random -g 0 -v 0 -p fp16 -z %d %s "
                                "--swap-dir %s", 64 * n_ranks(), stage, places[i / 4 % 3], directory);
            start_trainer(runs[k]);
            runs[k]->loss_scale = 1024;
            if (good) train_step(runs[k], &other);
            CHECK(!good || !other.skipped);
        }
        Trainer *m = runs[1];
        const Sizes x = model_sizes(&m->config.shape, (size_t)n_ranks());
        const uint64_t before = state_hash(m), weights = home_hash(m, HOME_WEIGHTS), moments = home_hash(m, HOME_M);
        memset(&row, 0, sizeof(row));
        overflowing_step(m, how, rank, &row);
        CHECK(row.skipped && !isfinite(row.norm));
        CHECK(m->loss_scale == 512 && m->good_steps == 0 && m->updates == good);
        check_same_on_all(m, m->loss_scale);
        CHECK(m->ranks->n_sent == formula_sent(&x, 2, stage, 2, false));
        CHECK(m->context.memory->disk.n_written == 0);
        CHECK(state_hash(m) == before && home_hash(m, HOME_WEIGHTS) == weights && home_hash(m, HOME_M) == moments);
        runs[0]->step++;
        runs[0]->loss_scale = 512;
        train_step(m, &row);
        train_step(runs[0], &other);
        CHECK(!row.skipped && row.train_loss == other.train_loss && row.norm == other.norm);
        CHECK(state_hash(m) == state_hash(runs[0]) && home_hash(m, HOME_WEIGHTS) == home_hash(runs[0], HOME_WEIGHTS));
        close_trainer(runs[1]);
        close_trainer(runs[0]);
    }
}

static void test_overflow_of_one_rank_skips_all(void **state) {
    (void)state;
    char directory[256];
    need_ranks();
    make_directory(directory);
    for (int N = 2; N <= 3; N++) launch_ranks(N, "overflow", directory);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Blocks that are larger than a piece on its way

#define LARGE "-e 1x64x2 --vocab 30000 -t 8 -b 1 -i random -g 0 -v 0"

static RunResult large_run(const char *directory, const char *flags) {
    Trainer *m = open_rank(LARGE " --swap-dir %s %s", directory, flags);
    start_trainer(m);
    const size_t shard = m->store.embedding.n_elements / (size_t)n_ranks();
    CHECK(n_ranks() > 1 ? shard > m->store.piece_elements && shard % m->store.piece_elements != 0
                          : shard > STORE_PIECE && shard % STORE_PIECE != 0);
    RunResult result = run_steps(m, 2);
    CHECK(result.norms[0] > 0 && isfinite(result.losses[1]));
    close_trainer(m);
    return result;
}

static void check_large(const char *directory) {
    static const char *const flags[] = {"", "-z 1 --offload optimizer=disk,gradients=disk,weights=disk",
                                        "-z 2 --offload optimizer=host,gradients=disk --update device",
                                        "-z 2 --offload optimizer=disk,gradients=host,weights=host",
                                        "-z 3 --offload gradients=host,weights=disk", "-z 3"};
    for (int dtype = 0; dtype < 2; dtype++) {
        RunResult first;
        for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
            char line[256];
            if (dtype == 1 && i % 3 == 2) continue;
            snprintf(line, sizeof(line), "-p %s %s", dtype ? "bf16" : "fp32", flags[i]);
            RunResult run = large_run(directory, line);
            if (i == 0) first = run;
            run.peak = first.peak;
            CHECK(memcmp(&run, &first, sizeof(run)) == 0);
        }
    }
}

static void check_large_alone(void *directory) {
    check_large((const char *)directory);
}

static void test_blocks_larger_than_a_piece(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    expect_exit(check_large_alone, directory, 0, "");
    need_ranks();
    launch_ranks(3, "large", directory);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Checkpoints: saved by N ranks, loaded by M

// Six micro-batches of one sequence in a step, however they are shared out.
#define SHARED_RUN "-e 2x51x3 --vocab 67 -t 32 -b 1 -d 192 -i random -m 3 -u 2 -x 6 -g 0 -l 0.002"

static const char *const SAVERS[4] = {"", "--offload optimizer=disk,gradients=host",
                                      "-z 3 --offload optimizer=host,weights=disk", "-z 2 --offload gradients=disk"};
// The first adds up gradients in the saver's order, so on as many ranks it goes on with the same bits.
static const char *const LOADERS[4][2] = {
    {"", ""},
    {"--offload weights=disk", "--offload optimizer=host --update device"},
    {"-z 2 --offload optimizer=disk", "-z 0 --offload weights=host"},
    {"-z 3 --offload optimizer=disk,gradients=host,weights=host", "-z 1 --offload optimizer=disk --update device"}};

typedef struct {
    RunResult run;
    double validation;
    uint64_t state;  // as saved
} Shared;

static Shared shared_rest(Trainer *m) {
    Shared shared;
    memset(&shared, 0, sizeof(shared));
    shared.state = state_hash(m);
    shared.run = run_steps(m, 2);
    shared.run.peak = 0;
    shared.validation = validate(m);
    return shared;
}

static void ranks_save(const char *directory) {
    for (int dtype = 0; dtype < 2; dtype++) {
        Trainer *m = open_rank(SHARED_RUN " -p %s -o %s/saved_%d_%d %s", dtype ? "bf16" : "fp32", directory,
                               n_ranks(), dtype, SAVERS[n_ranks()]);
        log_make_directory(run_of(m)->job.options.output);
        start_trainer(m);
        run_steps(m, 2);
        save(m);
        Shared shared = shared_rest(m);
        FILE *file = m->ranks->rank == 0 ? fopen(in_directory(run_of(m)->job.options.output, "rest"), "wb") : NULL;
        if (file && (fwrite(&shared, sizeof(shared), 1, file) != 1 || fclose(file))) die("can't write the rest");
        close_trainer(m);
    }
}

static void check_same_file(const char *a, const char *b) {
    size_t n_a, n_b;
    char *bytes_a = read_file(a, &n_a), *bytes_b = read_file(b, &n_b);
    CHECK(n_a == n_b && memcmp(bytes_a, bytes_b, n_a) == 0);
    free(bytes_a);
    free(bytes_b);
}

// Relative differences of what two orders of addition give after a step or two: some units of rounding of the type,
// as gradients of a few weights are small differences.
static void check_close(double x, double y, double tolerance) { CHECK(fabs(x - y) <= tolerance * fabs(y)); }

static void load_one(const char *directory, int N, int dtype, int which) {
    const bool root = error_launched(true) == 0, same = N == n_ranks() && which == 0;
    const double tolerance = dtype ? 0x1p-8 : 1e-5;
    Trainer *m = open_rank(SHARED_RUN " -y 1 -p %s -o %s/saved_%d_%d --swap-dir %s %s", dtype ? "bf16" : "fp32",
                           directory, N, dtype, directory, LOADERS[n_ranks()][which]);
    CHECK(m->config.resume && m->step == 2 && m->updates == 2);
    const char *saved = in_directory(run_of(m)->job.options.output, "checkpoint_00000002.bin");
    Shared expected;
    FILE *file = fopen(in_directory(run_of(m)->job.options.output, "rest"), "rb");
    CHECK(file && fread(&expected, sizeof(expected), 1, file) == 1);
    fclose(file);
    char again[300];
    snprintf(again, sizeof(again), "%s/again_%d", directory, n_ranks());
    m->output = again;
    log_make_directory(again);
    start_trainer(m);
    save(m);
    ranks_barrier(m->ranks);
    if (root) check_same_file(in_directory(again, "checkpoint_00000002.bin"), saved);
    Shared shared = shared_rest(m);
    if (root) CHECK(shared.state == expected.state);
    if (root && same) CHECK(memcmp(&shared, &expected, sizeof(shared)) == 0);
    for (int i = 0; i < 2; i++) {
        check_close(shared.run.losses[i], expected.run.losses[i], tolerance);
        check_close(shared.run.norms[i], expected.run.norms[i], 16 * tolerance);
    }
    check_close(shared.validation, expected.validation, tolerance);
    close_trainer(m);
}

static void ranks_load(const char *directory) {
    for (int i = 0; i < 3 * 2 * 2; i++) load_one(directory, 1 + i % 3, i / 3 % 2, i / 6);
}

static void test_checkpoints_go_from_any_ranks_to_any(void **state) {
    (void)state;
    char directory[256];
    need_ranks();
    make_directory(directory);
    // The same number of threads as the ranks have, for the same bits.
    launch_ranks(1, "save", directory);
    launch_ranks(2, "save", directory);
    launch_ranks(3, "save", directory);
    launch_ranks(1, "load", directory);
    launch_ranks(2, "load", directory);
    launch_ranks(3, "load", directory);
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// main: the tests, or with --ranks MODE DIRECTORY one of several ranks

static int rank_main(const char *mode, const char *directory) {
    static const struct {
        const char *mode;
        void (*function)(const char *);
    } modes[] = {{"formulas", ranks_formulas}, {"overflow", ranks_overflow}, {"large", check_large},
                 {"save", ranks_save},         {"load", ranks_load}};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(mode, modes[i].mode) == 0) modes[i].function(directory);
    }
    ranks_end();
    return 0;
}

int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--ranks") == 0) return rank_main(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_124m_follow_the_formulas),
        cmocka_unit_test(test_measured_bytes_follow_the_formulas),
        cmocka_unit_test(test_overflow_of_one_rank_skips_all),
        cmocka_unit_test(test_blocks_larger_than_a_piece),
        cmocka_unit_test(test_checkpoints_go_from_any_ranks_to_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
