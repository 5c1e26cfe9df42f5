// test_log.c - log.h: rows of steps.csv and memory.csv, field by field; a resumed run drops the rows after its
// checkpoint; places where nothing can be written.
#include "test_helpers.h"

#include "../dev/log.h"

static char directory[256];

static int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    return 0;
}

static int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

#define HEADER                                                                                                         \
    "step,tokens,train_loss,val_loss,norm,lr,ms,tokens_per_second,mfu,peak_device_bytes,peak_host_bytes,skipped,"      \
    "loss_scale,good_steps,sent_bytes,disk_read_bytes,disk_written_bytes\n"

static void expect_file(const char *name, const char *right) {
    char *text = read_file(in_directory(directory, "%s", name), NULL);
    assert_string_equal(text, right);
    free(text);
}

static void test_a_row_of_a_step(void **state) {
    (void)state;
    Log log;
    StepRow row = {7, 448, 3.14159265358979, 2.5, true, 1e-10, 0.001, 12.3456, 987.65, 0.12345, 1, 2, false, 65536, 11,
                   3, 4, 5};
    log_open(&log, directory, -1);
    log_step(&log, &row);
    row.step = 8;
    row.validated = false;
    row.skipped = true;
    row.train_loss = 1.0 / 3;
    row.norm = INFINITY;
    row.peak_device_bytes = SIZE_MAX;
    log_step(&log, &row);
    log_close(&log);
    expect_file("steps.csv",
                HEADER "7,448,3.14159265,2.5,1e-10,0.001,12.346,987.6,0.1235,1,2,0,65536,11,3,4,5\n"
                       "8,448,0.333333333,,inf,0.001,12.346,987.6,0.1235,18446744073709551615,2,1,65536,11,3,4,5\n");
}

