// test_report.c - report.h: what is printed of a run, word by word. Readers of these lines (tests, scripts, people)
// rely on them.
#include "test_helpers.h"

#include "../dev/report.h"

static const size_t MIB = 1 << 20;

// What is printed is told by the functions that take one of these.
typedef struct {
    Job job;
    Device device;
    Ranks ranks;
    Report report;
    Ledger plan, run;
    StepRow row;
    int n_ranks;
} Fixture;

static void expect_printed(void (*function)(void *), Fixture *f, const char *right) {
    char *text = printed(function, f);
    assert_string_equal(text, right);
    free(text);
}

// The line that begins with these words must be this.
static void expect_line(const char *text, const char *words, const char *right) {
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1) {
        const size_t n = strcspn(at, "\n");
        if (strncmp(at, words, strlen(words)) != 0) continue;
        if (n != strlen(right) || memcmp(at, right, n) != 0) fail_msg("'%.*s', not '%s'", (int)n, at, right);
        return;
    }
    fail_msg("no line begins with '%s': %s", words, text);
}

static void open_fixture(Fixture *f) {
    memset(f, 0, sizeof(*f));
    const ModelShape shape = {4, 4, 256, 257, 384, 256};
    Config *c = &f->job.config;
    c->shape = shape;
    c->B = 8;
    c->T = 256;
    c->micro_batches = c->head_chunks = 1;
    c->recompute_layers = 4;
    c->steps = 500;
    c->clip = 1;
    f->job.options.train = "tokens.bin";
    f->device.kind = f->device.real = DEVICE_CUDA;
    f->device.name = "h100";
    f->device.compute_capability = 90;
    snprintf(f->device.threads_why, sizeof(f->device.threads_why), "7: why");
    f->n_ranks = 1;
    ranks_open_plan(&f->ranks, 1);
}

// ---------------------------------------------------------------------------------------------------------------
// Tables

static void print_table(void *argument) { report_table(&((Fixture *)argument)->plan, "planned, MiB"); }

// Phases that occurred are columns, kinds that are anywhere rows, tiers that have anything sections; the peak is the
// phase's own, not the sum.
static void test_a_table_of_memory(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    expect_printed(print_table, &f, "planned, MiB            \n");
    PhaseLedger *setup = &f.plan.phases[PHASE_SETUP], *update = &f.plan.phases[PHASE_UPDATE];
    setup->occurred = update->occurred = true;
    setup->kinds[TIER_DEVICE][KIND_WEIGHTS] = setup->peak[TIER_DEVICE] = 3 * MIB;
    update->kinds[TIER_DEVICE][KIND_WEIGHTS] = 3 * MIB;
    update->kinds[TIER_DEVICE][KIND_ACTIVATION_GRADIENTS] = 1234 * MIB + MIB / 4;
    update->peak[TIER_DEVICE] = 1237 * MIB + MIB / 4;
    update->kinds[TIER_HOST][KIND_FILES] = update->peak[TIER_HOST] = 1;
    expect_printed(print_table, &f,
                   "planned, MiB                  setup     update\n"
                   "  weights                      3.00       3.00\n"
                   "  activation gradients         0.00    1234.25\n"
                   "  device peak                  3.00    1237.25\n"
                   "  host: files                  0.00       0.00\n"
                   "  host peak                    0.00       0.00\n");
}

static void print_phases(void *argument) {
    Fixture *f = (Fixture *)argument;
    report_phases(&f->report, &f->plan, &f->run);
}

// Each phase once, when it has occurred.
static void test_phases_are_told_once(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    expect_printed(print_phases, &f, "");
    f.plan.phases[PHASE_HEAD].peak[TIER_DEVICE] = 5 * MIB;
    f.run.phases[PHASE_HEAD].peak[TIER_DEVICE] = 6 * MIB;
    f.run.phases[PHASE_HEAD].occurred = true;
    char *text = printed(print_phases, &f);
    static const char beginning[] = "phase head       planned      5.00 MiB, measured      6.00 MiB; RssAnon ";
    assert_memory_equal(text, beginning, strlen(beginning));
    assert_true(atof(text + strlen(beginning)) > 0);
    assert_string_equal(text + strlen(text) - 5, " MiB\n");
    free(text);
    expect_printed(print_phases, &f, "");
}

// ---------------------------------------------------------------------------------------------------------------
// Before the steps

static void print_banner(void *argument) {
    const Fixture *f = (const Fixture *)argument;
    report_banner(&f->job, &f->device, &f->ranks);
}

