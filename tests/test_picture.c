// test_picture.c - scripts/picture.sh: the picture is what memory.csv says. Heights of the stacks are bytes on the
// scale that the picture itself shows, the line is the plan's, and what is no memory.csv gives a message and no
// picture.
#include "program_helpers.h"

#include <math.h>
#include <sys/stat.h>

#define HEADER "rank,phase,tier,kind,planned_bytes,measured_bytes\n"

enum { N_KINDS = 12, MOST_BARS = 16 };
static const char *const KINDS[N_KINDS] = {"weights", "master weights", "gradients", "moments", "activations",
                                           "activation gradients", "logits", "scratch", "workspace", "collectives",
                                           "data", "files"};

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

// ---------------------------------------------------------------------------------------------------------------
// Files as the trainer writes them

// The rows of a phase: weights, activations and files have bytes, planned and measured (measured < 0: not); all other
// kinds of the tier have none.
static void put_phase(FILE *file, int rank, const char *phase, const char *tier, const long planned[3],
                      const long measured[3]) {
    for (int k = 0; k < N_KINDS; k++) {
        const int which = k == 0 ? 0 : k == 4 ? 1 : k == 11 ? 2 : -1;
        fprintf(file, "%d,%s,%s,%s,%ld,", rank, phase, tier, KINDS[k], which < 0 ? 0 : planned[which]);
        if (measured) fprintf(file, "%ld", which < 0 ? 0 : measured[which]);
        fputc('\n', file);
    }
}

static FILE *begin_csv(const char *name) {
    FILE *file = fopen(in_directory(directory, "%s", name), "w");
    assert_non_null(file);
    fputs(HEADER, file);
    return file;
}

// Two phases; what was measured differs from the plan, so that the two can't be taken for each other. The head was
// planned and did not occur. On the host there is something else, in the update.
static const long SETUP[3] = {13320192, 0, 70001}, SETUP_MEASURED[3] = {9000001, 0, 70002};
static const long BACKWARD[3] = {13320192, 136577024, 1}, BACKWARD_MEASURED[3] = {13320190, 150000001, 3};
static const long HEAD[3] = {13320192, 1048576, 0}, UPDATE[3] = {5242880, 0, 0};

static void write_run(const char *name) {
    FILE *file = begin_csv(name);
    put_phase(file, 0, "setup", "device", SETUP, SETUP_MEASURED);
    put_phase(file, 0, "head", "device", HEAD, NULL);
    put_phase(file, 0, "backward", "device", BACKWARD, BACKWARD_MEASURED);
    put_phase(file, 0, "update", "host", UPDATE, UPDATE);
    fclose(file);
}

// ---------------------------------------------------------------------------------------------------------------
// Reading a picture

