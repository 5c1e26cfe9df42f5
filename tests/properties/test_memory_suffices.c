// test_memory_suffices.c - what starts does not run out of memory: what does not fit a budget is refused, with flags
// that do fit, and after the first step nothing is allocated, wherever things have their homes.
#include "../program_helpers.h"

#define TINY "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -m 2 -g 16"
#define EVERYTHING_ON_DISK "-r 3 --offload optimizer=disk,gradients=disk,weights=disk,activations=disk"

// ---------------------------------------------------------------------------------------------------------------
// Budgets

// A budget that is too small: refused with the numbers and flags that fit, and those do fit. --plan says so, exit 0.
static void test_too_small_a_budget(void **state) {
    (void)state;
    const char *big = "-e d4 -t 256 -b 8 -i random --vocab 257 -p fp32 -g 0 -v 0";
    char *plan = run_command(0, "./train_gpt %s --plan --device-memory 150MiB --headroom 0", big);
    assert_says(plan, "does not fit: the plan needs ");
    assert_says(plan, "157286400 bytes (150.0 MiB) are usable (0 % headroom)");
    char *refused = run_command(1, "./train_gpt %s --device-memory 150MiB --headroom 0", big);
    assert_says(refused, "does not fit");
    char *would = strstr(refused, "This would fit: ");
    assert_non_null(would);
    would += strlen("This would fit: ");
    would[strcspn(would, "\n")] = 0;
    char *fits = run_command(
        0, "./train_gpt -e d4 -i random --vocab 257 -p fp32 -g 0 -v 0 %s -x 1 --device-memory 150MiB --headroom 0",
        would);
    assert_says(fits, "fits: ");
    // Exactly what the plan needs is enough, one byte less is not.
    size_t needed = strtoull(strstr(plan, "the plan needs ") + strlen("the plan needs "), NULL, 10);
    free(run_command(0, "./train_gpt %s -x 1 --device-memory %zu --headroom 0", big, needed));
    free(run_command(1, "./train_gpt %s -x 1 --device-memory %zu --headroom 0", big, needed - 1));
    free(run_command(1, "./train_gpt %s -x 1 --device-memory %zu --headroom 1", big, needed));
    expect_command(1, "No flags make it fit: the least is", "./train_gpt %s --device-memory 10MiB", big);
    free(plan);
    free(refused);
    free(fits);
}

// After the first step the program allocates nothing and nobody allocates 64 KiB or more; RssAnon stays flat.
static void test_nothing_is_allocated_after_the_first_step(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    // The larger model's products are of a size for which some libraries take buffers of megabytes at every call.
    const char *models[] = {TINY " -d 128", "-e 2x256x4 --vocab 300 -t 64 -b 8 -i random -m 2 -g 16"};
    for (int i = 0; i < 4; i++) {
        char *output = run_command(0,
                                   "INTERPOSE_REPORT=%s/report LD_PRELOAD=build/interpose.so ./train_gpt %s -x 4 -n 2 "
                                   "-v 2 -s 2 -p %s -o %s/out",
                                   directory, models[i / 2], i % 2 ? "bf16" : "fp32", directory);
        assert_memory_stayed(output, in_directory(directory, "report"));
        free(output);
    }
    remove_directory(directory);
}

// What would fit, from a refusal; it is cut off there.
static const char *suggested(char *output) {
    char *flags = strstr(output, "This would fit: ");
    if (!flags) fail_msg("no suggestion in: %s", output);
    flags += strlen("This would fit: ");
    flags[strcspn(flags, "\n")] = 0;
    return flags;
}

#define BIG "-e d4 -t 64 -b 4 -i random --vocab 257 -g 0 -v 0 -x 1 --headroom 0"

static void test_budgets(void **state) {
    (void)state;
    const char *big = BIG;
    char directory[256];
    make_directory(directory);
    // The device: states move to the host.
    char *output = run_command(1, "./train_gpt %s --device-memory 30MiB --swap-dir %s", big, directory);
    assert_says_once(output, "does not fit: the plan needs");
    const char *flags = suggested(output);
    assert_says(flags, "--offload optimizer=host");
    char *fits = run_command(0, "./train_gpt %s %s --device-memory 30MiB --swap-dir %s", big, flags, directory);
    assert_says(fits, "fits: ");
    assert_says(fits, "MiB on the host");
    free(fits);
    free(output);
    output = run_command(1, "./train_gpt %s --offload optimizer=host --host-memory 20MiB", big);
    assert_says_once(output, "memory: the plan needs");
    free(output);
    // Device and host: they move to the disk. The model is larger than what the update has on the host then.
    const char *larger = "-e 10x256x4 -t 64 -b 4 -i random --vocab 257 -g 0 -v 0 -x 1 --headroom 0";
    const char *budgets = "--device-memory 75MiB --host-memory 50MiB";
    output = run_command(1, "./train_gpt %s %s", larger, budgets);
    flags = suggested(output);
    assert_says(flags, "optimizer=disk");
    free(run_command(0, "./train_gpt %s %s %s --swap-dir %s", larger, flags, budgets, directory));
    free(output);
    // Nothing fits, and it is said of the host.
    output = run_command(1, "./train_gpt %s --host-memory 1K", big);
    assert_says_once(output, "does not fit in the host");
    assert_says(output, "No flags make it fit");
    free(output);
    remove_directory(directory);
}

static void test_budgets_of_two_ranks(void **state) {
    (void)state;
    need_program_ranks();
    char directory[256];
    make_directory(directory);
    char *output = run_command(-1, LAUNCH " 2 ./train_gpt " BIG " -z 1 --device-memory 30MiB");
    assert_says_once(output, "train_gpt: does not fit");
    const char *flags = suggested(output);
    char *fits =
        run_command(0, LAUNCH " 2 ./train_gpt " BIG " %s --device-memory 30MiB --swap-dir %s", flags, directory);
    assert_says_once(fits, "fits: ");
    free(fits);
    free(output);
    remove_directory(directory);
}

// After the first step nothing is allocated, and RssAnon stays flat.
static void test_nothing_is_allocated_with_offload(void **state) {
    (void)state;
    char directory[256];
    make_directory(directory);
    const char *places[] = {EVERYTHING_ON_DISK,
                            "-r 3 --offload optimizer=disk,gradients=host,weights=disk,activations=host",
                            "--offload optimizer=host,weights=host --update device"};
    for (int i = 0; i < 3; i++) {
        char *output = run_command(0, INTERPOSED " INTERPOSE_REPORT=%s/report ./train_gpt -e 2x256x4 --vocab 300 -t 64 "
                                   "-b 4 -i random -m 2 -g 16 -d 512 -x 4 -n 2 -v 2 -s 2 -p %s %s -o %s/out",
                                   directory, i % 2 ? "fp32" : "bf16", places[i], directory);
        assert_memory_stayed(output, in_directory(directory, "report"));
        free(output);
    }
    remove_directory(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_small_a_budget),
        cmocka_unit_test(test_nothing_is_allocated_after_the_first_step),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_budgets_of_two_ranks),
        cmocka_unit_test(test_nothing_is_allocated_with_offload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
