// test_helpers.c - test_helpers.h: what happens in a child process is seen by its parent, a failed assertion, too.
#include "test_helpers.h"

#include <signal.h>

static void fail_assertion(void *argument) { assert_string_equal((const char *)argument, "another"); }
static void return_quietly(void *argument) { (void)argument; }
static void say_and_exit(void *argument) {
    fprintf(stderr, "%s, and more", (const char *)argument);
    exit(3);
}
static void get_killed(void *argument) {
    (void)argument;
    raise(SIGKILL);
}

static void test_how_a_child_ends(void **state) {
    (void)state;
    char message[256], first[8];
    assert_int_equal(run_child(return_quietly, NULL, message, sizeof(message)), 0);
    assert_string_equal(message, "");
    assert_int_equal(run_child(say_and_exit, (void *)"this", message, sizeof(message)), 3);
    assert_string_equal(message, "this, and more");
    assert_int_equal(run_child(say_and_exit, (void *)"this", first, sizeof(first)), 3);
    assert_string_equal(first, "this, a");
    assert_int_equal(run_child(get_killed, NULL, message, sizeof(message)), 128 + SIGKILL);
}

// Had it jumped back instead, the child would have gone on with the other tests and ended with theirs.
static void test_a_failed_assertion_ends_the_child(void **state) {
    (void)state;
    expect_exit(fail_assertion, (void *)"one thing", 128 + SIGABRT, "one thing|another");
    expect_exit(fail_assertion, (void *)"another", 0, "");
}

static void test_a_command(void **state) {
    (void)state;
    expect_command(7, "said", "echo said >&2; exit 7");
    expect_command(0, "", "true");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how_a_child_ends),
        cmocka_unit_test(test_a_failed_assertion_ends_the_child),
        cmocka_unit_test(test_a_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