static void test_the_banner(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    expect_printed(print_banner, &f,
                   "model      4 layers, 256 channels, 4 heads, vocabulary 257 (padded to 384), 256 positions: 3290880 "
                   "parameters\n"
                   "device     h100 (not here), compute capability 9.0; fp32\n"
                   "threads    7: why\n"
                   "step       8 sequences of 256 tokens x 1 micro-batch = 2048 tokens\n"
                   "memory     -r 0 on 0 of 4 layers, fused attention, 1 head chunk\n");
    Config *c = &f.job.config;
    c->recompute = LEVEL_LAYERNORMS;
    c->recompute_layers = 3;
    c->attention = ATTENTION_PLAIN;
    c->head_chunks = 8;
    c->micro_batches = 5;
    c->place.stage = 3;
    c->place.weights = TIER_DISK;
    c->place.optimizer = TIER_HOST;
    c->place.update_on_host = true;
    f.job.data.train.n_tokens = 1000;
    f.job.data.train.n_windows = 4;
    f.job.options.zero = 3;
    ranks_open_plan(&f.ranks, 2);
    char *text = printed(print_banner, &f);
    expect_line(text, "step ", "step       8 sequences of 256 tokens x 5 micro-batches x 2 ranks = 20480 tokens");
    expect_line(text, "memory ", "memory     -r 2 on 3 of 4 layers, plain attention, 8 head chunks");
    expect_line(text, "data ", "data       tokens.bin: 1000 tokens in 4 windows");
    expect_line(text, "ranks ", "ranks      2, ZeRO stage 3");
    expect_line(text, "offload ", "offload    optimizer=host,weights=disk; AdamW on the host");
    assert_null(strstr(text, "note"));
    free(text);
    memset(&f.job.data.train, 0, sizeof(f.job.data.train));
    f.job.data.train_random = true;
    ranks_open_plan(&f.ranks, 1);
    c->place.update_on_host = false;
    text = printed(print_banner, &f);
    expect_line(text, "data ", "data       uniform random tokens");
    expect_line(text, "note", "note: -z 3 has nothing to share among one rank; it saves nothing");
    expect_line(text, "offload ", "offload    optimizer=host,weights=disk; AdamW on the device");
    assert_null(strstr(text, "\nranks "));
    free(text);
}

static void print_position(void *argument) {
    const Fixture *f = (const Fixture *)argument;
    report_position(&f->job, &f->ranks);
}

// Where weights come from; and the first of the things that make a run another one than that which was saved.
static void test_where_a_run_begins(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    Config *c = &f.job.config;
    CheckpointHeader *p = &f.job.position;
    expect_printed(print_position, &f, "");
    snprintf(f.job.checkpoint, sizeof(f.job.checkpoint), "FILE");
    p->step = 12;
    c->load = true;
    expect_printed(print_position, &f, "starting with the weights of FILE (step 12)\n");
    p->dtype = BF16;
    expect_printed(print_position, &f, "starting with the weights of FILE (step 12)\n"
                                       "note: it was trained in bf16, this run is in fp32\n");
    p->dtype = FP32;
    c->resume = true;
    c->seed = p->seed = 5;
    f.job.data.train.fingerprint = p->data = 77;
    p->T = 256;
    p->B = 8;
    p->tokens_per_step = 2048;
    expect_printed(print_position, &f, "going on from FILE (step 12)\n");
    struct {
        int64_t *field;
        const char *name;
    } changes[] = {{&p->B, "-b"}, {&p->tokens_per_step, "-d"}, {&p->T, "-t"}, {(int64_t *)&p->data, "the data"},
                   {(int64_t *)&p->seed, "--seed"}};
    // Each is told before those that changed earlier.
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        char right[256];
        *changes[i].field += 1;
        snprintf(right, sizeof(right),
                 "going on from FILE (step 12)\nnote: %s differs from the saved run, so this is not "
                 "the run it would have been\n",
                 changes[i].name);
        expect_printed(print_position, &f, right);
    }
    p->seed--;
    f.job.data.train_random = true;  // which has no fingerprint
    p->data = 0;
    p->T--;
    p->tokens_per_step--;
    p->B--;
    expect_printed(print_position, &f, "going on from FILE (step 12)\n");
}

// ---------------------------------------------------------------------------------------------------------------
// Steps and the end

static void print_step(void *argument) {
    const Fixture *f = (const Fixture *)argument;
    report_step(&f->report, &f->job.config, f->n_ranks, &f->run, &f->row, 125.9);
}

