// test_plan_is_run.c - the plan is what the run takes, to the byte: over the flags, on one rank and on several, planned
// and measured, and by formulas of the test's own. What differs ends the run.
#include "../test_helpers.h"

#include "../../dev/memory.h"

// Every push of the trainer goes through here, so that a test can make any one of them 128 bytes larger.
typedef struct {
    long next, victim;
    size_t extra;
} Sabotage;
static Sabotage sabotage = {0, -1, 0};

static inline void *sabotaged_push(Memory *memory, Tier tier, Kind kind, size_t n_bytes, const char *owner) {
    if (memory->planned && sabotage.next++ == sabotage.victim) n_bytes += sabotage.extra;
    return memory_push(memory, tier, kind, n_bytes, owner);
}
#define memory_push sabotaged_push

#include "../trainer_helpers.h"

#undef memory_push

#include "formulas.h"
#include "../program_helpers.h"

// ---------------------------------------------------------------------------------------------------------------
// Formulas: bytes of a rank by tier and kind, written from ZeRO's definition and the list of buffers

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
static void check_formulas(const Trainer *trainer, const Ledger *ledger, bool saves) {
    Bytes bytes;
    const size_t size = trainer->config.dtype == FP32 ? 4 : 2;
    const Sizes x = model_sizes(&trainer->config.shape, (size_t)trainer->ranks->size);
    formula_kept(bytes, &x, size, &trainer->config.place);
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
    formula_update(bytes, &x, size, &trainer->config.place);
    check_phase(ledger, PHASE_UPDATE, bytes);
}

static const char *const HOMES_OF[] = {
    "", "--offload optimizer=host", "--offload optimizer=disk,gradients=host,weights=host",
    "--offload weights=disk,gradients=disk --update device", "--offload optimizer=host,weights=disk --update device",
};
enum { N_HOMES_OF = sizeof(HOMES_OF) / sizeof(HOMES_OF[0]) };

// 124M on 1, 2, 4 and 8 ranks, planned: the bytes of ZeRO's paper and the buffers, to the byte.
static void check_plans(void *unused) {
    (void)unused;
    one_thread();
    for (int i = 0; i < 4 * 4 * 2 * N_HOMES_OF; i++) {
        const int N = 1 << i % 4, stage = i / 4 % 4, dtype = i / 16 % 2, place = i / 32;
        if ((N == 1 && stage > 0) || (N == 2 && place > 2)) continue;
        Trainer *trainer = open_rank("-e d12 --vocab 50257 -t 256 -b 1 -i random -g 0 -v 0 -o . --plan --ranks %d "
                                     "-p %s -z %d %s", N, dtype ? "bf16" : "fp32", stage, HOMES_OF[place]);
        CHECK(layout_parameters(&trainer->config.shape) == 124439808 - 768 * 768);  // 256 positions instead of 1,024
        check_formulas(trainer, &run_of(trainer)->plan.ledger, true);
        close_trainer(trainer);
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
        Trainer *trainer = open_rank("-e %s --vocab 67 -t 16 -b 1 -d %zu -i random -g 0 -v 0 -o %s -p %s -z %d %s",
                                     i % 3 ? "5x48x3" : "1x51x3", A * 16 * (size_t)N, directory,
                                     dtype ? "bf16" : "fp32", stage, HOMES_OF[place]);
        start_trainer(trainer);
        StepRow row;
        const Sizes x = model_sizes(&trainer->config.shape, (size_t)N);
        for (int step = 0; step < 2; step++) {
            memset(&row, 0, sizeof(row));
            train_step(trainer, &row);
            CHECK(!row.skipped && isfinite(row.train_loss));
            CHECK(row.sent_bytes == formula_sent(&x, dtype ? 2 : 4, stage, A, true));
            CHECK(row.sent_bytes >= config_least_sent(&trainer->config, N));
        }
        save(trainer);
        assert_as_planned(trainer);
        check_formulas(trainer, &trainer->context.memory->ledger, true);
        log_memory_csv(directory, trainer->ranks, &run_of(trainer)->plan.ledger, &trainer->context.memory->ledger);
        close_trainer(trainer);
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
    one_thread();
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
        launch_ranks(N, "--ranks formulas %s", directory);
        check_memory_csv(in_directory(directory, "memory.csv"), N);
    }
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Plan and run, over the flags, and the terms that the README states

// Many configurations in one process: each is planned, run for one step with validation, a sample and a save, and must
// take what was planned in every phase (memory_end dies otherwise; the witness looks, too).
static void test_plan_is_run_over_the_flag_grid(void **state) {
    (void)state;
    char directory[256];
    int n = 0;
    make_directory(directory);
    for (int i = 0; i < 4 * 2 * 2 * 3 * 2 * 3; i++) {
        int level = i % 4, dtype = i / 4 % 2, plain = i / 8 % 2, chunks = i / 16 % 3, accumulate = i / 48 % 2;
        int layers = i / 96 % 3 - 1;
        if (i % 5 != 0 && i % 7 != 0) continue;  // a third of the grid: every pair of values occurs
        Trainer *trainer = open_trainer(
            "-e 2x32x2 --vocab 67 -t 24 -b 3 -i random -g 20 -m 2 -o %s -r %d -p %s --attention %s "
            "--head-chunks %d -d %d --recompute-layers %d",
            directory, level, number_name((Dtype)dtype), plain ? "plain" : "fused", 1 + 2 * chunks,
            accumulate ? 144 : 72, layers);
        start_trainer(trainer);
        run_steps(trainer, 1);
        assert_true(isfinite(validate(trainer)));
        sample(trainer);
        save(trainer);
        assert_as_planned(trainer);
        for (int p = 0; p < PHASES; p++) assert_true(trainer->context.memory->ledger.phases[p].occurred);
        run_steps(trainer, 1);
        close_trainer(trainer);
        n++;
    }
    assert_true(n > 80);
    remove_directory(directory);
}

// The terms that the README states, for the model's activations of one step.
static void test_memory_formulas(void **state) {
    (void)state;
    for (int i = 0; i < 4 * 2; i++) {
        int level = i % 4, dtype = i / 4;
        size_t B = 3, T = 40, C = 48, L = 5, NH = 3, Vp = 128, size = dtype == BF16 ? 2 : 4, n = B * T;
        Trainer *trainer = open_trainer("-e 5x48x3 --vocab 100 -t 40 -b 3 -i random -r %d -p %s -g 0 -v 0", level,
                                        number_name((Dtype)dtype));
        const size_t units[4] = {16, 12, 10, 1};
        size_t statistics = level < 3 ? n * 4 * 4 + n * NH * 4 : 0;
        size_t expected = n * C * size + L * (units[level] * n * C * size + statistics);
        const PhaseLedger *head = &run_of(trainer)->plan.ledger.phases[PHASE_HEAD];
        size_t kept = head->kinds[TIER_DEVICE][KIND_ACTIVATIONS];
        assert_true(kept >= expected && kept <= expected + L * 12 * MEMORY_ALIGN);  // each buffer is rounded up
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_LOGITS], n * Vp * size);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_ACTIVATION_GRADIENTS], n * C * size);
        size_t elements = padded_elements(&trainer->config.shape, 1);
        assert_int_equal(elements % NORM_CHUNK, 0);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_WEIGHTS], elements * size);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_MASTER], dtype == BF16 ? elements * 4 : 0);
        size_t sums = size_round_up(elements / NORM_CHUNK * sizeof(double), MEMORY_ALIGN);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_GRADIENTS], elements * 4 + sums);
        assert_int_equal(head->kinds[TIER_DEVICE][KIND_MOMENTS], elements * 8);
        close_trainer(trainer);
    }
}

