// test_flags.c - flags.h: the table of flags is sound, every flag takes what it should and refuses the rest (exit 2,
// what is wrong and a usage line), and what a command line means.
#include "test_helpers.h"

#include "../dev/flags.h"

// A command line of at most 16 words.
typedef struct {
    const char *words[16];
    Options options;
} Line;

static void parse(void *argument) {
    Line *line = (Line *)argument;
    int n = 1;
    while (line->words[n]) n++;
    line->words[0] = "train_gpt";
    flags_parse(&line->options, n, (char **)(uintptr_t)line->words);
}

static void expect_refused(const char *first, const char *second, const char *words) {
    Line line = {{"train_gpt", first, second}, {0}};
    char all[256];
    snprintf(all, sizeof(all), "train_gpt: |usage: train_gpt %s%s", *words ? "|" : "", words);
    expect_exit(parse, &line, 2, all);
}

__attribute__((format(printf, 3, 4))) static void expect_value_refused(const Flag *f, const char *words,
                                                                       const char *format, ...) {
    char name[64], value[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof(value), format, arguments);
    va_end(arguments);
    snprintf(name, sizeof(name), "--%s", f->name);
    expect_refused(name, value, words);
}

static void print_help(void *unused) {
    (void)unused;
    flags_help(stdout);
}

// A line for each, with its letter, its name, what it is for, its choices and its default; no two share a letter or a
// name.
static void test_help_names_every_flag(void **state) {
    (void)state;
    char *output = printed(print_help, NULL);
    int n_lines = 0;
    for (char *at = output; *at; at++) n_lines += *at == '\n';
    assert_int_equal(n_lines, 2 + N_FLAGS);
    assert_memory_equal(output, "usage: train_gpt ", 17);
    for (int i = 0; i < N_FLAGS; i++) {
        char name[64];
        snprintf(name, sizeof(name), FLAGS[i].letter ? "\n  -%c, --%s " : "\n  %c    --%s ",
                 FLAGS[i].letter ? FLAGS[i].letter : ' ', FLAGS[i].name);
        if (!strstr(output, name)) fail_msg("'%s' is not in: %s", name, output);
        assert_true(strlen(FLAGS[i].help) > 10);
        for (int j = 0; j < i; j++) {
            assert_true(!FLAGS[i].letter || FLAGS[i].letter != FLAGS[j].letter);
            assert_string_not_equal(FLAGS[i].name, FLAGS[j].name);
        }
    }
    assert_non_null(strstr(output, ": cosine|linear|constant|wsd [cosine]\n"));
    assert_non_null(strstr(output, " [data/train.bin]\n"));
    free(output);
}

// Every flag refuses what is not of its kind, out of its range, or missing.
static void test_every_flag_refuses_bad_values(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < N_FLAGS; i++) {
        const Flag *f = &FLAGS[i];
        char name[64];
        snprintf(name, sizeof(name), "--%s=1", f->name);
        if (f->kind == FLAG_SWITCH) {
            expect_refused(name, NULL, "takes no value");
            continue;
        }
        snprintf(name, sizeof(name), "--%s", f->name);
        expect_refused(name, NULL, "needs a value");
        snprintf(name, sizeof(name), "-%c", f->letter ? f->letter : '#');
        if (f->letter != 'h') expect_refused(name, NULL, f->letter ? "needs a value" : "unknown flag -#");
        if (f->kind == FLAG_TEXT) {
            expect_value_refused(f, "needs a value", "%s", "");
            continue;
        }
        static const char *const bad[] = {"x", "1x", "", "nan", "--", " ", "0x", "1 2"};
        for (size_t j = 0; j < sizeof(bad) / sizeof(bad[0]); j++, n++) expect_value_refused(f, f->name, "%s", bad[j]);
        if (f->kind == FLAG_CHOICE) {
            expect_value_refused(f, "one of ", "%s", f->choices);        // all of them
            expect_value_refused(f, "one of ", "%.2s", f->choices);      // half of one
            expect_value_refused(f, "one of ", "%sx", f->choices);
            continue;
        }
        const char *range = f->kind == FLAG_SIZE ? "" : "from ";
        expect_value_refused(f, range, "%.17g", f->low - 1);
        expect_value_refused(f, range, "%.17g", f->high * 2 + 1);
        if (f->kind == FLAG_SIZE) expect_value_refused(f, "a size such as", "%s", "1.5GiBs");
        else expect_value_refused(f, "from ", "%s", "inf");
        if (f->kind == FLAG_INTEGER) expect_value_refused(f, "not a whole number", "%s", "1.5");
    }
    assert_true(n > 100);
}

