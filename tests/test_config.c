// test_config.c - config.h: sizes of a step, levels of layers, flags told of a configuration, and the least that a step
// must compute, send and write, each by hand.
#include "test_helpers.h"

#include "../dev/config.h"

// GPT-2's smallest model with 1,024 positions.
static Config small_gpt2(void) {
    Config c;
    memset(&c, 0, sizeof(c));
    const ModelShape shape = {12, 12, 768, 50257, 50304, 1024};
    c.shape = shape;
    c.B = 4;
    c.T = 1024;
    c.micro_batches = 3;
    c.head_chunks = 1;
    return c;
}

static void test_sizes_of_a_step(void **state) {
    (void)state;
    Config c = small_gpt2();
    assert_int_equal(config_windows(&c, 1), 12);
    assert_int_equal(config_windows(&c, 8), 96);
    assert_int_equal(config_tokens(&c, 8), 98304);
    assert_int_equal(config_stream_bytes(&c), 4 * 1024 * 768 * 4);
    c.dtype = BF16;
    assert_int_equal(config_stream_bytes(&c), 4 * 1024 * 768 * 2);
    c.B = (size_t)1 << 20;
    c.T = (size_t)1 << 20;
    c.micro_batches = 1;
    assert_int_equal(config_tokens(&c, 2), (size_t)1 << 41);  // beyond 32 bits
}

static void test_levels_of_layers(void **state) {
    (void)state;
    Config c = small_gpt2();
    c.recompute = LEVEL_LAYERNORMS;
    for (size_t n = 0; n <= 12; n++) {
        c.recompute_layers = n;
        for (size_t l = 0; l < 12; l++) {
            assert_int_equal(config_level(&c, l), l < n ? LEVEL_LAYERNORMS : LEVEL_NOTHING);
        }
    }
}

// What the memory flags are is gone, everything else stays.
static void test_without_memory_flags(void **state) {
    (void)state;
    Config c = small_gpt2();
    c.recompute = LEVEL_BLOCKS;
    c.recompute_layers = 5;
    c.head_chunks = 7;
    c.attention = ATTENTION_PLAIN;
    c.place.stage = 3;
    c.place.weights = TIER_DISK;
    c.place.update_on_host = true;
    c.seed = 77;
    Config plain = config_plain(&c);
    assert_int_equal(plain.recompute, LEVEL_NOTHING);
    assert_int_equal(plain.head_chunks, 1);
    assert_int_equal(plain.place.stage, 0);
    assert_int_equal(plain.place.weights, TIER_DEVICE);
    assert_false(plain.place.update_on_host);
    plain.recompute = c.recompute;
    plain.head_chunks = c.head_chunks;
    plain.place = c.place;
    assert_memory_equal(&plain, &c, sizeof(c));
}

static void expect_flags(const Config *c, const Config *asked, int n_ranks, const char *right) {
    char text[512];
    config_flags(c, asked, n_ranks, text, sizeof(text));
    assert_string_equal(text, right);
}

static void test_flags_are_told(void **state) {
    (void)state;
    Config asked = small_gpt2(), c = asked;
    asked.attention = ATTENTION_PLAIN;
    c.attention = ATTENTION_PLAIN;
    c.micro_batches = 1;
    expect_flags(&c, &asked, 1, "-b 4 -t 1024 -r 0");
    c.micro_batches = 3;
    expect_flags(&c, &asked, 1, "-b 4 -t 1024 -r 0 -d 12288");
    expect_flags(&c, &asked, 2, "-b 4 -t 1024 -r 0 -d 24576");
    c.recompute = LEVEL_BLOCKS;
    c.head_chunks = 16;
    c.place.optimizer = TIER_DISK;
    c.place.activations = TIER_HOST;
    c.place.stage = 2;
    c.attention = ATTENTION_FUSED;
    expect_flags(&c, &asked, 2, "-b 4 -t 1024 -r 3 -d 24576 --head-chunks 16 --offload optimizer=disk,activations=host "
                                "-z 2 --attention fused");
}

// 124,439,808 parameters; the causal half of attention is 6 L C T.
static void test_operations_of_a_token(void **state) {
    (void)state;
    Config c = small_gpt2();
    assert_true(config_flops_per_token(&c) == 6.0 * 124439808 + 6.0 * 12 * 768 * 1024);
}

// A reduce-scatter of fp32 gradients and a gather: of them (stage 0) or of the weights, (N-1)/N of each.
static void test_least_bytes_sent(void **state) {
    (void)state;
    Config c = small_gpt2();
    c.shape.V = 50257 - 1;  // 124,439,040 parameters: of 8 ranks each has 15,554,880
    const size_t n = 124439040;
    assert_int_equal(layout_parameters(&c.shape), n);
    for (int stage = 0; stage < 4; stage++) {
        c.place.stage = stage;
        c.dtype = FP32;
        assert_int_equal(config_least_sent(&c, 1), 0);
        assert_int_equal(config_least_sent(&c, 2), n / 2 * 8);
        c.dtype = BF16;
        assert_int_equal(config_least_sent(&c, 8), 15554880ull * 7 * (stage == 0 ? 8 : 6));
    }
}

// What lives on the disk and changes, once; a rank's share of what is sharded.
static void test_least_bytes_written(void **state) {
    (void)state;
    Config c = small_gpt2();
    c.shape.V = 50257 - 1;
    const size_t n = 124439040, stream = 4 * 1024 * 768;
    assert_int_equal(config_least_written(&c, 1), 0);
    c.place.optimizer = TIER_HOST;
    assert_int_equal(config_least_written(&c, 1), 0);
    c.place.optimizer = TIER_DISK;  // m and v, and in bf16 the master weights
    assert_int_equal(config_least_written(&c, 1), 8 * n);
    c.dtype = BF16;
    assert_int_equal(config_least_written(&c, 1), 12 * n);
    c.place.stage = 1;
    assert_int_equal(config_least_written(&c, 8), 12 * n / 8);
    c.place.optimizer = TIER_DEVICE;
    c.place.gradients = TIER_DISK;  // by each of three micro-batches
    assert_int_equal(config_least_written(&c, 8), 12 * n);
    c.place.stage = 2;
    assert_int_equal(config_least_written(&c, 8), 12 * n / 8);
    c.place.gradients = TIER_DEVICE;
    c.place.weights = TIER_DISK;
    assert_int_equal(config_least_written(&c, 8), 2 * n);
    c.place.stage = 3;
    assert_int_equal(config_least_written(&c, 8), 2 * n / 8);
    c.place.weights = TIER_DEVICE;
    c.place.activations = TIER_DISK;  // the input of each of 12 layers
    assert_int_equal(config_least_written(&c, 8), 3 * 12 * 2 * stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_a_step),
        cmocka_unit_test(test_levels_of_layers),
        cmocka_unit_test(test_without_memory_flags),
        cmocka_unit_test(test_flags_are_told),
        cmocka_unit_test(test_operations_of_a_token),
        cmocka_unit_test(test_least_bytes_sent),
        cmocka_unit_test(test_least_bytes_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
