// test_style.c - scripts/check_style.sh: what it lets pass and what it names, on sources made for it.
#include "program_helpers.h"

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

// Checks one source of that name; it must end with `status` and, if `says` isn't NULL, say that.
static void check(const char *name, const char *source, int status, const char *says) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    write_file(path, source, strlen(source));
    char *output = run_command(status, "sh scripts/check_style.sh %s", path);
    if (says) assert_says(output, says);
    else assert_string_equal(output, "");
    free(output);
}

// Lines of a length: all of it one word after `begin`.
static char *line_of(const char *begin, size_t length) {
    static char line[256];
    memset(line, 'x', sizeof(line));
    memcpy(line, begin, strlen(begin));
    line[length] = '\n';
    line[length + 1] = 0;
    return line;
}

static void test_columns(void **state) {
    (void)state;
    check("a.h", line_of("// ", 120), 0, NULL);
    check("a.h", line_of("// ", 121), 1, "a.h:1: 121 columns");
    check("a.sh", line_of("# ", 121), 1, "a.sh:1: 121 columns");
    check("a.h", "int x;\n\n// short\n", 0, NULL);
}

#define KERNEL "template <int A, int B>\n__global__ static void __launch_bounds__(A, B)\n"
#define EIGHT "int a, int b, int c, int d, int e, int f, int g, int h"

static void test_parameters(void **state) {
    (void)state;
    check("a.c", "static int f(" EIGHT ") {\n    return 0;\n}\n", 0, NULL);
    check("a.c", "static int f(" EIGHT ", int i) {\n    return 0;\n}\n", 1, "a.c:1: f takes 9 parameters");
    check("a.h", "int x;\n\nstatic int *long_name(" EIGHT ",\n                int i) {\n}\n", 1,
          "a.h:3: long_name takes 9 parameters");
    check("a.c", "static int f(" EIGHT ", int i);\n", 0, NULL);              // a declaration
    check("a.c", "static int f(" EIGHT ", int i) { return 0; }\n", 1, "f takes 9 parameters");
    check("a.c", "int x = g(1, 2, 3, 4, 5, 6, 7, 8, 9);\n", 0, NULL);         // a call
    check("a.c", "static int f(int (*of)(int, int, int), " EIGHT ") {\n}\n", 1, "f takes 9 parameters");
    check("a.c", "static int f(int (*of)(int, int, int), int a) {\n}\n", 0, NULL);
    check("a.cuh", KERNEL "    k(" EIGHT ") {\n}\n", 0, NULL);
    check("a.cuh", KERNEL "    k(" EIGHT ", V<A, B> i) {\n}\n", 1, "a.cuh:1: k takes 9 parameters");
    check("a.sh", "f(" EIGHT ", int i) {\n}\n", 0, NULL);  // no C
}

// A reason stands in the comment right above, with the number.
static void test_reasons(void **state) {
    (void)state;
    check("a.c", "// 9 parameters: the library's.\nint f(" EIGHT ", int i) {\n}\n", 0, NULL);
    check("a.c", "// Does it. 9 parameters: the\n// library's.\nint f(" EIGHT ", int i) {\n}\n", 0, NULL);
    check("a.c", "// 10 parameters: the library's.\nint f(" EIGHT ", int i) {\n}\n", 1, "f takes 9 parameters");
    check("a.c", "// 9 parameters: the library's.\nint x;\nint f(" EIGHT ", int i) {\n}\n", 1, "f takes 9 parameters");
}

static void test_comments_of_the_spine(void **state) {
    (void)state;
    const char *nine = "int a;\nint b;\nint c;\nint d;\nint e;\nint f;\nint g;\nint h;\nint i;\n";
    char source[512];
    snprintf(source, sizeof(source), "%sint j;  // a comment\n", nine);
    check("train_gpt.cu", source, 0, NULL);
    snprintf(source, sizeof(source), "%sint j;  // a comment\nint k;\n", nine);
    check("train_gpt.cu", source, 1, "1 of 11 lines have a comment");
    check("other.cu", source, 0, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_comments_of_the_spine),
    };
    return cmocka_run_group_tests(tests, open_directory, close_directory);
}
