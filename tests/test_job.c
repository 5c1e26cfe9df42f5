// test_job.c - job.h: from command line, data and checkpoints to a configuration; and everything that can be wrong with
// these: flags end the program with 2, files with 1.
#include "token_helpers.h"

#include "../dev/job.h"

// What a command line asks for, of ranks on a device.
typedef struct {
    char line[1024];
    int n_ranks;
    DeviceKind real;
    Device device;
    Job job;
} Asked;

static void open_asked(void *argument) {
    Asked *a = (Asked *)argument;
    char *words[64];
    int n = 0;
    words[n++] = (char *)(uintptr_t)"train_gpt";
    for (char *word = strtok(a->line, " "); word; word = strtok(NULL, " ")) words[n++] = word;
    memset(&a->device, 0, sizeof(a->device));
    memset(&a->job, 0, sizeof(a->job));
    a->device.kind = a->device.real = a->real;
    a->device.matmul = matmul_open(false);
    flags_parse(&a->job.options, n, words);
    job_open(&a->job, &a->device, a->n_ranks);
}

static Asked *new_asked(DeviceKind real, int n_ranks, const char *format, va_list arguments) {
    Asked *a = (Asked *)calloc(1, sizeof(Asked));
    assert_non_null(a);
    a->n_ranks = n_ranks;
    a->real = real;
    vsnprintf(a->line, sizeof(a->line), format, arguments);
    return a;
}

__attribute__((format(printf, 2, 3))) static Asked *ask(int n_ranks, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Asked *a = new_asked(DEVICE_CPU, n_ranks, format, arguments);
    va_end(arguments);
    open_asked(a);
    return a;
}

static void close_asked(Asked *a) {
    job_close(&a->job);
    matmul_close(a->device.matmul);
    free(a);
}

__attribute__((format(printf, 3, 4))) static void expect_refused(int status, const char *words, const char *format,
                                                                 ...) {
    char all[256];
    va_list arguments;
    va_start(arguments, format);
    Asked *a = new_asked(DEVICE_CPU, 1, format, arguments);
    va_end(arguments);
    snprintf(all, sizeof(all), "%s%s", status == 2 ? "train_gpt: |usage: |" : "train_gpt: |", words);
    expect_exit(open_asked, a, status, all);
    free(a);
}

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random"

// ---------------------------------------------------------------------------------------------------------------
// What is asked for

static void test_defaults(void **state) {
    (void)state;
    Asked *a = ask(1, "-i random");
    const Config *c = &a->job.config;
    assert_int_equal(c->shape.L, 4);
    assert_int_equal(c->shape.C, 256);
    assert_int_equal(c->shape.NH, 4);
    assert_int_equal(c->shape.V, 257);
    assert_int_equal(c->shape.Vp, 384);
    assert_int_equal(c->shape.maxT, 256);
    assert_int_equal(c->B, 8);
    assert_int_equal(c->T, 256);
    assert_int_equal(c->micro_batches, 1);
    assert_int_equal(c->steps, 500);
    assert_int_equal(c->sample_length, 256);
    assert_int_equal(c->n_prompt, 1);
    assert_int_equal(c->validation_batches, 20);
    assert_int_equal(c->recompute_layers, 4);
    assert_int_equal(c->head_chunks, 1);
    assert_int_equal(c->attention, ATTENTION_FUSED);
    assert_false(c->save);
    assert_false(c->load);
    assert_false(c->resume);
    assert_true(a->job.data.validation_random);
    assert_true(c->clip == 1);
    assert_true(c->schedule.lr == 0.001);
    assert_int_equal(c->schedule.steps, 500);
    close_asked(a);
}