// One tag per name on a stack; attributes quoted; no other & than those of the five entities.
static void assert_well_formed(const char *svg) {
    char open_tags[16][32];
    int depth = 0, roots = 0;
    for (const char *at = svg; *at; at++) {
        if (*at == '&') {
            assert_true(!strncmp(at, "&amp;", 5) || !strncmp(at, "&lt;", 4) || !strncmp(at, "&gt;", 4) ||
                        !strncmp(at, "&quot;", 6));
        }
        assert_true(*at != '>');  // of a tag it is skipped below
        if (*at != '<') continue;
        bool is_end = at[1] == '/', is_quoted = false;
        at += 1 + is_end;
        size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
        assert_true(n > 0 && n < sizeof(open_tags[0]));
        const char *tag = at;
        for (at += n; is_quoted || *at != '>'; at++) {
            assert_true(*at != 0 && *at != '<');
            if (*at == '"') {
                assert_true(is_quoted || at[-1] == '=');
                is_quoted = !is_quoted;
            }
        }
        if (is_end) {
            assert_true(depth > 0 && strlen(open_tags[depth - 1]) == n && !strncmp(open_tags[depth - 1], tag, n));
            depth--;
        } else if (at[-1] != '/') {
            roots += depth == 0;
            assert_true(depth < 16);
            snprintf(open_tags[depth++], sizeof(open_tags[0]), "%.*s", (int)n, tag);
        }
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
}

// The attribute of the tag that begins at `tag`, as a number.
static double attribute(const char *tag, const char *name) {
    char words[64];
    snprintf(words, sizeof(words), " %s=\"", name);
    const char *at = strstr(tag, words);
    assert_true(at != NULL && at < strchr(tag, '>'));
    return atof(at + strlen(words));
}

// What a picture shows: MiB per unit of height and the place of zero, by its scale; its bars and its line.
typedef struct {
    double unit, base;
    int n_bars;
    double bytes[MOST_BARS];  // by the heights
    double said[MOST_BARS];   // by the attributes
    double top[MOST_BARS];
    bool pale[MOST_BARS];
    int n_line;
    double line[MOST_BARS], line_said[MOST_BARS];  // places, bytes
} Picture;

static void read_scale(Picture *p, const char *svg) {
    double y[2], value[2];
    int n = 0;
    for (const char *at = svg; n < 2 && (at = strstr(at, "class=\"grid\"")); at++) {
        y[n] = atof(strchr(strstr(at, "d=\"M"), ' ') + 1);
        value[n++] = atof(strchr(strstr(at, "<text"), '>') + 1);
    }
    assert_int_equal(n, 2);
    assert_true(value[0] == 0 && value[1] > 0);
    p->base = y[0];
    p->unit = value[1] * 1048576 / (y[0] - y[1]);
}

static void read_bars(Picture *p, const char *svg) {
    for (const char *at = svg; (at = strstr(at, "<g class=\"bar")); at++) {
        const char *end = strstr(at, "</g>");
        const int b = p->n_bars++;
        assert_true(b < MOST_BARS);
        p->pale[b] = !strncmp(at, "<g class=\"bar pale\"", 19);
        p->top[b] = p->base;
        for (const char *rect = at; (rect = strstr(rect, "<rect")) && rect < end; rect++) {
            p->bytes[b] += attribute(rect, "height") * p->unit;
            p->said[b] += attribute(rect, "data-bytes");
            p->top[b] -= attribute(rect, "height");
            assert_float_equal(attribute(rect, "y"), p->top[b], 0.01);  // stands on the one below it
        }
    }
}

// The line: "M x y H x V y H x ..." or strokes "M x y H x"; one y a bar. Those of all panels, one after the other.
static void read_lines(Picture *p, const char *svg) {
    for (const char *at = svg; (at = strstr(at, "class=\"plan\" d=\"")); at++) {
        const char *end = strchr(at, '>'), *said = strstr(at, "data-bytes=\"");
        if (!said || said > end) continue;  // the legend's
        said += strlen("data-bytes=\"");
        for (const char *d = strstr(at, "d=\"M"); d < said; d++) {
            if (*d != 'M' && *d != 'V') continue;
            assert_true(p->n_line < MOST_BARS);
            p->line[p->n_line] = atof(*d == 'M' ? strchr(d, ' ') + 1 : d + 1);
            p->line_said[p->n_line++] = strtod(said, (char **)&said);
        }
    }
}

static Picture read_picture(const char *path) {
    Picture p;
    char *svg = read_file(path, NULL);
    memset(&p, 0, sizeof(p));
    assert_well_formed(svg);
    assert_int_equal(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
    assert_non_null(strstr(svg, "prefers-color-scheme: dark"));
    read_scale(&p, svg);
    read_bars(&p, svg);
    read_lines(&p, svg);
    free(svg);
    return p;
}

static double sum(const long bytes[3]) { return (double)(bytes[0] + bytes[1] + bytes[2]); }

// Bar b is so many bytes, and the plan beside it so many. Places have three decimals, and a stack at most twelve parts.
static void expect_bar(const Picture *p, int b, double measured, double planned) {
    assert_true(b < p->n_bars && p->n_line == p->n_bars);
    assert_true(p->said[b] == measured && p->line_said[b] == planned);
    assert_float_equal(p->bytes[b], measured, p->unit * 0.01);
    assert_float_equal((p->base - p->line[b]) * p->unit, planned, p->unit * 0.01);
}

// ---------------------------------------------------------------------------------------------------------------
// Tests

static void test_heights_are_bytes_and_the_line_is_the_plan(void **state) {
    (void)state;
    write_run("a.csv");
    write_run("b.csv");
    expect_command(0, "", "sh scripts/picture.sh %s/out.svg one %s/a.csv two %s/b.csv:host", directory, directory,
                   directory);
    Picture p = read_picture(in_directory(directory, "out.svg"));
    assert_int_equal(p.n_bars, 4);  // of the first setup, head, backward; of the second only the update is on the host
    expect_bar(&p, 0, sum(SETUP_MEASURED), sum(SETUP));
    expect_bar(&p, 1, sum(HEAD), sum(HEAD));
    expect_bar(&p, 2, sum(BACKWARD_MEASURED), sum(BACKWARD));
    expect_bar(&p, 3, sum(UPDATE), sum(UPDATE));
    assert_true(!p.pale[0] && p.pale[1] && !p.pale[2] && !p.pale[3]);
    char *svg = read_file(in_directory(directory, "out.svg"), NULL);
    assert_says(svg, ">two (host)</text>");
    assert_says(svg, "did not occur in this run");
    assert_says(svg, ">activations</text>");
    assert_null(strstr(svg, ">moments</text>"));  // nobody has any
    free(svg);
    assert_int_not_equal(access(in_directory(directory, "out.svg.partial"), F_OK), 0);
}

// Every run at its peak; of several ranks the one that peaks highest.
static void test_peaks(void **state) {
    (void)state;
    write_run("a.csv");
    FILE *file = begin_csv("ranks.csv");
    const long small[3] = {1048576, 0, 0}, large[3] = {2097152, 5, 7};
    put_phase(file, 0, "setup", "device", small, small);
    put_phase(file, 0, "update", "device", small, small);
    put_phase(file, 1, "setup", "device", small, large);
    put_phase(file, 1, "update", "device", small, small);
    fclose(file);
    expect_command(0, "", "sh scripts/picture.sh --peaks %s/out.svg a %s/a.csv b %s/ranks.csv:device", directory,
                   directory, directory);
    Picture p = read_picture(in_directory(directory, "out.svg"));
    assert_int_equal(p.n_bars, 2);
    expect_bar(&p, 0, sum(BACKWARD_MEASURED), sum(BACKWARD));
    expect_bar(&p, 1, sum(large), sum(small));
}

// A plan is drawn as it is; sizes from a few bytes to a terabyte, and titles of any characters.
static void test_plans_scales_and_titles(void **state) {
    (void)state;
    const long most[] = {3, 70000, 999999999, 1099511627776};
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        FILE *file = begin_csv("plan.csv");
        const long bytes[3] = {most[i], 0, most[i] / 3}, few[3] = {1, 0, 0};
        put_phase(file, 0, "save", "disk", bytes, NULL);
        put_phase(file, 0, "forward", "disk", few, NULL);
        fclose(file);
        expect_command(0, "", "sh scripts/picture.sh %s/out.svg '<a & \"b\"> c' %s/plan.csv:disk", directory,
                       directory);
        Picture p = read_picture(in_directory(directory, "out.svg"));
        assert_int_equal(p.n_bars, 2);
        expect_bar(&p, 0, sum(few), sum(few));
        expect_bar(&p, 1, sum(bytes), sum(bytes));
        assert_true(!p.pale[0] && !p.pale[1]);
    }
    char *svg = read_file(in_directory(directory, "out.svg"), NULL);
    assert_says(svg, "&lt;a &amp; &quot;b&quot;&gt; c (disk)");
    assert_says(svg, "MiB (plans)");
    free(svg);
}

// A file with this content ends with one line on stderr and status 1, and leaves the old picture and nothing else.
static void expect_refusal(const char *words, const char *content, size_t n_bytes) {
    write_file(in_directory(directory, "bad.csv"), content, n_bytes);
    write_file(in_directory(directory, "out.svg"), "old", 3);
    char *output = run_command(1, "sh scripts/picture.sh %s/out.svg x %s/bad.csv", directory, directory);
    assert_says(output, words);
    assert_int_equal(strncmp(output, "picture.sh: ", 12), 0);
    assert_int_equal(count_lines(output), 1);
    free(output);
    char *old = read_file(in_directory(directory, "out.svg"), NULL);
    assert_string_equal(old, "old");
    free(old);
    assert_int_not_equal(access(in_directory(directory, "out.svg.partial"), F_OK), 0);
}

static void test_what_is_no_memory_csv_is_refused(void **state) {
    (void)state;
    const char *const cases[][2] = {
        {"it is empty", ""},
        {"no rows of tier device", HEADER},
        {"its first line", "0,setup,device,weights,1,1\n"},
        {"its first line", "rank,phase,tier,kind,planned_bytes,measured_bytes\r\n"},
        {"line 2: not six fields", HEADER "0,setup,device,weights,1\n"},
        {"line 2: not six fields", HEADER "0,setup,device,weights,1,1,1\n"},
        {"line 2: not six fields", HEADER "\n"},
        {"line 2: not a number of bytes", HEADER "0,setup,device,weights,-1,1\n"},
        {"line 2: not a number of bytes", HEADER "0,setup,device,weights,1,1e3\n"},
        {"line 2: not a number of bytes", HEADER "0,setup,device,weights,,1\n"},
        {"line 2: no such", HEADER "0,lunch,device,weights,1,1\n"},
        {"line 2: no such", HEADER "0,setup,moon,weights,1,1\n"},
        {"line 2: no such", HEADER "0,setup,device,weight,1,1\n"},
        {"line 3: this row", HEADER "0,setup,device,weights,1,1\n0,setup,device,weights,1,1\n"},
        {"line 3: a phase is measured in part", HEADER "0,setup,device,weights,1,1\n0,setup,device,files,1,\n"},
        {"rows are missing", HEADER "0,setup,device,weights,1,1\n0,setup,device,master weights,1,1\n"},
        {"no rows of tier device", HEADER "0,setup,disk,weights,1,1\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        expect_refusal(cases[i][0], cases[i][1], strlen(cases[i][1]));
    }
    write_run("whole.csv");
    size_t n;
    char *whole = read_file(in_directory(directory, "whole.csv"), &n);
    expect_refusal("not six fields", whole, n / 2 + 3);  // cut short
    whole[n / 2] = 0;
    expect_refusal("picture.sh", whole, n);
    free(whole);
    FILE *file = begin_csv("nothing.csv");
    const long none[3] = {0, 0, 0};
    put_phase(file, 0, "setup", "device", none, none);
    fclose(file);
    char *nothing = read_file(in_directory(directory, "nothing.csv"), &n);
    expect_refusal("nothing was taken on the device", nothing, n);
    free(nothing);
}

static void test_files_that_are_not_there(void **state) {
    (void)state;
    write_run("a.csv");
    expect_command(1, "can't read", "sh scripts/picture.sh %s/new.svg x %s/no.csv", directory, directory);
    expect_command(1, "can't read", "sh scripts/picture.sh %s/new.svg x %s", directory, directory);
    assert_int_not_equal(access(in_directory(directory, "new.svg"), F_OK), 0);
    expect_command(1, "can't write", "sh scripts/picture.sh %s/no/new.svg x %s/a.csv", directory, directory);
    expect_command(2, "usage", "sh scripts/picture.sh %s/new.svg", directory);
    expect_command(2, "usage", "sh scripts/picture.sh --peaks %s/new.svg x %s/a.csv y", directory, directory);
    assert_int_not_equal(access(in_directory(directory, "new.svg"), F_OK), 0);
}

// What the trainer writes can be drawn: a run, where planned and measured are alike, and a plan.
static void test_of_a_run(void **state) {
    (void)state;
    const char *tiny = "-e 2x48x3 --vocab 67 -t 32 -b 2 -i random -x 1 -m 1 -v 1 -g 8";
    free(run_command(0, "./train_gpt %s -n 1 -r 3 --offload optimizer=disk -o %s/run", tiny, directory));
    free(run_command(0, "./train_gpt %s --plan -o %s/plan", tiny, directory));
    expect_command(0, "", "sh scripts/picture.sh %s/out.svg run %s/run/memory.csv disk %s/run/memory.csv:disk",
                   directory, directory, directory);
    Picture p = read_picture(in_directory(directory, "out.svg"));
    assert_int_equal(p.n_bars, 16);
    for (int b = 0; b < p.n_bars; b++) {
        expect_bar(&p, b, p.line_said[b], p.line_said[b]);
        assert_true(!p.pale[b]);
    }
    expect_command(0, "", "sh scripts/picture.sh %s/out.svg plan %s/plan/memory.csv", directory, directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_heights_are_bytes_and_the_line_is_the_plan, open_directory,
                                        close_directory),
        cmocka_unit_test_setup_teardown(test_peaks, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_plans_scales_and_titles, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_what_is_no_memory_csv_is_refused, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_files_that_are_not_there, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_of_a_run, open_directory, close_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
