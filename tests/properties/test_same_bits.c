// test_same_bits.c - the oracle grid: whatever the stage of ZeRO, the homes, the level of recomputation, the place of
// the update and the order of the queues, the same ranks give the same bits: loss, norm and state after each of three
// steps.
//
// Started by `make test`, the program starts itself again with 1, 2, 3 and 4 ranks; each of these runs a selection in
// which every pair of values of two factors occurs (TEST_ALL=1: everything; on the emulator, more). What a run is
// compared with is the run with everything resident: of stage 0, or with accumulation and stages 2 and 3, which add up
// in another order, of stage 2. Runs of several ranks are compared with one rank's within the rounding of sums in
// another order.
//
// Compiled by nvcc, the device is CUDA on the emulator; the orders of its streams come from the environment.
#include "../trainer_helpers.h"

enum { STEPS = 3 };

// The factors, and how many values each has.
enum { MODEL, DTYPE, STAGE, OPTIMIZER, GRADIENTS, WEIGHTS, ACTIVATIONS, LEVEL, MICRO, CLIP, UPDATE, ORDER, FACTORS };
static const int VALUES[FACTORS] = {2, 3, 4, 3, 3, 3, 3, 4, 2, 2, 2, 4};

typedef struct {
    int f[FACTORS];
} Row;

typedef struct {
    double losses[STEPS], norms[STEPS];
    uint64_t states[STEPS];
} Result;

// TINY, and ODD with heads of 17 and odd lengths; on CUDA the latter with plain attention, as the fused one needs heads
// of a multiple of 8.
#ifdef __CUDACC__
static const char *const MODELS[] = {"--device cuda -e 2x48x3 --vocab 67 -t 32 -b 1",
                                     "--device cuda -e 2x51x3 --vocab 67 -t 19 --max-length 23 -b 2 --attention plain"};
#else
static const char *const MODELS[] = {"--device cpu -e 2x48x3 --vocab 67 -t 32 -b 1",
                                     "--device cpu -e 2x51x3 --vocab 67 -t 19 --max-length 23 -b 2"};
#endif
static const size_t TOKENS[] = {32, 38};
static const char *const TIER_FLAGS[] = {"", "host", "disk"};
static const char *const SWAP = "build";

static void row_line(const Row *row, int n_ranks, char *line, size_t size) {
    const int *f = row->f;
    static const char *const kinds[] = {"optimizer", "gradients", "weights", "activations"};
    int n = snprintf(line, size, "%s -p %s -z %d -r %d -d %zu --clip %s --swap-dir %s", MODELS[f[MODEL]],
                     number_name((Dtype)f[DTYPE]), f[STAGE], f[LEVEL],
                     TOKENS[f[MODEL]] * (size_t)n_ranks * (f[MICRO] ? 3 : 1), f[CLIP] ? "0.25" : "1e9", SWAP);
    bool any = false;
    for (int i = 0; i < 4; i++) {
        if (f[OPTIMIZER + i] == 0) continue;
        n += snprintf(line + n, size - (size_t)n, "%s%s=%s", any ? "," : " --offload ", kinds[i],
                      TIER_FLAGS[f[OPTIMIZER + i]]);
        any = true;
    }
    if (f[OPTIMIZER] > 0) snprintf(line + n, size - (size_t)n, " --update %s", f[UPDATE] ? "device" : "host");
}

// Whether a combination makes sense.
static bool row_is_legal(const Row *row, int n_ranks) {
    const int *f = row->f;
    if (n_ranks == 1 && f[STAGE] > 0) return false;
    if (f[ACTIVATIONS] > 0 && f[LEVEL] < 3) return false;
#ifdef __CUDACC__
    if (f[ORDER] > 0) return false;
#endif
    return f[OPTIMIZER] > 0 || f[UPDATE] == 0;
}

static void reorder(Trainer *trainer, int order, uint64_t seed) {
    static const QueueOrder orders[] = {QUEUE_THREADS, QUEUE_EAGER, QUEUE_LAZY, QUEUE_SEEDED};
    if (trainer->context.device->real != DEVICE_CPU || order == 0) return;
    queues_close(trainer->context.device->queues);
    trainer->context.device->queues = queues_open(orders[order], seed);
}