// 124M, bf16, T = 1024, MiB per sequence that exist at once: below llm.c's figures (397, 331, 295), and with -r 3 and
// 16 head chunks at most 20 that are kept and the working set of one block, 20 units of B T C (1.5 MiB). With -r 3
// scratch counts, too. Planned for a GPU: what the CPU's operations take for each of their threads is not the model's.
static void test_memory_of_124m(void **state) {
    (void)state;
    const double limits[4] = {397, 331, 295, 20 + 20 * 1.5}, mib = 1 << 20;
    for (int level = 0; level < 4; level++) {
        Trainer *trainer =
            open_trainer("--device plan:h100 -e d12 --vocab 50257 -t 1024 -b 1 -i random -p bf16 -r %d "
                         "--head-chunks %d -g 0 -v 0", level, level == 3 ? 16 : 1);
        size_t most = 0;
        for (int p = PHASE_FORWARD; p <= PHASE_BACKWARD; p++) {
            const size_t *kinds = run_of(trainer)->plan.ledger.phases[p].kinds[TIER_DEVICE];
            size_t n = kinds[KIND_ACTIVATIONS] + kinds[KIND_ACTIVATION_GRADIENTS] + kinds[KIND_LOGITS];
            if (level == 3) n += kinds[KIND_SCRATCH];
            most = size_max(most, n);
        }
        printf("124M, bf16, T = 1024, -r %d: %.1f MiB per sequence\n", level, (double)most / mib);
        assert_true((double)most / mib < limits[level]);
        assert_true((double)most / mib > 0.5 * limits[level]);  // nothing is left out of the sum
        const size_t kept = run_of(trainer)->plan.ledger.phases[PHASE_HEAD].kinds[TIER_DEVICE][KIND_ACTIVATIONS];
        if (level == 3) assert_true((double)kept / mib <= 20);
        assert_int_equal(layout_parameters(&trainer->config.shape), 124439808);
        assert_in_range(padded_elements(&trainer->config.shape, 1), 124475904, 124475904 + 13 * NORM_CHUNK - 1);
        close_trainer(trainer);
    }
}

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -m 2 -g 16"
enum { KINDS_IN_CSV = 12 };

static const char *phase_of(const char *line, char *field) { return csv_field(line, 1, field); }

