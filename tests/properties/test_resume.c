// test_resume.c - a run that stops and goes on is the run that never stopped, bit for bit; and a checkpoint goes from
// any number of ranks, homes and precision to any other.
#include "lines.h"

#include "../ranks_helpers.h"

static void write_tokens(const char *path, size_t n, size_t V) {
    int32_t header[256] = {20240520, 1, (int32_t)n, (int32_t)V};
    char *bytes = (char *)calloc(1, 1024 + 2 * n);
    memcpy(bytes, header, 1024);
    for (size_t i = 0; i < n; i++) {
        uint16_t id = (uint16_t)(random_bits(5, 6, i) % V);
        memcpy(bytes + 1024 + 2 * i, &id, 2);
    }
    write_file(path, bytes, 1024 + 2 * n);
    free(bytes);
}

// Interrupted after step k and resumed = uninterrupted, bit for bit: both precisions, accumulation, within and across
// epochs (11 windows, the last one partial), from a file.
static void test_resume_is_uninterrupted(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    write_tokens(in_directory(directory, "tokens.bin"), 32 * 10 + 18, 67);
    for (int i = 0; i < 4; i++) {
        char base[1024], output[300];
        snprintf(output, sizeof(output), "%s/out%d", directory, i);
        snprintf(base, sizeof(base), "%s -i %s/tokens.bin -j %s/tokens.bin -o %s -x 6 -u 2 -g 0 -p %s -d %d", MODELS[0],
                 directory, directory, output, i % 2 ? "bf16" : "fp32", i / 2 ? 192 : 64);
        log_make_directory(output);
        Trainer *trainer = open_trainer("%s", base);
        start_trainer(trainer);
        run_steps(trainer, 2);
        save(trainer);
        RunResult rest = run_steps(trainer, 4);
        double loss = validate(trainer);
        close_trainer(trainer);
        for (int again = 0; again < 2; again++) {
            trainer = open_trainer("%s -y 1 -r %d", base, again ? 3 : 0);
            assert_true(trainer->config.resume);
            assert_true(trainer->step == 2);
            assert_true(trainer->updates == 2);
            start_trainer(trainer);
            RunResult resumed = run_steps(trainer, 4);
            assert_same_run(&rest, &resumed, base);
            assert_true(validate(trainer) == loss);
            // Saved again without a step: the same bytes (step 6 of both runs).
            save(trainer);
            close_trainer(trainer);
            char *bytes = read_file(in_directory(output, "checkpoint_00000006.bin"), NULL);
            rename(in_directory(output, "checkpoint_00000006.bin"), in_directory(output, "saved_%d", again));
            free(bytes);
        }
        size_t n0, n1;
        char *first = read_file(in_directory(output, "saved_0"), &n0),
             *second = read_file(in_directory(output, "saved_1"), &n1);
        assert_int_equal(n0, n1);
        assert_memory_equal(first, second, n0);
        free(first);
        free(second);
    }
    remove_directory(directory);
}

// Moments and masters are fp32 in the file whatever the precision: loading and saving changes no byte.
static void test_checkpoint_roundtrip_and_precisions(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    Trainer *trainer = open_trainer("%s -i random -g 0 -v 0 -p bf16 -o %s", MODELS[1], directory);
    start_trainer(trainer);
    run_steps(trainer, 3);
    save(trainer);
    uint64_t hash = state_hash(trainer);
    close_trainer(trainer);
    size_t n_before, n_after;
    char *before = read_file(in_directory(directory, "checkpoint_00000003.bin"), &n_before);
    // the model comes from the file
    trainer = open_trainer("-i random -g 0 -v 0 -p bf16 -t 37 -b 3 -o %s -y 1", directory);
    assert_true(trainer->config.shape.C == 51);
    assert_true(trainer->config.shape.maxT == 41);
    assert_true(trainer->config.shape.V == 67);
    start_trainer(trainer);
    assert_true(state_hash(trainer) == hash);
    save(trainer);
    close_trainer(trainer);
    char *after = read_file(in_directory(directory, "checkpoint_00000003.bin"), &n_after);
    assert_int_equal(n_before, n_after);
    assert_int_equal(n_before, 1024 + 12 * (67 * 51 + 41 * 51 + 3 * (12 * 51 * 51 + 13 * 51) + 2 * 51));
    assert_memory_equal(before, after, n_before);
    trainer = open_trainer("-i random -g 0 -v 0 -p fp32 -t 37 -b 3 -o %s -y 1", directory);
    start_trainer(trainer);
    assert_true(state_hash(trainer) == hash);
    close_trainer(trainer);
    // As a start only the weights count: -e FILE, from step 0 with moments of zero.
    trainer = open_trainer("-i random -g 0 -v 0 -p fp32 -t 20 -b 1 -e %s",
                           in_directory(directory, "checkpoint_00000003.bin"));
    start_trainer(trainer);
    assert_true(trainer->step == 0);
    assert_true(trainer->updates == 0);
    assert_true(*home_at(trainer, HOME_M, 0, 7) == 0);
    assert_memory_equal(home_at(trainer, HOME_MASTER, 0, 0), before + 1024, 67 * 51 * 4);
    close_trainer(trainer);
    free(before);
    free(after);
    remove_directory(directory);
}

