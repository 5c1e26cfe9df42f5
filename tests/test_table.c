// test_table.c - scripts/table.sh: what it makes of steps.csv and memory.csv. A program stands in for the trainer whose
// times and bytes are known, so every number of the table is.
#include "test_helpers.h"

#include <sys/stat.h>

// Writes files as the trainer does, for -o DIRECTORY. Steps take 999, 999, 3, 1, 2, 40 ms: without the first two, the
// median is 2.5; with -r 1 they take twice that. The device peaks in backward, the host in update, the disk in none.
// -r 2 fails with a message; --attention leaves no memory.csv. With GROWS=yes the first row takes twice, three times,
// ... the time when it is measured again.
static const char TRAINER[] =
    "#!/bin/sh\n"
    "all=\"$*\"\n"
    "while [ $# -gt 0 ]; do [ \"$1\" != -o ] || output=$2; shift; done\n"
    "factor=1\n"
    "case \"$all\" in\n"
    "*'-r 2'*) echo 'note: x'; echo 'train_gpt: no | room, at all' >&2; exit 1 ;;\n"
    "*'-r 1'*) factor=2 ;;\n"
    "esac\n"
    "case \"$GROWS $all\" in yes*'-b 4 -p fp32 --device'*) factor=$(grep -c -e '-b 4 -p fp32 --device' \"$CALLS\"); "
    "factor=$((factor + 1)) ;; esac\n"
    "echo \"$all\" >>\"$CALLS\"\n"
    "echo 'device     CPU, 9 threads'\n"
    "{ echo 'step,x,ms'; for ms in 999 999 3 1 2 40; do echo \"1,0,$((ms * factor))\"; done; } >$output/steps.csv\n"
    "case \"$all\" in *attention*) exit 0 ;; esac\n"
    "{\n"
    "echo rank,phase,tier,kind,planned_bytes,measured_bytes\n"
    "for rank in 0 1; do\n"
    "echo \"$rank,forward,device,weights,0,9000000\"\n"
    "echo \"$rank,backward,device,weights,0,1048576\"\n"
    "echo \"$rank,backward,device,master weights,0,2097152\"\n"
    "echo \"$rank,backward,device,gradients,0,3145728\"\n"
    "echo \"$rank,backward,device,logits,0,$((5242880 + rank * 1048576))\"\n"
    "echo \"$rank,backward,device,scratch,0,1048576\"\n"
    "echo \"$rank,forward,host,moments,0,5\"\n"
    "echo \"$rank,update,host,moments,0,7340032\"\n"
    "done; } >$output/memory.csv\n";

static char directory[256], program[512];

static int open_directory(void **state) {
    (void)state;
    make_directory(directory);
    snprintf(program, sizeof(program), "%s/trainer", directory);
    write_file(program, TRAINER, strlen(TRAINER));
    return chmod(program, 0700);
}

static int close_directory(void **state) {
    (void)state;
    remove_directory(directory);
    return 0;
}

// Runs the script and returns its exit status.
static int run_table(const char *variables) {
    char command[2048];
    snprintf(command, sizeof(command), "CALLS=%s/calls PROGRAM=%s SWAP=%s RANKS=1 STEPS=6 %s sh scripts/table.sh "
             "%s/out/table >%s/printed 2>&1 </dev/null", directory, program, directory, variables, directory,
             directory);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

// A file of the directory holds (or not) a text.
static void expect_text(const char *name, const char *text, bool there) {
    char content[1 << 16];
    FILE *file = fopen(in_directory(directory, "%s", name), "r");
    assert_non_null(file);
    content[fread(content, 1, sizeof(content) - 1, file)] = 0;
    fclose(file);
    if ((strstr(content, text) != NULL) != there) {
        fail_msg("%s %s '%s':\n%s", name, there ? "lacks" : "has", text, content);
    }
}

static void test_medians_ratios_and_bytes(void **state) {
    (void)state;
    run_table("");
    // By kind, of the phase in which the tier peaks, on the largest rank: 1, 2, 3, rest 6 + 1 MiB on the device.
    expect_text("out/table.md", "| plain | `-b 4 -p fp32` | 13.0 | 7.0 | 0.0 | 1.0 | 2.0 | 3.0 | 7.0 h | 0 | 7.0 | "
                "2.5 | 1.00 |", true);
    expect_text("out/table.md", "| GELU again | `-b 4 -p fp32 -r 1` | 13.0 | 7.0 | 0.0 | 1.0 | 2.0 | 3.0 | 7.0 h | 0 | "
                "7.0 | 5.0 | 2.00 |", true);
    expect_text("out/table.md", "`-b 1 -p fp32 -d 1024`", true);
    expect_text("out/table.md", "2.5 to 2.5 ms, median 2.5", true);
    expect_text("out/table.md", "CPU, 9 threads", true);
    expect_text("out/table.csv", "\"GELU again\",1,\"-b 4 -p fp32 -r 1\",\"\",5.000,2.000,2.000,2.000,13631488,1048576,"
                "2097152,3145728,0,0,7340032,7340032,0,0,0,7340032,0,0,0,0,0,0,0,0,0\n", true);
    expect_text("calls", "-e 12x192x3 --vocab 2048 -t 256 -i random -b 1 -d 1024 -p fp32 --device auto", true);
}

// A first row that moves makes ranges of the ratios to it.
static void test_ratios_to_a_first_row_that_moves(void **state) {
    (void)state;
    run_table("");
    remove(in_directory(directory, "calls"));
    run_table("GROWS=yes");
    expect_text("out/table.md", " | 2.5 | 0.17 - 1.00 |", true);
    expect_text("out/table.md", "`-b 4 -p fp32 -r 1` | 13.0 | 7.0 | 0.0 | 1.0 | 2.0 | 3.0 | 7.0 h | 0 | 7.0 | 5.0 | "
                "0.33 - 2.00 |", true);
    expect_text("out/table.csv", "\"-b 4 -p fp32 -r 1\",\"\",5.000,0.571,0.333,2.000,", true);
    expect_text("out/table.md", "2.5 to 15.0 ms, median 8.8.", true);
}

static void test_a_row_that_fails_is_shown(void **state) {
    (void)state;
    assert_int_equal(run_table(""), 1);
    expect_text("out/table.md", "| failed: train_gpt: no / room; at all |", true);
    expect_text("out/table.md", "| attention with T x T matrix | `-b 4 -p fp32 --attention plain` | failed: ", true);
    expect_text("out/table.csv", "\"-b 4 -p fp32 -r 2\",\"train_gpt: no / room; at all\",", true);
    expect_text("out/table.md", "| everything on the disk |", true);  // the rows after it are there
}

static void test_without_failures_the_status_is_0(void **state) {
    (void)state;
    char command[1024];  // a trainer that knows neither failure
    snprintf(command, sizeof(command), "sed -i -e '/-r 2/d' -e '/attention/d' %s", program);
    assert_int_equal(system(command), 0);
    assert_int_equal(run_table(""), 0);
    expect_text("out/table.md", "failed", false);
    assert_int_equal(run_table("MODEL='-e d4'"), 2);
    expect_text("printed", "MODEL needs -t", true);
}

static void test_the_first_row_fails(void **state) {
    (void)state;
    assert_int_equal(run_table("MODEL='-t 256 -r 2'"), 1);
    expect_text("printed", "the first row fails: train_gpt: no / room; at all", true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_medians_ratios_and_bytes, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_ratios_to_a_first_row_that_moves, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_a_row_that_fails_is_shown, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_without_failures_the_status_is_0, open_directory, close_directory),
        cmocka_unit_test_setup_teardown(test_the_first_row_fails, open_directory, close_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