static void test_sizes_of_a_step(void **state) {
    (void)state;
    Asked *a = ask(3, TINY " -d 576 -g 7 -v 0 -r 2 --recompute-layers 1 -x 9 --max-length 40");
    const Config *c = &a->job.config;
    assert_int_equal(c->micro_batches, 3);
    assert_int_equal(c->sample_length, 7);
    assert_int_equal(c->validation_batches, 0);
    assert_int_equal(c->recompute, LEVEL_LAYERNORMS);
    assert_int_equal(c->recompute_layers, 1);
    assert_int_equal(c->steps, 9);
    assert_int_equal(c->shape.maxT, 40);
    close_asked(a);
    a = ask(1, TINY " --recompute-layers 100 -x 0");
    assert_int_equal(a->job.config.recompute_layers, 2);
    assert_int_equal(a->job.config.steps, 0);
    close_asked(a);
}

static void test_types(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    for (int dtype = FP32; dtype < DTYPES; dtype++) {
        Asked *a = ask(1, TINY " -p %s", names[dtype]);
        assert_int_equal(a->job.config.dtype, dtype);
        close_asked(a);
    }
    Asked *a = ask(1, TINY);
    assert_int_equal(a->job.config.dtype, a->device.matmul->native_bf16 ? BF16 : FP32);
    close_asked(a);
}

// Steps of one epoch where that is less than 500; what validates and prompts comes from the files.
static void test_data_of_files(void **state) {
    (void)state;
    uint16_t tokens[101];
    for (int i = 0; i < 101; i++) tokens[i] = (uint16_t)(i % 60);
    write_shard("train.bin", tokens, 101, 66);      // 25 windows of 4
    write_shard("validation.bin", tokens, 42, 66);  // 11 windows
    const char *data = in_directory(directory, "train.bin"), *other = in_directory(directory, "validation.bin");
    Asked *a = ask(2, "-e 1x16x2 -t 4 -b 3 -i %s -j %s", data, other);
    const Config *c = &a->job.config;
    assert_int_equal(c->shape.V, 66);
    assert_int_equal(c->shape.Vp, 128);
    assert_int_equal(c->steps, 5);               // 25 / 6 upwards
    assert_int_equal(c->validation_batches, 4);  // 11 / 3 upwards
    assert_int_equal(c->n_prompt, 2);            // half of a sample at most
    assert_int_equal(a->job.prompt[0], 0);
    assert_int_equal(a->job.prompt[1], 1);
    close_asked(a);
    a = ask(1, "-e 1x16x2 -t 64 -b 1 -i %s -j %s -m 1 -x 1000 -g 64 --vocab 70", data, other);
    assert_int_equal(a->job.config.shape.V, 70);
    assert_int_equal(a->job.config.validation_batches, 1);
    assert_int_equal(a->job.config.steps, 1000);
    assert_int_equal(a->job.config.n_prompt, 20);
    close_asked(a);
    // A plan does without files, but not without a pattern's.
    a = ask(1, "-e 1x16x2 -t 4 --plan -i %s/none.bin", directory);
    assert_int_equal(a->job.config.shape.V, 257);
    close_asked(a);
    expect_refused(1, "no file matches|none", "-e 1x16x2 -t 4 -i %s/none.bin", directory);
    expect_refused(1, "no file matches|none*", "-e 1x16x2 -t 4 --plan -i %s/none*", directory);
    expect_refused(1, "token |vocabulary is 10", "-e 1x16x2 -t 40 -b 1 -i %s -j %s --vocab 10", data, other);
}