static Result run_row(const Row *row, int n_ranks, uint64_t seed, char *line, size_t size) {
    Result result;
    memset(&result, 0, sizeof(result));
    row_line(row, n_ranks, line, size);
    Trainer *trainer = open_trainer("-i random -g 0 -v 0 -l 0.01 -u 0 %s", line);
    reorder(trainer, row->f[ORDER], seed);
    snprintf(line + strlen(line), size - strlen(line), " (order %d, seed %llu)", row->f[ORDER],
             (unsigned long long)seed);
    start_trainer(trainer);
    for (int i = 0; i < STEPS; i++) {
        StepRow step;
        memset(&step, 0, sizeof(step));
        train_step(trainer, &step);
        result.losses[i] = step.train_loss;
        result.norms[i] = step.norm;
        result.states[i] = state_hash(trainer);
        if (step.skipped) die("%s: step %d was skipped", line, i + 1);
        bool clipped = row->f[CLIP] && step.norm > 0.25;
        if (row->f[CLIP] && !clipped) die("%s: the clip was to bind, the norm is %g", line, step.norm);
    }
    assert_as_planned(trainer);
    close_trainer(trainer);
    return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Selections

typedef struct {
    Row *rows;
    size_t n, room;
} Selection;

static void selection_add(Selection *selection, const Row *row) {
    if (selection->n == selection->room) {
        selection->room = selection->room ? 2 * selection->room : 64;
        selection->rows = (Row *)realloc(selection->rows, selection->room * sizeof(Row));
        if (!selection->rows) die("out of memory");
    }
    selection->rows[selection->n++] = *row;
}

static bool pair_is_covered(const Selection *s, int a, int va, int b, int vb) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->rows[i].f[a] == va && s->rows[i].f[b] == vb) return true;
    }
    return false;
}

static Row random_row(uint64_t stream, uint64_t index) {
    Row row;
    for (int k = 0; k < FACTORS; k++) {
        row.f[k] = (int)(random_bits(7, stream, index * FACTORS + (uint64_t)k) % (uint64_t)VALUES[k]);
    }
    return row;
}

static int pairs_gained(const Selection *s, const Row *row) {
    int gained = 0;
    for (int a = 0; a < FACTORS; a++) {
        for (int b = a + 1; b < FACTORS; b++) gained += !pair_is_covered(s, a, row->f[a], b, row->f[b]);
    }
    return gained;
}

// Rows until no new pair turns up in a long time, each the best of many random ones; then random ones until there are
// `least`.
static void select_pairs(Selection *selection, int n_ranks, size_t least) {
    enum { CANDIDATES = 400 };
    for (uint64_t round = 0;; round++) {
        Row best;
        int most = 0;
        memset(&best, 0, sizeof(best));
        for (uint64_t i = 0; i < CANDIDATES; i++) {
            Row row = random_row((uint64_t)n_ranks, round * CANDIDATES + i);
            int gained = row_is_legal(&row, n_ranks) ? pairs_gained(selection, &row) : 0;
            if (gained <= most) continue;
            most = gained;
            best = row;
        }
        if (most == 0) break;
        selection_add(selection, &best);
    }
    for (uint64_t i = 0; selection->n < least; i++) {
        Row row = random_row(100 + (uint64_t)n_ranks, i);
        if (row_is_legal(&row, n_ranks)) selection_add(selection, &row);
    }
}

static void select_all(Selection *selection, int n_ranks) {
    Row row;
    size_t n = 1;
    for (int k = 0; k < FACTORS; k++) n *= (size_t)(k == ORDER ? 1 : VALUES[k]);
    for (size_t i = 0; i < n; i++) {
        size_t rest = i;
        for (int k = 0; k < FACTORS; k++) {
            row.f[k] = k == ORDER ? 0 : (int)(rest % (size_t)VALUES[k]);
            if (k != ORDER) rest /= (size_t)VALUES[k];
        }
        row.f[ORDER] = (int)(random_bits(9, 0, i) % 4);
#ifdef __CUDACC__
        row.f[ORDER] = 0;
#endif
        if (row_is_legal(&row, n_ranks)) selection_add(selection, &row);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The runs

typedef struct {
    Row row;
    Result result;
} Known;

// What a row is compared with: everything on the device, nothing made again.
static Row reference_row(const Row *row) {
    Row r;
    memset(&r, 0, sizeof(r));
    const int same[] = {MODEL, DTYPE, MICRO, CLIP};
    for (int i = 0; i < 4; i++) r.f[same[i]] = row->f[same[i]];
    r.f[STAGE] = row->f[MICRO] && row->f[STAGE] >= 2 ? 2 : 0;
    return r;
}

static const Result *reference(const Row *row, int n_ranks) {
    static Known known[64];
    static size_t n = 0;
    char line[1024];
    Row wanted = reference_row(row);
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&known[i].row, &wanted, sizeof(wanted)) == 0) return &known[i].result;
    }
    if (n == 64) die("more than 64 references");
    known[n].row = wanted;
    known[n].result = run_row(&wanted, n_ranks, 0, line, sizeof(line));
    return &known[n++].result;
}

static void compare(const Result *a, const Result *b, const char *line) {
    for (int i = 0; i < STEPS; i++) {
        if (a->losses[i] == b->losses[i] && a->norms[i] == b->norms[i] && a->states[i] == b->states[i]) continue;
        die("%s: step %d: loss %.17g, resident %.17g; norm %.17g, %.17g; state %016llx, %016llx", line, i + 1,
            a->losses[i], b->losses[i], a->norms[i], b->norms[i], (unsigned long long)a->states[i],
            (unsigned long long)b->states[i]);
    }
}

