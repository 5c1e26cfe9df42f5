// test_gpu_check.c - scripts/gpu_check.sh without a GPU: stand-ins take the place of nvidia-smi, the sanitizer and the
// programs. What is tested: every row is there, what fails is named and counted and does not stop the rest, nothing is
// started when time is out, what is packed runs. The benchmark itself runs on the emulator.
//
// The trainer's stand-in shows what the real ./train_gpt printed and wrote, once, for a small model on the CPU.
#include "test_helpers.h"

static char directory[256];  // project/ (the script and its programs), llm.c/, bin/ (the commands of the system)
static char *output;         // of the last run
static char real[256];       // what ./train_gpt printed (log) and wrote (memory.csv)

__attribute__((format(printf, 2, 3))) static void script(const char *name, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int n = snprintf(text, sizeof(text), "#!/bin/sh\n");
    n += vsnprintf(text + n, sizeof(text) - (size_t)n, format, arguments);
    va_end(arguments);
    assert_true(n < (int)sizeof(text));
    write_file(in_directory(directory, "%s", name), text, (size_t)n);
    expect_command(0, "", "chmod +x %s/%s", directory, name);
}

// A folder in which everything works.
static int make_project(void **state) {
    (void)state;
    char here[512];
    make_directory(directory);
    assert_non_null(getcwd(here, sizeof(here)));
    expect_command(0, "", "cd %s && mkdir -p bin project/scripts project/build/gpu llm.c && cp %s/scripts/gpu_check.sh "
                   "project/scripts", directory, here);
    script("bin/nvidia-smi", "echo 'GPU 0: a stand-in'\n");
    script("bin/compute-sanitizer", "while [ $# -gt 4 ]; do shift; done; echo '========= ERROR SUMMARY: 0 errors'\n");
    const char *const tests[] = {"test_kernels", "test_emulated"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof(name), "project/build/gpu/%s", tests[i]);
        script(name, "echo '[       OK ] test_one'; echo '[       OK ] test_two'; echo %s >>%s/ran\n", tests[i],
               directory);
    }
    script("project/build/gpu/bench_gpu", "echo '| 1024 | 64 | the benchmark |'; echo bench_gpu >>%s/ran\n", directory);
    script("project/build/gpu/train_gpt",
           "echo train_gpt >>%s/ran\n"
           "case \"$*\" in *'-p bf16 --device cuda'*) ;; *) exit 9 ;; esac\n"
           "while [ \"$1\" != -o ]; do [ $# -gt 0 ] || exit 0; shift; done\n"  // the sanitizer's has none
           "mkdir $2 && cp %s/memory.csv $2 && cat %s/log\n", directory, real, real);
    script("llm.c/train_gpt2cu",
           "for i in 1 2 3 4 5 6 7; do echo \"step    $i/12 | loss 11.0 (+nanz)| norm 15.0 (+nanz)| lr 6.00e-04 | "
           "6$i.25 ms | 43.$i%%%% bf16 MFU | 52000$i tok/s\"; done\n");
    return 0;
}

static int remove_project(void **state) {
    (void)state;
    free(output);
    output = NULL;
    remove_directory(directory);
    return 0;
}

// Runs the script (or another command within the project); it must end with this status.
static void run_check(int status, const char *command) {
    char line[2048];
    snprintf(line, sizeof(line), "cd %s/project && PATH=%s/bin:$PATH OMP_NUM_THREADS=1 %s >%s/output 2>&1", directory,
             directory, command, directory);
    free(output);
    int code = system(line);
    output = read_file(in_directory(directory, "output"), NULL);
    if (!WIFEXITED(code) || WEXITSTATUS(code) != status) {
        fail_msg("%s: exit status %d, not %d:\n%s", command, WEXITSTATUS(code), status, output);
    }
}

static void assert_says(const char *words) {
    if (!strstr(output, words)) fail_msg("'%s' is not in:\n%s", words, output);
}

static void assert_silent(const char *words) {
    if (strstr(output, words)) fail_msg("'%s' is in:\n%s", words, output);
}