// memory.csv: planned by --plan = planned by the run = measured; rows add up; a fixed order.
static void test_plan_and_run_write_the_same_memory(void **state) {
    (void)state;
    char directory[256], field[64];
    make_directory(directory);
    const char *lines[] = {"-r 0", "-r 3 --head-chunks 4 -d 192 -p bf16",
                           "-r 2 --attention plain --recompute-layers 1"};
    for (int i = 0; i < 3; i++) {
        free(run_command(0, "./train_gpt %s %s --plan -o %s/plan%d", TINY, lines[i], directory, i));
        free(run_command(0, "./train_gpt %s %s -x 2 -n 1 -o %s/run%d", TINY, lines[i], directory, i));
        char *plan = read_file(in_directory(directory, "plan%d/memory.csv", i), NULL);
        char *run = read_file(in_directory(directory, "run%d/memory.csv", i), NULL), *p = plan, *r = run;
        assert_int_equal(access(in_directory(directory, "plan%d/steps.csv", i), F_OK), -1);
        assert_int_equal(count_lines(plan), 1 + 8 * 3 * KINDS_IN_CSV);
        assert_int_equal(count_lines(run), count_lines(plan));
        assert_memory_equal(plan, "rank,phase,tier,kind,planned_bytes,measured_bytes\n", 50);
        const char *order[] = {"setup", "forward", "head", "backward", "update", "validation", "sample", "save"};
        for (int line = 0; line < 8 * 3 * KINDS_IN_CSV; line++) {
            p = strchr(p, '\n') + 1;
            r = strchr(r, '\n') + 1;
            size_t common = strcspn(p, "\n");
            assert_memory_equal(p, r, common);  // up to the empty column of the plan
            assert_true(p[common - 1] == ',');
            char planned[64];
            csv_field(r, 4, planned);
            assert_string_equal(planned, csv_field(r, 5, field));
            assert_string_equal(phase_of(r, field), order[line / (3 * KINDS_IN_CSV)]);
        }
        free(plan);
        free(run);
    }
    remove_directory(directory);
}

// ---------------------------------------------------------------------------------------------------------------
// Any take of the trainer that is 128 bytes larger than planned, and a byte beyond the ledger

static const char *const SABOTAGED = "-e 2x32x2 --vocab 67 -t 24 -b 2 -i random -m 2 -r 2 --head-chunks 2 -p bf16";

static void run_everything(void *argument) {
    one_thread();
    sabotage.victim = *(long *)argument;
    sabotage.extra = 128;
    sabotage.next = 0;
    Trainer *trainer = open_trainer("%s -g 20", SABOTAGED);
    StepRow row;
    start_trainer(trainer);
    train_step(trainer, &row);
    validate(trainer);
    sample(trainer);
    fprintf(stderr, "%ld takes", sabotage.next);
    close_trainer(trainer);
}

static void test_any_take_larger_than_planned_ends_the_run(void **state) {
    (void)state;
    char message[256];
    long victim = -1;
    assert_int_equal(run_child(run_everything, &victim, message, sizeof(message)), 0);
    long n_takes = strtol(message, NULL, 10);
    assert_true(n_takes > 100);
    for (int i = 0; i < 40; i++) {
        victim = i < 20 ? i * 3 : n_takes - 1 - (n_takes - 61) * (40 - i - 1) / 20;
        assert_true(victim < n_takes);
        expect_die(run_everything, &victim, "planned|is a bug");
    }
}

// Beyond the ledger in a real phase: a kernel that writes 8 bytes in front of the lowest buffer.
static void touch_beyond(void *argument) {
    (void)argument;
    one_thread();
    Trainer *trainer = open_trainer("%s -g 0 -v 0", SABOTAGED);
    start_trainer(trainer);
    memory_begin(trainer->context.memory, PHASE_FORWARD);
    trainer->dresidual = memory_push(trainer->context.memory, TIER_DEVICE, KIND_ACTIVATION_GRADIENTS,
                                     trainer->config.B * trainer->config.T * trainer->config.shape.C * 2, "dresidual");
    batch_train(&trainer->batch, 0, 0);
    model_forward(trainer, trainer->config.B, trainer->config.T, true);
    Slab *slab = &trainer->context.memory->slabs[TIER_DEVICE];
    const size_t peak = run_of(trainer)->plan.ledger.phases[PHASE_FORWARD].peak[TIER_DEVICE];
    memset(slab->base + slab->capacity - peak + slab->kept - 8, 1, 8);
    memory_end(trainer->context.memory);
}

static void test_touching_beyond_the_ledger_ends_the_run(void **state) {
    (void)state;
    expect_die(touch_beyond, NULL, "forward|the ledger says");
}

// main: the tests, or with --ranks MODE DIRECTORY one of several ranks.
int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--ranks") == 0) {
        if (strcmp(argv[2], "formulas") == 0) ranks_formulas(argv[3]);
        ranks_end();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_124m_follow_the_formulas),
        cmocka_unit_test(test_measured_bytes_follow_the_formulas),
        cmocka_unit_test(test_plan_is_run_over_the_flag_grid),
        cmocka_unit_test(test_memory_formulas),
        cmocka_unit_test(test_memory_of_124m),
        cmocka_unit_test(test_plan_and_run_write_the_same_memory),
        cmocka_unit_test(test_any_take_larger_than_planned_ends_the_run),
        cmocka_unit_test(test_touching_beyond_the_ledger_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
