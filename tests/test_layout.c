// test_layout.c - layout.h: the place of every tensor, by hand; models known by their number of parameters; first
// values that are a function of the place alone; and descriptions of models, right and wrong.
#include "test_helpers.h"

#include "../dev/layout.h"

// GPT-2's models, as everybody counts them.
static void test_known_models(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t parameters;
    } models[] = {{"d12", 124439808}, {"d24", 354823168}, {"d36", 774030080}, {"d48", 1557611200}};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        ModelShape s = {0};
        const char *wrong;
        assert_true(layout_parse(models[i].text, &s, &wrong));
        assert_null(wrong);
        s.V = 50257;
        s.maxT = 1024;
        assert_int_equal(layout_parameters(&s), models[i].parameters);
    }
}

typedef struct {
    const char *name;
    size_t n, n_saved;
    bool decays;
} Expected;

// Tensor behind tensor, then zeros up to whole chunks of 4,096 for each of N ranks.
static void expect_block(const BlockLayout *layout, const Expected *right, size_t n_tensors, size_t N) {
    size_t at = 0, decaying = 0;
    assert_int_equal(layout->n_tensors, n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        const Tensor *tensor = &layout->tensors[i];
        assert_string_equal(tensor->name, right[i].name);
        assert_int_equal(tensor->offset, at);
        assert_int_equal(tensor->n_elements, right[i].n);
        assert_int_equal(tensor->n_saved, right[i].n_saved);
        assert_int_equal(layout_decays(tensor), right[i].decays);
        at += right[i].n;
        if (right[i].decays) decaying = at;
        if (!right[i].decays) assert_int_not_equal(decaying, 0);  // those that decay come first
    }
    assert_int_equal(layout->n_exact, at);
    assert_int_equal(layout->n_decay, decaying);
    assert_int_equal(layout->n_elements % (4096 * N), 0);
    assert_in_range(layout->n_elements, at, at + 4096 * N - 1);
}

// C = 5, a vocabulary of 67 in 128 rows, 11 positions; and a model whose layer is exactly a chunk: nothing is padded.
static void test_every_tensor_has_its_place(void **state) {
    (void)state;
    static const Expected embedding[] = {
        {"wte", 640, 335, true}, {"wpe", 55, 55, true}, {"lnfw", 5, 5, false}, {"lnfb", 5, 5, false}};
    static const Expected layer[] = {
        {"qkvw", 75, 75, true}, {"attprojw", 25, 25, true}, {"fcw", 100, 100, true}, {"fcprojw", 100, 100, true},
        {"ln1w", 5, 5, false},  {"ln1b", 5, 5, false},      {"qkvb", 15, 15, false}, {"attprojb", 5, 5, false},
        {"ln2w", 5, 5, false},  {"ln2b", 5, 5, false},      {"fcb", 20, 20, false},  {"fcprojb", 5, 5, false}};
    const ModelShape s = {3, 1, 5, 67, 128, 11};
    for (size_t N = 1; N <= 5; N++) {
        BlockLayout e, l;
        layout_blocks(&s, N, &e, &l);
        expect_block(&e, embedding, 4, N);
        expect_block(&l, layer, 12, N);
        assert_int_equal(l.n_decay, 300);
        assert_int_equal(e.n_decay, 695);
    }
    assert_int_equal(layout_parameters(&s), 335 + 55 + 10 + 3 * 365);
}

// The sum of what is saved is the number of parameters.
static void test_what_is_saved_are_the_parameters(void **state) {
    (void)state;
    static const ModelShape shapes[] = {
        {1, 1, 1, 1, 128, 1}, {12, 12, 768, 50257, 50304, 1024}, {7, 3, 51, 128, 128, 9}};
    for (size_t i = 0; i < 3; i++) {
        BlockLayout embedding, layer;
        size_t n = 0;
        layout_blocks(&shapes[i], 2, &embedding, &layer);
        for (size_t t = 0; t < embedding.n_tensors; t++) n += embedding.tensors[t].n_saved;
        for (size_t t = 0; t < layer.n_tensors; t++) n += shapes[i].L * layer.tensors[t].n_saved;
        assert_int_equal(n, layout_parameters(&shapes[i]));
    }
}

static void add_out_of_order(void *unused) {
    (void)unused;
    BlockLayout layout;
    memset(&layout, 0, sizeof(layout));
    layout_add(&layout, TENSOR_WPE, "wpe", 1, 1, START_MATRIX);
}

static void test_tensors_out_of_order_are_a_bug(void **state) {
    (void)state;
    expect_die(add_out_of_order, NULL, "tensor wpe is not number 1|This is a bug");
}

