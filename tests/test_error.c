// test_error.c - error.h: who this rank is, what a program that ends says, once, in one piece, and whom it takes along.
//
// The four seconds that other ranks wait before they speak are counted, not waited for.
#include "test_helpers.h"

#include <pthread.h>

static unsigned slept;

static unsigned test_sleep(unsigned seconds) {
    slept += seconds;
    return 0;
}

#define sleep test_sleep
#include "../dev/error.h"
#include "../dev/error.h"
#undef sleep

static const char *const LAUNCHERS[] = {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                                        "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};

static int without_launcher(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(LAUNCHERS) / sizeof(LAUNCHERS[0]); i++) unsetenv(LAUNCHERS[i]);
    return 0;
}

static void expect_launched(int rank, int size) {
    assert_int_equal(error_launched(true), rank);
    assert_int_equal(error_launched(false), size);
}

static void test_who_was_launched(void **state) {
    expect_launched(0, 1);
    for (int launcher = 0; launcher < 3; launcher++) {
        setenv(LAUNCHERS[2 * launcher], "12", 1);
        setenv(LAUNCHERS[2 * launcher + 1], "11", 1);
        expect_launched(11, 12);
        without_launcher(state);
    }
    // A shell of a batch script has a number, but is no step.
    setenv("SLURM_PROCID", "3", 1);
    expect_launched(0, 1);
    // mpirun within a step of srun: the inner one counts.
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    expect_launched(1, 2);
}

static void expect_message(void (*function)(void *), void *argument, int status, const char *right) {
    char message[16384];
    assert_int_equal(run_child(function, argument, message, sizeof(message)), status);
    assert_string_equal(message, right);
}

static void die_with_numbers(void *unused) {
    (void)unused;
    die("%s takes %zu bytes, %d%% of all", "b", (size_t)1 << 40, 7);
}

static void test_a_message_and_status_1(void **state) {
    (void)state;
    expect_message(die_with_numbers, NULL, 1, "train_gpt: b takes 1099511627776 bytes, 7% of all\n");
}

static void die_of_rank(void *rank) {
    setenv("PMI_SIZE", "10", 1);
    setenv("PMI_RANK", (const char *)rank, 1);
    die("no");
}

static void say_seconds(int status) { fprintf(stderr, "status %d after %u s\n", status, slept); }

static void die_and_tell(void *rank) {
    *error_ranks() = say_seconds;
    die_of_rank(rank);
}

// Rank 0 speaks at once, the others say who they are and wait, so that rank 0's message comes first; all others are
// ended with the same status.
static void test_ranks_say_who_they_are(void **state) {
    (void)state;
    expect_message(die_and_tell, (void *)(uintptr_t)"0", 1, "train_gpt: no\nstatus 1 after 0 s\n");
    expect_message(die_and_tell, (void *)(uintptr_t)"7", 1, "train_gpt: rank 7: no\nstatus 1 after 4 s\n");
    expect_message(die_of_rank, (void *)(uintptr_t)"9", 1, "train_gpt: rank 9: no\n");
}

__attribute__((format(printf, 1, 2))) static void end_as_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    error_end(2, "usage: it\n", format, arguments);
    va_end(arguments);
}

static void end_with_usage(void *unused) {
    (void)unused;
    end_as_usage("unknown %s", "flag");
}

static void test_another_status_and_a_line_after(void **state) {
    (void)state;
    expect_message(end_with_usage, NULL, 2, "train_gpt: unknown flag\nusage: it\n");
}

// A message with a path of the longest length is whole; beyond 8,191 characters it is cut, and still ends.
static void die_at_length(void *length) {
    char *text = (char *)calloc(1, *(size_t *)length + 1);
    memset(text, 'x', *(size_t *)length);
    die("%s", text);
}

static void test_long_messages(void **state) {
    (void)state;
    static const size_t lengths[] = {4096 + 100, 8191, 8192, 10000};
    for (size_t i = 0; i < 4; i++) {
        char message[16384];
        size_t length = lengths[i], shown = length < 8191 ? length : 8191;
        assert_int_equal(run_child(die_at_length, &length, message, sizeof(message)), 1);
        assert_int_equal(strlen(message), strlen("train_gpt: ") + shown + 1);
        assert_int_equal(message[strlen(message) - 1], '\n');
        assert_int_equal(message[strlen(message) - 2], 'x');
    }
}

// What was printed before is there, and what the library does at the end is done; both only where the main thread dies.
static void say_goodbye(void) { fprintf(stderr, "clean-up\n"); }

static void *die_in_a_thread(void *unused) {
    (void)unused;
    die("in a thread");
    return NULL;
}

static void die_of_two_threads(void *unused) {
    (void)unused;
    pthread_t threads[2];
    atexit(say_goodbye);
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, die_in_a_thread, NULL) != 0) _exit(97);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void die_of_main(void *unused) {
    (void)unused;
    atexit(say_goodbye);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    printf("the last line");  // stays in the library's buffer until it is flushed
    die("in main");
}

static void test_one_thread_speaks(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) expect_message(die_of_two_threads, NULL, 1, "train_gpt: in a thread\n");
    expect_message(die_of_main, NULL, 1, "the last linetrain_gpt: in main\nclean-up\n");
}

static void test_error_text(void **state) {
    (void)state;
    errno = ENOSPC;
    assert_string_equal(error_text(), "No space left on device");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_was_launched, without_launcher, without_launcher),
        cmocka_unit_test(test_a_message_and_status_1),
        cmocka_unit_test(test_ranks_say_who_they_are),
        cmocka_unit_test(test_another_status_and_a_line_after),
        cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_one_thread_speaks),
        cmocka_unit_test(test_error_text),
    };
    without_launcher(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