static void test_prompts(void **state) {
    (void)state;
    Asked *a = ask(1, "-e 1x16x2 -t 8 -i random -g 8 --prompt 12345678");
    assert_int_equal(a->job.config.n_prompt, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(a->job.prompt[i], '1' + i);
    close_asked(a);
    a = ask(1, "-e 1x16x2 -t 8 -i random -g 0 --prompt 12345");
    assert_int_equal(a->job.config.sample_length, 0);
    close_asked(a);
    expect_refused(1, "prompt has 5 tokens, more than -g 4", "-e 1x16x2 -t 8 -i random -g 4 --prompt 12345");
    expect_refused(1, "prompt has 9 tokens|8", "-e 1x16x2 -t 8 -i random --prompt 123456789");
    expect_refused(1, "prompt needs byte tokens", TINY " --prompt x");
}

// ---------------------------------------------------------------------------------------------------------------
// Places

static void expect_places(const char *flags, int stage, Tier optimizer, Tier gradients, Tier weights, Tier activations,
                          bool on_host) {
    Asked *a = ask(2, TINY " %s", flags);
    const Placement *place = &a->job.config.place;
    assert_int_equal(place->stage, stage);
    assert_int_equal(place->optimizer, optimizer);
    assert_int_equal(place->gradients, gradients);
    assert_int_equal(place->weights, weights);
    assert_int_equal(place->activations, activations);
    assert_int_equal(place->update_on_host, on_host);
    close_asked(a);
}

static void test_places(void **state) {
    (void)state;
    const Tier d = TIER_DEVICE, h = TIER_HOST, k = TIER_DISK;
    expect_places("", 0, d, d, d, d, false);
    expect_places("-z 2", 2, d, d, d, d, false);
    expect_places("--offload optimizer=host", 0, h, d, d, d, true);
    expect_places("--offload optimizer=disk --update device", 0, k, d, d, d, false);
    expect_places("--offload optimizer=disk --update host", 0, k, d, d, d, true);
    expect_places("--offload gradients=host,weights=disk", 0, d, h, k, d, false);
    expect_places("-r 3 -z 3 --offload activations=disk,weights=host,gradients=disk,optimizer=host", 3, h, k, h, k,
                  true);
    Asked *alone = ask(1, TINY " -z 3");  // nothing to share among one rank
    assert_int_equal(alone->job.config.place.stage, 0);
    close_asked(alone);
}

static void test_places_that_mean_nothing(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"optimizer=gpu", "--offload optimizer=gpu: "},
        {"optimiser=host", "= host or disk"},
        {"optimizer=device", "= host or disk"},
        {"optimizer", "--offload optimizer: "},
        {"optimizer=", "= host or disk"},
        {"=host", "= host or disk"},
        {"host", "= host or disk"},
        {"optimizer=hosts", "= host or disk"},
        {"optimizer=host=disk", "= host or disk"},
        {"weights=host,weights=disk", "names weights twice"},
        {"weights=host,", "ends with a comma"},
        {",weights=host", "= host or disk"},
        {"weights=host,,optimizer=host", "= host or disk"},
        {",", "= host or disk"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        expect_refused(2, wrong[i][1], TINY " --plan --offload %s", wrong[i][0]);
    }
    expect_refused(2, "add -r 3", TINY " --offload activations=host");
    expect_refused(2, "add -r 3", TINY " --offload activations=disk -r 2");
    expect_refused(2, "all layers", TINY " --offload activations=host -r 3 --recompute-layers 1");
    expect_refused(2, "the states are on the device", TINY " --update host");
    expect_refused(2, "the states are on the device", TINY " --update host --offload weights=host");
}

// ---------------------------------------------------------------------------------------------------------------
// What is wrong

static void test_wrong_combinations(void **state) {
    (void)state;
    expect_refused(2, "not a multiple of B T = 64", TINY " -d 100");
    expect_refused(2, "-e 2x48x5", "-e 2x48x5 -i random");
    expect_refused(2, "-e d13", "-e d13 -i random");
    expect_refused(2, "-n needs -o", TINY " -n 5");
    expect_refused(2, "-y 1 needs -o", TINY " -y 1");
    expect_refused(2, "longer than -t", TINY " -g 33");
    expect_refused(2, "HellaSwag|not built yet", TINY " -h 1");
    expect_refused(2, "algorithms of a GPU", TINY " --tune x");
    expect_refused(1, "no model|nothing_here", "-e nothing_here -i random");
    expect_refused(1, "positions|--max-length", TINY " --max-length 31");
    Asked *a = ask(1, TINY " --max-length 32 -g 32 -d 128 -h 0");
    assert_int_equal(a->job.config.micro_batches, 2);
    close_asked(a);
}

