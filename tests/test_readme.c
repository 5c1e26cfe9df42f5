// test_readme.c - scripts/check_readme.sh: it passes the README and the lessons as they are, and finds what is made
// wrong in a copy of them.
#include "program_helpers.h"

static char directory[256];

static int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    free(run_command(0, "cp -r README.md Makefile train_gpt.cu dev scripts tests %s && "
                        "ln -s $PWD/train_gpt $PWD/data %s", directory, directory));
    return 0;
}

static int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

// What the check says of the copy after an edit (a sed script) of one of its files; to be freed. Undoes the edit.
static char *check(int status, const char *edit, const char *file) {
    char path[512];
    size_t n_before, n_after;
    snprintf(path, sizeof(path), "%s/%s", directory, file);
    char *before = read_file(path, &n_before);
    free(run_command(0, "sed -i '%s' %s", edit, path));
    char *after = read_file(path, &n_after);
    if (*edit && n_before == n_after && memcmp(before, after, n_before) == 0) fail_msg("%s changes nothing", edit);
    char *output = run_command(status, "cd %s && sh scripts/check_readme.sh", directory);
    write_file(path, before, n_before);
    free(before);
    free(after);
    return output;
}

static void test_the_texts_are_true(void **state) {
    (void)state;
    char *output = check(0, "", "README.md");
    assert_int_equal(count_lines(output), 1);
    free(output);
}

static void test_what_is_wrong_is_found(void **state) {
    (void)state;
    const struct {
        const char *file, *edit, *words;
    } cases[] = {
        {"README.md", "s/^make test$/make tests/", "README.md: there is no make tests"},
        {"README.md", "s/-x 100 -r 3 --offload/-x 100 -r 3 --ofload/", "README.md: there is no flag --ofload"},
        {"README.md", "s/-x 100 -r 3 --offload/-x 100 -r 4 --offload/", "--recompute 4: from 0 to 3"},
        {"README.md", "s/(dev.RANKS.md)/(dev\\/RANK.md)/", "README.md does not lead to dev/RANKS.md"},
        {"README.md", "s/(dev.RANKS.md)/(dev\\/RANK.md)/", "README.md: there is no dev/RANK.md"},
        {"README.md", "/dev.slot.h/d", "README.md: the table of sources"},
        {"README.md", "s/of one block on its way/of a block/; s/room for one block/x/", "the table of sources"},
        {"README.md", "$r Makefile", "README.md: more than 200 lines"},
        {"README.md", "s/80.34 MiB/80.35 MiB/g", "peak of dev/pictures/saving.csv, 80.34 MiB"},
        {"dev/MEMORY.md", "s/dev.witness.h, tests/dev\\/witnes.h, tests/", "dev/MEMORY.md: there is no dev/witnes.h"},
        {"dev/OFFLOAD.md", "s/--device-memory 2GiB -x/--device-memory 1GiB -x/", "does not fit"},
        {"dev/slot.h", "1s/room/place/", "README.md: the table of sources"},
        {"dev/pictures/ranks.svg", "s/fill: #24292f/fill: #24292e/", "ranks.svg is not what scripts/pictures.sh draws"},
        {"dev/pictures/saving.csv", "2s/13320192,13320192/13320193,13320192/", "memory.svg is not what"},
        {"dev/pictures/saving.csv", "2d", "scripts/pictures.sh fails"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *output = check(1, cases[i].edit, cases[i].file);
        assert_says(output, cases[i].words);
        free(output);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_texts_are_true, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_what_is_wrong_is_found, open_directory, close_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