// The ends of every range are within it.
static void test_every_flag_takes_its_range(void **state) {
    (void)state;
    for (int i = 0; i < N_FLAGS; i++) {
        const Flag *f = &FLAGS[i];
        if (f->kind != FLAG_INTEGER && f->kind != FLAG_REAL && f->kind != FLAG_SIZE) continue;
        for (int end = 0; end < 2; end++) {
            char name[64], value[64];
            Line line = {{"train_gpt", name, value}, {0}};
            const double right = end ? f->high : f->low;
            snprintf(name, sizeof(name), "--%s", f->name);
            snprintf(value, sizeof(value), "%.17g", right);
            parse(&line);
            const char *field = (const char *)&line.options + f->field;
            int64_t integer;
            double real;
            memcpy(&integer, field, sizeof(integer));
            memcpy(&real, field, sizeof(real));
            if (f->kind == FLAG_INTEGER) assert_true((double)integer == right);
            else assert_true(real == right);
        }
    }
}

static void test_unknown_flags(void **state) {
    (void)state;
    expect_refused("--nonsense", NULL, "unknown flag --nonsense");
    expect_refused("-b8", NULL, "unknown flag -b8");
    expect_refused("word", NULL, "unknown flag word");
    expect_refused("-", NULL, "unknown flag -");
    expect_refused("--", NULL, "unknown flag --");
    expect_refused("", NULL, "unknown flag ");
    expect_refused("--batc", "8", "unknown flag --batc");
    expect_refused("--batches", "8", "unknown flag --batches");
}

static void test_defaults(void **state) {
    (void)state;
    Line line = {{NULL}, {0}};
    parse(&line);
    const Options *o = &line.options;
    assert_string_equal(o->model, "d4");
    assert_false(o->model_given);
    assert_false(o->validation_given);
    assert_null(o->output);
    assert_null(o->offload);
    assert_int_equal(o->B, 8);
    assert_int_equal(o->T, 256);
    assert_int_equal(o->steps, -1);
    assert_int_equal(o->recompute, 0);
    assert_int_equal(o->head_chunks, 1);
    assert_int_equal(o->seed, 1337);
    assert_true(o->clip == 1);
    assert_true(o->lr == 0.001);
    assert_false(o->plan);
    assert_false(o->help);
}

// Short and long, with and without "=", of every kind; what comes last counts.
static void test_flags_are_parsed(void **state) {
    (void)state;
    Line line = {{"train_gpt", "-b", "3", "--length=77", "-l", "5e-4", "--device-memory", "1.5GiB", "-e", "d6",
                  "--attention", "plain", "-q", "0", "--device=plan"}, {0}};
    parse(&line);
    const Options *o = &line.options;
    assert_int_equal(o->B, 3);
    assert_int_equal(o->T, 77);
    assert_true(o->lr == 5e-4);
    assert_true(o->device_memory == 1.5 * 1073741824.0);
    assert_true(o->plan);
    assert_string_equal(o->model, "d6");
    assert_true(o->model_given);
    assert_string_equal(o->attention, "plain");
    assert_true(o->final_fraction == 0);

    Line twice = {{"train_gpt", "-b", "3", "--batch=4", "-j", "x=y", "-x", "-1", "--plan", "-d", "9007199254740992"},
                  {0}};
    parse(&twice);
    assert_int_equal(twice.options.B, 4);
    assert_string_equal(twice.options.validation, "x=y");
    assert_true(twice.options.validation_given);
    assert_int_equal(twice.options.steps, -1);
    assert_true(twice.options.plan);
    assert_true(twice.options.tokens_per_step == (int64_t)1 << 53);
}

// -h is llm.c's flag with a value, and help without one.
static void test_the_two_meanings_of_h(void **state) {
    (void)state;
    Line alone = {{"train_gpt", "-h"}, {0}}, before = {{"train_gpt", "-h", "-b", "4"}, {0}};
    Line valued = {{"train_gpt", "-h", "1"}, {0}}, named = {{"train_gpt", "--help"}, {0}};
    parse(&alone);
    assert_true(alone.options.help);
    parse(&before);
    assert_true(before.options.help);
    assert_int_equal(before.options.B, 4);
    parse(&valued);
    assert_false(valued.options.help);
    assert_int_equal(valued.options.hellaswag, 1);
    parse(&named);
    assert_true(named.options.help);
    expect_refused("-h", "2", "from 0 to 1");
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double bytes;
    } good[] = {{"512MiB", 536870912.0}, {"2K", 2048}, {"2KiB", 2048}, {"1.5G", 1610612736.0}, {"300000", 300000},
                {"7B", 7}, {"0", 0}, {"1T", 1099511627776.0}, {"1e3", 1000}, {"0.5K", 512}};
    double bytes;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(flags_parse_size(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
    static const char *const bad[] = {"2GiBx", "G", "-1K", "", "1k", "1P", "1KB", "1Ki", "1BiB", "nan", "1 K", "x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (flags_parse_size(bad[i], &bytes)) fail_msg("'%s' was taken for %g bytes", bad[i], bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help_names_every_flag),
        cmocka_unit_test(test_every_flag_refuses_bad_values),
        cmocka_unit_test(test_every_flag_takes_its_range),
        cmocka_unit_test(test_unknown_flags),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_flags_are_parsed),
        cmocka_unit_test(test_the_two_meanings_of_h),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