// One rank with N times the sequences sees the same tokens; sums over ranks are in another order.
static void compare_with_one_rank(const Ranks *ranks) {
    for (int dtype = FP32; dtype <= BF16; dtype++) {
        char line[1024];
        Row row;
        memset(&row, 0, sizeof(row));
        row.f[DTYPE] = dtype;
        row.f[STAGE] = ranks->size > 1 ? 3 : 0;
        Result several = run_row(&row, ranks->size, 0, line, sizeof(line)), one;
        memset(&one, 0, sizeof(one));
        if (ranks->rank > 0) continue;
        unsetenv("OMPI_COMM_WORLD_SIZE");  // for a moment, this process is alone
        Trainer *trainer = open_trainer("-i random -g 0 -v 0 -l 0.01 -u 0 %s -p %s -d %zu --clip 1e9", MODELS[0],
                                        number_name((Dtype)dtype), TOKENS[0] * (size_t)ranks->size);
        char size[16];
        snprintf(size, sizeof(size), "%d", ranks->size);
        setenv("OMPI_COMM_WORLD_SIZE", size, 1);
        start_trainer(trainer);
        for (int i = 0; i < STEPS; i++) {
            StepRow step;
            train_step(trainer, &step);
            one.losses[i] = step.train_loss;
            one.norms[i] = step.norm;
        }
        close_trainer(trainer);
        const double loss = dtype == FP32 ? 1e-5 : 5e-3, norm = dtype == FP32 ? 2e-5 : 2e-2;
        for (int i = 0; i < STEPS; i++) {
            if (fabs(one.losses[i] - several.losses[i]) <= loss && fabs(one.norms[i] / several.norms[i] - 1) <= norm) {
                continue;
            }
            die("%s, step %d: loss %.9g, of one rank %.9g; norm %.9g, %.9g", line, i + 1, several.losses[i],
                one.losses[i], several.norms[i], one.norms[i]);
        }
    }
}

// Within a launch: all rows of the selection for its number of ranks.
static int run_selection(size_t n) {
    Ranks ranks;
    Selection selection = {NULL, 0, 0};
    ranks_open(&ranks);
    bool all = getenv("TEST_ALL") != NULL;
#ifdef __CUDACC__
    if (all) n = 200;  // everything would take days on the emulator
    all = false;
#endif
    if (all) select_all(&selection, ranks.size);
    else select_pairs(&selection, ranks.size, n);
    if (!all && selection.n > n) selection.n = n;
    for (size_t i = 0; i < selection.n; i++) {
        char line[1024];
        const Result *resident = reference(&selection.rows[i], ranks.size);
        Result result = run_row(&selection.rows[i], ranks.size, i, line, sizeof(line));
        compare(&result, resident, line);
        if (getenv("TEST_VERBOSE")) fprintf(stdout, "%zu of %zu: %s\n", i + 1, selection.n, line);
    }
    compare_with_one_rank(&ranks);
    if (ranks.rank == 0) fprintf(stdout, "%d rank%s: %zu combinations\n", ranks.size, ranks.size > 1 ? "s" : "",
                                 selection.n);
    free(selection.rows);
    ranks_close(&ranks);
    ranks_end();
    return 0;
}

static const char *self;

static void launch(int n_ranks, const char *environment, int n_rows) {
    char command[PATH_MAX + 256];
#ifndef USE_MPI
    if (n_ranks > 1) SKIP_AS("this was built without MPI");
#endif
    if (n_ranks > 1 && system("command -v mpirun >/dev/null") != 0) {
        SKIP_AS("there is no mpirun");
    }
    fflush(stdout);
    snprintf(command, sizeof(command), "%s OMP_WAIT_POLICY=passive timeout %d scripts/launch.sh %d %s rows %d",
             environment, getenv("TEST_ALL") ? 36000 : 600, n_ranks, self, n_rows);
    assert_int_equal(system(command), 0);
}

#ifdef __CUDACC__
static void test_one_rank(void **state) {
    (void)state;
    launch(1, "EMULATOR_STREAMS=laziest", 10);
}

static void test_two_ranks(void **state) {
    (void)state;
    launch(2, "EMULATOR_STREAMS=laziest EMULATOR_DEVICES=2", 10);
    launch(2, "EMULATOR_STREAMS=5 EMULATOR_DEVICES=2", 8);
}

static void test_three_ranks(void **state) {
    (void)state;
    launch(3, "EMULATOR_STREAMS=eager EMULATOR_DEVICES=3", 8);
}
#else
static void test_one_rank(void **state) {
    (void)state;
    launch(1, "", 45);
}

static void test_two_ranks(void **state) {
    (void)state;
    launch(2, "", 50);
}

static void test_three_ranks(void **state) {
    (void)state;
    launch(3, "", 50);
}

static void test_four_ranks(void **state) {
    (void)state;
    launch(4, "", 50);
}
#endif

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_three_ranks),
#ifndef __CUDACC__
        cmocka_unit_test(test_four_ranks),
#endif
    };
    if (argc == 3 && strcmp(argv[1], "rows") == 0) return run_selection((size_t)atoi(argv[2]));
    self = argv[0];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