static bool has_run(const char *program) {
    char line[512];
    snprintf(line, sizeof(line), "grep -q %s %s/ran 2>/dev/null", program, directory);
    return system(line) == 0;
}

// Rows of the speed table that have all their numbers, and the same bytes planned and measured.
static int speed_rows(void) {
    int n = 0;
    for (const char *model = "d12"; model; model = strcmp(model, "d12") ? NULL : "d48") {
        for (int level = 0; level < 4; level++) {
            char start[64], goal[16] = "";
            double ms, tokens, mfu;
            size_t planned, measured;
            snprintf(start, sizeof(start), "| `-e %s ", model);
            for (const char *row = output; (row = strstr(row, start)) != NULL; row++) {
                const char *flags = strstr(row, "-r "), *cells = strstr(row, "` | ");
                if (!flags || !cells || flags > cells || atoi(flags + 3) != level) continue;
                bool has_goal = sscanf(cells, "` | %lf | %lf | %15[0-9] |", &ms, &tokens, goal) == 3;
                assert_true(has_goal == (level == 0));
                if (has_goal) assert_string_equal(goal, strcmp(model, "d12") ? "51000" : "550000");
                const char *format = has_goal ? "` | %lf | %lf | %*d | %lf %% | %zu | %zu |"
                                              : "` | %lf | %lf |  | %lf %% | %zu | %zu |";
                if (sscanf(cells, format, &ms, &tokens, &mfu, &planned, &measured) != 5) continue;
                n += tokens > 0 && planned > 1000 && planned == measured;
            }
        }
    }
    return n;
}

static void test_every_row_is_there(void **state) {
    (void)state;
    run_check(0, "scripts/gpu_check.sh");
    assert_says("| kernels | 2 passed |");
    assert_says("| trainer | 2 passed |");
    assert_says("| 1024 | 64 | the benchmark |");
    assert_says("| memcheck, train_gpt | ERROR SUMMARY: 0 errors |");
    assert_says("| memcheck, bench_gpu | ERROR SUMMARY: 0 errors |");
    assert_says("| racecheck, train_gpt | ERROR SUMMARY: 0 errors |");
    assert_says("| racecheck, bench_gpu | ERROR SUMMARY: 0 errors |");
    assert_says("| llm.c `-e d12 -b 32 -t 1024` | 66.25 | 520006 |");
    assert_says("| llm.c `-e d48 -b 16 -t 1024` | 66.25 | 520006 |");
    assert_says("done: 0 failed, 0 not started");
    assert_silent("FAILED");
    assert_int_equal(speed_rows(), 8);
    // The tokens for llm.c: its header, and ids below GPT-2's vocabulary.
    size_t n_bytes;
    char *file = read_file(in_directory(directory, "project/build/gpu_check/tokens.bin"), &n_bytes);
    int32_t header[3];
    memcpy(header, file, sizeof(header));
    assert_true(header[0] == 20240520);
    assert_true(header[1] == 1);
    assert_true(n_bytes == 1024 + 2 * (size_t)header[2]);
    for (size_t i = 1024; i < n_bytes; i += 2) assert_true((unsigned char)file[i + 1] < 0xc0);
    free(file);
}