// Rows up to the checkpoint's step stay, as they are; those after it, half of one, and what is no row go away.
static void test_a_resumed_run_keeps_its_rows(void **state) {
    (void)state;
    static const char old[] = HEADER "1,a\n2,b\n3,c\nno row\n4,d\n10,e\n2,again\n3,cut";
    static const struct {
        int64_t last;
        const char *kept;
    } cases[] = {{0, ""}, {1, "1,a\n"}, {3, "1,a\n2,b\n3,c\n2,again\n"}, {9, "1,a\n2,b\n3,c\n4,d\n2,again\n"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Log log;
        char right[1024];
        write_file(in_directory(directory, "steps.csv"), old, strlen(old));
        log_open(&log, directory, cases[i].last);
        log_close(&log);
        snprintf(right, sizeof(right), "%s%s", HEADER, cases[i].kept);
        expect_file("steps.csv", right);
        assert_int_equal(access(in_directory(directory, "steps.csv.partial"), F_OK), -1);
    }
    Log log;
    log_open(&log, directory, -1);  // a new run
    log_close(&log);
    expect_file("steps.csv", HEADER);
    unlink(in_directory(directory, "steps.csv"));
    log_open(&log, directory, 5);  // there is none
    log_close(&log);
    expect_file("steps.csv", HEADER);
}

// Neither a log without a directory nor one that was never opened writes or closes anything.
static void test_a_log_of_nothing(void **state) {
    (void)state;
    Log logs[2];
    StepRow row;
    memset(&row, 0, sizeof(row));
    memset(logs, 0, sizeof(logs));
    log_open(&logs[1], NULL, -1);
    const off_t before = lseek(0, 0, SEEK_CUR);
    for (int i = 0; i < 2; i++) {
        log_step(&logs[i], &row);
        log_close(&logs[i]);
        for (int fd = 0; fd < 3; fd++) assert_int_not_equal(fcntl(fd, F_GETFD), -1);
    }
    assert_int_equal(lseek(0, 0, SEEK_CUR), before);
}

// A row for each phase that was planned, tier and kind, in their order; what was not measured is empty.
static void test_memory_of_a_plan_and_a_run(void **state) {
    (void)state;
    Ranks ranks;
    Ledger plan, run;
    memset(&plan, 0, sizeof(plan));
    ranks_open_plan(&ranks, 1);
    plan.phases[PHASE_SETUP].occurred = plan.phases[PHASE_SAVE].occurred = true;
    plan.phases[PHASE_SETUP].kinds[TIER_DEVICE][KIND_WEIGHTS] = 64;
    plan.phases[PHASE_SAVE].kinds[TIER_DISK][KIND_FILES] = (size_t)1 << 40;
    plan.phases[PHASE_HEAD].kinds[TIER_DEVICE][KIND_LOGITS] = 5;  // did not occur
    run = plan;
    run.phases[PHASE_SAVE].occurred = false;
    run.phases[PHASE_SETUP].kinds[TIER_DEVICE][KIND_WEIGHTS] = 65;
    for (int measured = 0; measured < 2; measured++) {
        log_memory_csv(directory, &ranks, &plan, measured ? &run : NULL);
        char *text = read_file(in_directory(directory, "memory.csv"), NULL), *line = strtok(text, "\n");
        assert_string_equal(line, "rank,phase,tier,kind,planned_bytes,measured_bytes");
        for (int i = 0; i < 2 * TIERS * KINDS; i++) {
            char right[128];
            const int p = i < TIERS * KINDS ? PHASE_SETUP : PHASE_SAVE, t = i / KINDS % TIERS, k = i % KINDS;
            const bool weights = p == PHASE_SETUP && t == TIER_DEVICE && k == KIND_WEIGHTS;
            const bool files = p == PHASE_SAVE && t == TIER_DISK && k == KIND_FILES;
            snprintf(right, sizeof(right), "0,%s,%s,%s,%s,%s", ledger_phase_name(p), ledger_tier_name(t),
                     ledger_kind_name(k),
                     weights ? "64" : files ? "1099511627776" : "0",
                     !measured || p == PHASE_SAVE ? "" : weights ? "65" : "0");
            assert_string_equal(line = strtok(NULL, "\n"), right);
        }
        assert_null(strtok(NULL, "\n"));
        free(text);
    }
    assert_int_equal(access(in_directory(directory, "memory.csv.partial"), F_OK), -1);
}

static void test_directories_are_made(void **state) {
    (void)state;
    log_make_directory(in_directory(directory, "a/b//c/d"));
    assert_int_equal(access(in_directory(directory, "a/b/c/d"), W_OK), 0);
    log_make_directory(in_directory(directory, "a/b"));
    log_make_directory(in_directory(directory, "a/e/"));
    assert_int_equal(access(in_directory(directory, "a/e"), W_OK), 0);
}

static void make_the_directory(void *path) { log_make_directory((const char *)path); }

static void open_the_log(void *path) {
    Log log;
    log_open(&log, (const char *)path, -1);
}

static void write_to_a_full_disk(void *unused) {
    (void)unused;
    StepRow row;
    Log log = {"here", open("/dev/full", O_WRONLY)};
    memset(&row, 0, sizeof(row));
    log_step(&log, &row);
}

static void write_memory(void *path) {
    Ranks ranks;
    Ledger plan;
    memset(&plan, 0, sizeof(plan));
    ranks_open_plan(&ranks, 1);
    log_memory_csv((const char *)path, &ranks, &plan, NULL);
}

static void test_places_that_wont_do(void **state) {
    (void)state;
    char longest[PATH_MAX + 10];
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = 0;
    write_file(in_directory(directory, "file"), "", 0);
    expect_die(make_the_directory, (void *)(uintptr_t)in_directory(directory, "file"), "-o |file is not a directory");
    expect_die(make_the_directory, (void *)(uintptr_t)in_directory(directory, "file/below"), "-o |Not a directory");
    expect_die(make_the_directory, (void *)(uintptr_t)"/proc/nothing", "-o /proc/nothing: can't make /proc/nothing");
    expect_die(make_the_directory, longest, "the path is too long");
    expect_die(open_the_log, longest, "the path is too long");
    expect_die(open_the_log, (void *)(uintptr_t)in_directory(directory, "none"),
               "none/steps.csv.partial: No such file");
    expect_die(write_memory, (void *)(uintptr_t)in_directory(directory, "none"),
               "none/memory.csv.partial: No such file");
    expect_die(write_to_a_full_disk, NULL, "can't write here/steps.csv: No space left|-y 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_of_a_step),
        cmocka_unit_test(test_a_resumed_run_keeps_its_rows),
        cmocka_unit_test(test_a_log_of_nothing),
        cmocka_unit_test(test_memory_of_a_plan_and_a_run),
        cmocka_unit_test(test_directories_are_made),
        cmocka_unit_test(test_places_that_wont_do),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