// Scale and counter go on from a checkpoint.
static void test_loss_scale_is_saved(void **state) {
    (void)state;
    char directory[256], more[300];
    StepRow row;
    make_directory(directory);
    snprintf(more, sizeof(more), "-o %s", directory);
    Trainer *trainer = fp16_trainer(more);
    trainer->loss_scale = 4096;
    trainer->good_steps = 7;
    train_step(trainer, &row);
    save(trainer);
    close_trainer(trainer);
    snprintf(more, sizeof(more), "-o %s -y 1", directory);
    trainer = fp16_trainer(more);
    assert_true(trainer->loss_scale == 4096);
    assert_true(trainer->good_steps == 8);
    assert_true(trainer->step == 1);
    close_trainer(trainer);
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

static Shared shared_rest(Trainer *trainer) {
    Shared shared;
    memset(&shared, 0, sizeof(shared));
    shared.state = state_hash(trainer);
    shared.run = run_steps(trainer, 2);
    shared.run.peak = 0;
    shared.validation = validate(trainer);
    return shared;
}

static void ranks_save(const char *directory) {
    for (int dtype = 0; dtype < 2; dtype++) {
        Trainer *trainer = open_rank(SHARED_RUN " -p %s -o %s/saved_%d_%d %s", dtype ? "bf16" : "fp32", directory,
                                     n_ranks(), dtype, SAVERS[n_ranks()]);
        log_make_directory(run_of(trainer)->job.options.output);
        start_trainer(trainer);
        run_steps(trainer, 2);
        save(trainer);
        Shared shared = shared_rest(trainer);
        const char *path = in_directory(run_of(trainer)->job.options.output, "rest");
        FILE *file = trainer->ranks->rank == 0 ? fopen(path, "wb") : NULL;
        if (file && (fwrite(&shared, sizeof(shared), 1, file) != 1 || fclose(file))) die("can't write the rest");
        close_trainer(trainer);
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
    Trainer *trainer = open_rank(SHARED_RUN " -y 1 -p %s -o %s/saved_%d_%d --swap-dir %s %s", dtype ? "bf16" : "fp32",
                                 directory, N, dtype, directory, LOADERS[n_ranks()][which]);
    CHECK(trainer->config.resume);
    CHECK(trainer->step == 2);
    CHECK(trainer->updates == 2);
    const char *saved = in_directory(run_of(trainer)->job.options.output, "checkpoint_00000002.bin");
    Shared expected;
    FILE *file = fopen(in_directory(run_of(trainer)->job.options.output, "rest"), "rb");
    CHECK(file && fread(&expected, sizeof(expected), 1, file) == 1);
    fclose(file);
    char again[300];
    snprintf(again, sizeof(again), "%s/again_%d", directory, n_ranks());
    trainer->output = again;
    log_make_directory(again);
    start_trainer(trainer);
    save(trainer);
    ranks_barrier(trainer->ranks);
    if (root) check_same_file(in_directory(again, "checkpoint_00000002.bin"), saved);
    Shared shared = shared_rest(trainer);
    if (root) CHECK(shared.state == expected.state);
    if (root && same) CHECK(memcmp(&shared, &expected, sizeof(shared)) == 0);
    for (int i = 0; i < 2; i++) {
        check_close(shared.run.losses[i], expected.run.losses[i], tolerance);
        check_close(shared.run.norms[i], expected.run.norms[i], 16 * tolerance);
    }
    check_close(shared.validation, expected.validation, tolerance);
    close_trainer(trainer);
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
    launch_ranks(1, "--ranks save %s", directory);
    launch_ranks(2, "--ranks save %s", directory);
    launch_ranks(3, "--ranks save %s", directory);
    launch_ranks(1, "--ranks load %s", directory);
    launch_ranks(2, "--ranks load %s", directory);
    launch_ranks(3, "--ranks load %s", directory);
    remove_directory(directory);
}

// main: the tests, or with --ranks MODE DIRECTORY one of several ranks.
int main(int argc, char **argv) {
    test_program = argv[0];
    if (argc == 4 && strcmp(argv[1], "--ranks") == 0) {
        if (strcmp(argv[2], "save") == 0) ranks_save(argv[3]);
        if (strcmp(argv[2], "load") == 0) ranks_load(argv[3]);
        ranks_end();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_is_uninterrupted),
        cmocka_unit_test(test_checkpoint_roundtrip_and_precisions),
        cmocka_unit_test(test_loss_scale_is_saved),
        cmocka_unit_test(test_checkpoints_go_from_any_ranks_to_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