static void open_for_a_gpu(void *line) {
    Asked a;
    memset(&a, 0, sizeof(a));
    a.n_ranks = 1;
    a.real = DEVICE_CUDA;
    snprintf(a.line, sizeof(a.line), "%s", (const char *)line);
    open_asked(&a);
}

static void test_heads_of_a_gpu(void **state) {
    (void)state;
    expect_exit(open_for_a_gpu, (void *)(uintptr_t)"-e 1x128x1 --vocab 67 -t 8 -i random", 0, "");
    expect_die(open_for_a_gpu, (void *)(uintptr_t) "-e 1x136x1 --vocab 67 -t 8 -i random",
               "heads of 136 channels|at most 128");
}

// A checkpoint of a model decides the model, and what is asked for must be that.
static void test_the_model_of_a_checkpoint(void **state) {
    (void)state;
    enum { PARAMETERS = 67 * 8 + 32 * 8 + 16 + 12 * 64 + 13 * 8 };
    char padded[1024] = {0};
    float *data = (float *)calloc(3 * PARAMETERS, sizeof(float));
    CheckpointHeader header;
    memset(&header, 0, sizeof(header));
    memcpy(header.magic, CHECKPOINT_MAGIC, 8);
    header.format = CHECKPOINT_FORMAT;
    header.L = 1;
    header.NH = 2;
    header.C = 8;
    header.V = 67;
    header.maxT = 32;
    header.step = 4;
    header.n_parameters = PARAMETERS;
    for (int section = 0; section < 3; section++) {
        header.hashes[section] = file_hash((uint64_t)section, data, PARAMETERS * sizeof(float));
    }
    header.header_hash = checkpoint_header_hash(&header);
    memcpy(padded, &header, sizeof(header));
    FILE *file = fopen(in_directory(directory, "checkpoint_00000004.bin"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(padded, 1, 1024, file), 1024);
    assert_int_equal(fwrite(data, sizeof(float), 3 * PARAMETERS, file), 3 * PARAMETERS);
    fclose(file);
    free(data);

    Asked *a = ask(1, "-y 1 -o %s -i random -t 16 -b 1", directory);
    assert_true(a->job.config.load);
    assert_true(a->job.config.resume);
    assert_int_equal(a->job.config.shape.C, 8);
    assert_int_equal(a->job.config.shape.V, 67);
    assert_int_equal(a->job.config.shape.maxT, 32);
    assert_int_equal(a->job.position.step, 4);
    assert_string_equal(a->job.checkpoint, in_directory(directory, "checkpoint_00000004.bin"));
    close_asked(a);
    a = ask(1, "-e %s/checkpoint_00000004.bin -i random -t 32 -b 1", directory);
    assert_true(a->job.config.load);
    assert_false(a->job.config.resume);
    close_asked(a);
    a = ask(1, "-y 1 -o %s/none -e 1x16x2 -i random -t 16 -b 1", directory);  // there is none: from scratch
    assert_false(a->job.config.load);
    assert_int_equal(a->job.config.shape.C, 16);
    assert_true(a->job.config.save);
    close_asked(a);
    expect_refused(1, "has a model of 1x8x2, not -e 1x8x1", "-y 1 -o %s -e 1x8x1 -i random -t 16", directory);
    expect_refused(1, "has a vocabulary of 67, not 68", "-y 1 -o %s --vocab 68 -i random -t 16", directory);
    expect_refused(1, "has 32 positions, not 64", "-y 1 -o %s --max-length 64 -i random -t 16", directory);
    expect_refused(1, "-t 33 is longer than the model's 32 positions", "-y 1 -o %s -i random -t 33", directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_sizes_of_a_step),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_data_of_files),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_places_that_mean_nothing),
        cmocka_unit_test(test_wrong_combinations),
        cmocka_unit_test(test_heads_of_a_gpu),
        cmocka_unit_test(test_the_model_of_a_checkpoint),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
