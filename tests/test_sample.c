// test_sample.c - sample.h: the next token is drawn with the probabilities of softmax, and what is shown of a sample.
#include "test_helpers.h"

#include "../dev/sample.h"

// The uniform number that a token begins at, found by bisection: the steps of what sample_token() gives are the sums of
// softmax, worked out from logarithms of the probabilities.
static double begin_of(const float *logits, size_t V, double temperature, int token) {
    double low = 0, high = 1;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (sample_token(logits, V, temperature, middle) < token) low = middle;
        else high = middle;
    }
    return high;
}

static void test_probabilities_are_those_of_softmax(void **state) {
    (void)state;
    const double p[5] = {0.1, 0.4, 0.05, 0.2, 0.25};
    float logits[5];
    for (int v = 0; v < 5; v++) logits[v] = (float)(log(p[v]) + 3);
    double below = 0;
    for (int v = 0; v < 5; v++) {
        assert_true(fabs(begin_of(logits, 5, 1, v) - below) < 1e-6);
        below += p[v];
    }
    // Half the temperature squares the probabilities, and twice takes their roots.
    static const double powers[] = {2, 0.5};
    for (int k = 0; k < 2; k++) {
        double sum = 0;
        for (int v = 0; v < 5; v++) sum += pow(p[v], powers[k]);
        below = 0;
        for (int v = 0; v < 5; v++) {
            assert_true(fabs(begin_of(logits, 5, 1 / powers[k], v) - below / sum) < 1e-6);
            below += pow(p[v], powers[k]);
        }
    }
}

static void test_the_most_likely(void **state) {
    (void)state;
    const float logits[5] = {-1, 2.5f, 0, 2.5f, 7};
    for (int u = 0; u < 10; u++) {
        assert_int_equal(sample_token(logits, 4, 0, u / 10.0), 1);  // the first of two; the padding has no chance
        assert_int_equal(sample_token(logits, 5, 0, u / 10.0), 4);
        assert_int_equal(sample_token(logits, 1, 0, u / 10.0), 0);
        assert_int_equal(sample_token(logits, 1, 1, u / 10.0), 0);
    }
}

// Logits that overflow exp() by far, or that exclude a token.
static void test_extreme_logits(void **state) {
    (void)state;
    const float large[3] = {3e38f, -3e38f, 3e38f}, none[3] = {-INFINITY, 0, -INFINITY};
    assert_int_equal(sample_token(large, 3, 1, 0), 0);
    assert_int_equal(sample_token(large, 3, 1, 0.4999), 0);
    assert_int_equal(sample_token(large, 3, 1, 0.5001), 2);
    for (int u = 0; u < 10; u++) assert_int_equal(sample_token(none, 3, 0.8, u / 10.0), 1);
    const float equal[4] = {5, 5, 5, 5};
    for (int u = 0; u < 8; u++) assert_int_equal(sample_token(equal, 4, 1e6, u / 8.0 + 1.0 / 16), u / 2);
    assert_int_equal(sample_token(equal, 4, 1, nextafter(1, 0)), 3);
}

// A number for each step and position, the same whenever it is asked for, and another for another seed; none of those
// from which weights and tokens are drawn (streams 0 to 2).
static void test_numbers_of_positions(void **state) {
    (void)state;
    for (int64_t step = 0; step < 20; step++) {
        for (size_t position = 0; position < 20; position++) {
            const double u = sample_uniform(1, step, position);
            assert_true(u == sample_uniform(1, step, position));
            assert_true(u != sample_uniform(2, step, position));
            assert_true(u != sample_uniform(1, step + 1, position));
            assert_true(u != sample_uniform(1, step, position + 1));
            for (uint64_t stream = 0; stream < 3; stream++) assert_true(u != random_uniform(1, stream, position));
        }
    }
}

static void show_a_sample(void *argument) {
    const Tokenizer *tokenizer = (const Tokenizer *)argument;
    static const int32_t prompt[] = {256, 'I', 'n', 256};
    SampleText text;
    sample_begin(&text, tokenizer, 12, prompt, 4);
    sample_show(&text, ' ');
    sample_show(&text, 0xc3);  // half a character
    sample_show(&text, 0xa9);
    sample_show(&text, 0xe6);  // one that never ends
    sample_end(&text);
}

static void show_a_prompt_alone(void *argument) {
    const Tokenizer *tokenizer = (const Tokenizer *)argument;
    static const int32_t prompt[] = {'a'};
    SampleText text;
    sample_begin(&text, tokenizer, 0, prompt, 1);
    sample_end(&text);
}

static void show_a_rehearsal(void *unused) {
    (void)unused;
    static const int32_t prompt[] = {256, 'a'};
    SampleText text;
    sample_begin(&text, NULL, 3, prompt, 2);
    sample_show(&text, 'b');
    sample_end(&text);
}

static void test_what_is_shown(void **state) {
    (void)state;
    Tokenizer tokenizer;
    tokenizer_open(&tokenizer, NULL, 257);
    char *text = printed(show_a_sample, &tokenizer);
    assert_string_equal(text, "--- sample after step 12\nIn<|endoftext|> \xc3\xa9\xef\xbf\xbd\n---\n");
    free(text);
    text = printed(show_a_prompt_alone, &tokenizer);
    assert_string_equal(text, "--- sample after step 0\na\n---\n");
    free(text);
    text = printed(show_a_rehearsal, &tokenizer);
    assert_string_equal(text, "");
    free(text);
    tokenizer_close(&tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probabilities_are_those_of_softmax),
        cmocka_unit_test(test_the_most_likely),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_numbers_of_positions),
        cmocka_unit_test(test_what_is_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