// The line but for RssAnon's number, which is taken out.
static void expect_step(Fixture *f, const char *right) {
    char *text = printed(print_step, f), *rss = strstr(text, "RssAnon ");
    assert_non_null(rss);
    rss += strlen("RssAnon ");
    char *rest = rss + strspn(rss, "0123456789.");
    assert_true(rest > rss);
    memmove(rss, rest, strlen(rest) + 1);
    assert_string_equal(text, right);
    free(text);
}

static void test_the_line_of_a_step(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    f.run.phases[PHASE_FORWARD].peak[TIER_DEVICE] = 160 * MIB;
    f.run.phases[PHASE_HEAD].peak[TIER_DEVICE] = 159 * MIB;
    f.run.phases[PHASE_BACKWARD].peak[TIER_DEVICE] = 172 * MIB;
    f.run.phases[PHASE_UPDATE].peak[TIER_DEVICE] = 51 * MIB;
    f.row.step = 3;
    f.row.train_loss = 5.62661;
    f.row.norm = 1;
    f.row.lr = 5e-5;
    f.row.ms = 424.4;
    f.row.tokens_per_second = 4832.4;
    f.row.mfu = 0.678;
    expect_step(&f, "step 3/500 | loss 5.6266 | norm 1.000 | lr 5.00e-05 | 424 ms | 4832 tokens/s | mfu 67.8 % | MiB "
                    "forward 160.0 head 159.0 backward 172.0 update 51.0, RssAnon \n");
    f.row.norm = 11.56;
    f.report.terminal = true;
    expect_step(&f,
                "\rstep 3/500 | loss 5.6266 | norm 11.560 (clipped to 1) | lr 5.00e-05 | 424 ms | 4832 tokens/s | mfu "
                "67.8 % | MiB forward 160.0 head 159.0 backward 172.0 update 51.0, RssAnon  | ETA 2:05\033[K");
    f.report.terminal = false;
    f.job.config.clip = 0;  // any norm
    f.n_ranks = 2;
    f.row.sent_bytes = 30 * MIB;
    f.job.config.place.gradients = TIER_DISK;
    f.row.disk_read_bytes = 14 * MIB;
    f.row.disk_written_bytes = 15 * MIB;
    // Least: 3,290,880 parameters: half of 8 bytes of each sent, 4 of each written.
    expect_step(&f,
                "step 3/500 | loss 5.6266 | norm 11.560 | lr 5.00e-05 | 424 ms | 4832 tokens/s | mfu 67.8 % | MiB "
                "forward 160.0 head 159.0 backward 172.0 update 51.0, RssAnon  | sent 30.00 MiB, least 12.55 | disk "
                "MiB read 14.00 written 15.00, least 12.55\n");
}

static void print_end(void *argument) {
    const Fixture *f = (const Fixture *)argument;
    report_end(&f->plan, &f->device, f->row.peak_device_bytes, 105 * MIB + MIB / 2, "./train_gpt -r 3");
}

static void test_the_end(void **state) {
    (void)state;
    Fixture f;
    open_fixture(&f);
    f.device.kind = f.device.real = DEVICE_CPU;
    f.plan.phases[PHASE_BACKWARD].peak[TIER_DEVICE] = 172 * MIB;
    f.plan.phases[PHASE_SETUP].peak[TIER_HOST] = MIB;
    f.row.peak_device_bytes = 172 * MIB;  // without memory flags: the same
    expect_printed(
        print_end, &f,
        "peak       172.00 MiB on the device (phase backward), 1.00 MiB on the host: planned and measured alike\n"
        "saved      nothing: no memory flag was in use\n"
        "next       ./train_gpt -r 3   (device peak 105.50 MiB)\n");
    f.row.peak_device_bytes = 196 * MIB;
    f.device.real = DEVICE_CUDA;
    f.plan.phases[PHASE_UPDATE].peak[TIER_DISK] = 3 * MIB;
    expect_printed(
        print_end, &f,
        "peak       172.00 MiB on the device (phase backward), 1.00 MiB on the host (pinned), 3.00 MiB on the "
        "disk: planned and measured alike\n"
        "saved      24.00 MiB by the memory flags (without them: 196.00 MiB)\n"
        "next       ./train_gpt -r 3   (device peak 105.50 MiB)\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_table_of_memory),
        cmocka_unit_test(test_phases_are_told_once),
        cmocka_unit_test(test_the_banner),
        cmocka_unit_test(test_where_a_run_begins),
        cmocka_unit_test(test_the_line_of_a_step),
        cmocka_unit_test(test_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