// Every kind of failure: named, counted, and the rest still runs.
static void test_failures_do_not_stop_the_rest(void **state) {
    (void)state;
    script("project/build/gpu/test_kernels",
           "echo '[       OK ] test_one'; echo 'row 7 is wrong'; echo '[  FAILED  ] test_two'; exit 1\n");
    script("project/build/gpu/test_emulated", "exit 0\n");  // runs nothing
    script("project/build/gpu/bench_gpu", "echo 'train_gpt: CUDA: no'; exit 1\n");
    script("bin/compute-sanitizer",
           "case \"$*\" in *racecheck*) echo '========= ERROR SUMMARY: 3 errors'; exit 9 ;; esac\n"
           "echo '========= ERROR SUMMARY: 0 errors'\n");
    expect_command(0, "", "cd %s/project/build/gpu && mv train_gpt good", directory);
    script("project/build/gpu/train_gpt",
           "case \"$*\" in\n"
           "*d12*'-r 1'*) echo 'train_gpt: does not fit: the plan needs more' >&2; exit 1 ;;\n"
           "*d12*'-r 2'*) echo 'train_gpt: CUDA: a | sad end' >&2; exit 1 ;;\n"
           "*d48*'-r 3'*) %s/project/build/gpu/good \"$@\" && sed -i '/,device,scratch,/s/,[0-9]*$/,1/' "
           "build/gpu_check/run/memory.csv; exit ;;\n"
           "esac\nexec %s/project/build/gpu/good \"$@\"\n", directory, directory);
    run_check(1, "scripts/gpu_check.sh");
    assert_says("| kernels | 1 passed FAILED test_two");
    assert_says("row 7 is wrong");
    assert_says("| trainer | 0 passed FAILED");
    assert_says("FAILED: bench_gpu");
    assert_says("-x 12 -r 1` | does not fit this GPU |");
    assert_says("-x 12 -r 2` | FAILED: train_gpt: CUDA: a / sad end |");
    assert_says("FAILED: not as planned |");
    assert_says("| memcheck, train_gpt | ERROR SUMMARY: 0 errors |");
    assert_says("| racecheck, train_gpt | FAILED (exit status 9) ERROR SUMMARY: 3 errors |");
    assert_int_equal(speed_rows(), 5);
    assert_says("done: 7 failed, 0 not started");
}

// A sanitizer that can't look into this machine, and llm.c's program failing, are not our failures.
static void test_what_is_missing_is_no_failure(void **state) {
    (void)state;
    script("bin/compute-sanitizer", "echo '========= Error: Device not supported'; exit 1\n");
    script("llm.c/train_gpt2cu", "echo 'no | memory' >&2; exit 1\n");
    run_check(0, "scripts/gpu_check.sh");
    assert_says("| memcheck, train_gpt | compute-sanitizer does not support this machine |");
    assert_says("| llm.c `-e d12 -b 32 -t 1024` | did not run: no / memory |");
}

// When time is out nothing is started; what runs already gets no more than ten seconds beyond it.
static void test_time_is_kept(void **state) {
    (void)state;
    run_check(1, "scripts/gpu_check.sh 0");
    assert_says("| kernels | not started: no time left |");
    assert_says("| trainer | not started: no time left |");
    assert_says("| benchmark | not started: no time left |");
    assert_says("-r 3` | not started: no time left |");
    assert_says("| racecheck, bench_gpu | not started: no time left |");
    assert_says("done: 0 failed, 17 not started");
    assert_true(!has_run("test_"));
    assert_true(!has_run("bench_gpu"));
    assert_true(!has_run("train_gpt"));

    script("bin/timeout", "echo \"$3\" >>%s/limits; [ $3 -le 40 ] || exit 99; shift 3\n"
           "case $1 in *test_kernels) exit 124 ;; esac; exec \"$@\"\n", directory);
    run_check(1, "scripts/gpu_check.sh 30");
    assert_says("| kernels | 0 passed stopped after 100 s FAILED exit status 124 |");
    assert_says("| trainer | 2 passed |");
    assert_silent("99");
}

static void test_refusals(void **state) {
    (void)state;
    run_check(2, "scripts/gpu_check.sh soon");
    run_check(2, "scripts/gpu_check.sh --pack");
    expect_command(0, "", "rm %s/project/build/gpu/bench_gpu", directory);
    run_check(1, "scripts/gpu_check.sh");
    assert_says("build/gpu/bench_gpu is missing");
    script("bin/nvidia-smi", "exit 9\n");
    run_check(1, "scripts/gpu_check.sh");
    assert_says("no GPU is here");
    assert_true(!has_run("test_"));
}