static void test_descriptions_of_models(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t L, C, NH;
    } good[] = {{"d1", 1, 64, 1},         {"d4", 4, 256, 4},       {"d11", 11, 704, 11},  {"d12", 12, 768, 12},
                {"d24", 24, 1024, 16},    {"d36", 36, 1280, 20},   {"d48", 48, 1600, 25}, {"d60", 60, 1920, 30},
                {"d72", 72, 2880, 30},    {"d84", 84, 3456, 36},   {"1x1x1", 1, 1, 1},    {"2x48x3", 2, 48, 3},
                {"1000x65536x2", 1000, 65536, 2}, {"3x51x51", 3, 51, 51}};
    ModelShape s;
    const char *wrong;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(layout_parse(good[i].text, &s, &wrong));
        assert_null(wrong);
        assert_int_equal(s.L, good[i].L);
        assert_int_equal(s.C, good[i].C);
        assert_int_equal(s.NH, good[i].NH);
    }
    static const char *const no_models[] = {"d0", "d13", "d23", "d85", "d99999999999", "0x48x3", "1001x48x3", "2x0x1",
                                            "2x65537x1", "2x48x0", "2x48x5", "2x3x48", "d-1", "-1x48x3"};
    for (size_t i = 0; i < sizeof(no_models) / sizeof(no_models[0]); i++) {
        assert_true(layout_parse(no_models[i], &s, &wrong));
        if (!wrong) fail_msg("%s was taken", no_models[i]);
    }
    // Anything else is the name of a file.
    static const char *const files[] = {"", "d", "dx", "d4x", "4", "2x48", "2x48x", "2x48x3x1", "2x48x3 ", "x48x3",
                                        "out/checkpoint_00000001.bin", "d4.bin"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (layout_parse(files[i], &s, &wrong)) fail_msg("'%s' is no model", files[i]);
        assert_null(wrong);
    }
}

// Whatever part of a tensor is asked for, it has the same values: pieces may begin and end anywhere.
static void test_first_values_depend_on_the_place_alone(void **state) {
    (void)state;
    enum { N = 41 };
    const Tensor tensor = {"t", 0, N, N, START_MATRIX};
    float whole[N], part[N + 1];
    layout_first_values(whole, &tensor, 3, 5, 7, 0, N);
    for (size_t first = 0; first < N; first++) {
        for (size_t n = 0; first + n <= N; n++) {
            for (size_t i = 0; i <= N; i++) part[i] = 99;
            layout_first_values(part, &tensor, 3, 5, 7, first, n);
            assert_memory_equal(part, whole + first, n * sizeof(float));
            assert_true(part[n] == 99);
        }
    }
    layout_first_values(part, &tensor, 4, 5, 7, 0, N);
    assert_memory_not_equal(part, whole, N * sizeof(float));
    layout_first_values(part, &tensor, 3, 6, 7, 0, N);
    assert_memory_not_equal(part, whole, N * sizeof(float));
}

// GPT-2's: 0.02, of projections over sqrt(2 L), 1 and 0; the deviation of so many numbers within 5 of its own.
static void test_deviations(void **state) {
    (void)state;
    enum { N = 100000 };
    float *x = (float *)malloc(N * sizeof(float));
    static const struct {
        TensorStart start;
        double deviation;
    } starts[] = {{START_MATRIX, 0.02}, {START_PROJECTION, 0.02 / 4.898979485566356}};  // L = 12
    for (int k = 0; k < 2; k++) {
        const Tensor tensor = {"t", 0, N, N, starts[k].start};
        double sum = 0, squares = 0;
        layout_first_values(x, &tensor, 1, 1, 12, 0, N);
        for (int i = 0; i < N; i++) {
            sum += x[i];
            squares += (double)x[i] * x[i];
        }
        assert_true(fabs(sum / N) < 5 * starts[k].deviation / sqrt(N));
        assert_true(fabs(sqrt(squares / N) / starts[k].deviation - 1) < 5 / sqrt(2.0 * N));
    }
    for (int one = 0; one < 2; one++) {
        const Tensor tensor = {"t", 0, N, N, one ? START_ONES : START_ZEROS};
        layout_first_values(x, &tensor, 1, 1, 12, 3, N - 3);
        for (int i = 0; i < N - 3; i++) assert_true(x[i] == (float)one);
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_models),
        cmocka_unit_test(test_every_tensor_has_its_place),
        cmocka_unit_test(test_what_is_saved_are_the_parameters),
        cmocka_unit_test(test_tensors_out_of_order_are_a_bug),
        cmocka_unit_test(test_descriptions_of_models),
        cmocka_unit_test(test_first_values_depend_on_the_place_alone),
        cmocka_unit_test(test_deviations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