// With nvcc and a Makefile the programs are built first; a failed build ends it. --prebuilt takes what is there.
static void test_builds_or_takes_what_is_there(void **state) {
    (void)state;
    script("bin/nvcc", "exit 1\n");
    script("bin/make", "echo \"make $*\"; exit $MAKE_STATUS\n");
    write_file(in_directory(directory, "project/Makefile"), "", 0);
    run_check(1, "env MAKE_STATUS=2 scripts/gpu_check.sh");
    assert_says("make -j4 gpu-programs");
    assert_true(!has_run("test_"));
    run_check(0, "env MAKE_STATUS=0 scripts/gpu_check.sh");
    assert_says("make -j4 gpu-programs");
    run_check(0, "scripts/gpu_check.sh --prebuilt 330");
    assert_silent("make ");
    run_check(1, "scripts/gpu_check.sh --prebuilt 0");
}

// What is packed runs in a folder of its own, without a compiler.
static void test_pack(void **state) {
    (void)state;
    script("bin/make", "echo \"make $*\"; [ -z \"$MAKE_STATUS\" ] || exit $MAKE_STATUS; mkdir -p build && "
           "cp -r build/gpu build/pack\n");
    run_check(1, "env MAKE_STATUS=2 scripts/gpu_check.sh --pack packed.tar.gz");
    run_check(0, "scripts/gpu_check.sh --pack packed.tar.gz");
    assert_says("GPU_BUILD=build/pack ARCH=x86-64-v3 GPU_TARGETS=$(GPU_TARGETS_DEFAULT) gpu-programs");
    expect_command(0, "", "cd %s && mkdir elsewhere && cd elsewhere && tar xzf ../project/packed.tar.gz && "
                   "mv train_gpt_check ../packed && rm -r ../project && mv ../packed ../project", directory);
    run_check(0, "scripts/gpu_check.sh");
    assert_int_equal(speed_rows(), 8);
    assert_says("| kernels | 2 passed |");
}

// The benchmark on the emulator: every row, and a time and bytes above zero for each ("none" otherwise).
static void test_benchmark(void **state) {
    (void)state;
    if (access("build/emulated/bench_gpu", X_OK) != 0) SKIP_AS("there is no nvcc to build the benchmark with");
    const char *const types[] = {"", "fp16"};
    for (int i = 0; i < 2; i++) {
        char line[600], here[512];
        int rows = 0;
        assert_non_null(getcwd(here, sizeof(here)));
        snprintf(line, sizeof(line), "%s/build/emulated/bench_gpu %s tiny", here, types[i]);
        run_check(0, line);
        for (const char *row = output; (row = strstr(row, "\n| ")) != NULL; row++) rows++;
        assert_int_equal(rows, 2 + 4 + (2 + 12) + (2 + 7));
        assert_says("| 256 | 128 | 1 x 2 | - | - | - | - |");
        assert_says("| GELU backward + bias | 400 |");
        assert_silent("none");
        assert_silent("| 0 |");
    }
    char line[600], here[512];
    assert_non_null(getcwd(here, sizeof(here)));
    snprintf(line, sizeof(line), "%s/build/emulated/bench_gpu fp8 tiny", here);
    run_check(1, line);
    assert_says("usage: bench_gpu");
}

static int run_once(void **state) {
    (void)state;
    make_directory(real);
    expect_command(0, "", "./train_gpt --device cpu -e 1x16x1 --vocab 67 -t 16 -b 1 -i random -v 0 -g 0 -p bf16 -x 12 "
                   "-o %s >%s/log", real, real);
    return 0;
}

static int forget(void **state) {
    (void)state;
    remove_directory(real);
    return 0;
}

int main(void) {
#define IN_PROJECT(test) cmocka_unit_test_setup_teardown(test, make_project, remove_project)
    const struct CMUnitTest tests[] = {
        IN_PROJECT(test_every_row_is_there),
        IN_PROJECT(test_failures_do_not_stop_the_rest),
        IN_PROJECT(test_what_is_missing_is_no_failure),
        IN_PROJECT(test_time_is_kept),
        IN_PROJECT(test_refusals),
        IN_PROJECT(test_builds_or_takes_what_is_there),
        IN_PROJECT(test_pack),
        IN_PROJECT(test_benchmark),
    };
    return cmocka_run_group_tests(tests, run_once, forget);
}
