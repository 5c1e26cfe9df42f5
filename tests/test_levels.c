// test_levels.c - levels.h: what each level of -r keeps of a layer, added up by hand from the drawing of a layer.
#include "test_helpers.h"

#include "../dev/levels.h"

// Values per token in units of C, and fp32 values, that a layer keeps besides its input. From the drawing: LN1 1, qkv
// 3, attention 1, stream 1, LN2 1, fc 4, GELU 4; each LayerNorm two statistics.
static void test_what_is_kept(void **state) {
    (void)state;
    static const struct {
        Level level;
        size_t channels, floats, buffers;
    } kept[] = {{LEVEL_NOTHING, 15, 4, 12}, {LEVEL_GELU, 11, 4, 11}, {LEVEL_LAYERNORMS, 9, 4, 9},
                {LEVEL_BLOCKS, 0, 0, 0}};
    for (int k = 0; k < 4; k++) {
        size_t channels = 0, floats = 0, buffers = 0;
        for (int i = 0; i < N_LEVEL_BUFFERS; i++) {
            if (!level_keeps(kept[k].level, &LEVEL_BUFFERS[i])) continue;
            channels += LEVEL_BUFFERS[i].channels;
            floats += LEVEL_BUFFERS[i].floats;
            buffers++;
        }
        assert_int_equal(channels, kept[k].channels);
        assert_int_equal(floats, kept[k].floats);
        assert_int_equal(buffers, kept[k].buffers);
    }
}

// A higher level keeps no more than a lower one: what is gone stays gone.
static void test_levels_only_drop(void **state) {
    (void)state;
    for (int i = 0; i < N_LEVEL_BUFFERS; i++) {
        for (int level = LEVEL_GELU; level <= LEVEL_BLOCKS; level++) {
            if (!level_keeps((Level)(level - 1), &LEVEL_BUFFERS[i])) {
                assert_false(level_keeps((Level)level, &LEVEL_BUFFERS[i]));
            }
        }
        assert_true(level_keeps(LEVEL_NOTHING, &LEVEL_BUFFERS[i]));
        assert_false(level_keeps(LEVEL_BLOCKS, &LEVEL_BUFFERS[i]));
    }
}

// Each buffer is one pointer of the layer, and none is there twice; the layer's output, the next one's input, is not
// among them.
static void test_every_buffer_has_its_pointer(void **state) {
    (void)state;
    Layer layer;
    memset(&layer, 0, sizeof(layer));
    int places[N_LEVEL_BUFFERS];
    for (int i = 0; i < N_LEVEL_BUFFERS; i++) {
        void **pointer = level_buffer(&layer, &LEVEL_BUFFERS[i]);
        assert_null(*pointer);
        *pointer = &places[i];
        for (int j = 0; j < i; j++) assert_string_not_equal(LEVEL_BUFFERS[i].owner, LEVEL_BUFFERS[j].owner);
    }
    void *const fields[] = {layer.ln1,      layer.ln1_mean, layer.ln1_rstd, layer.qkv,      layer.saved, layer.atty,
                            layer.residual, layer.ln2,      layer.ln2_mean, layer.ln2_rstd, layer.fch,   layer.gelu};
    for (int i = 0; i < N_LEVEL_BUFFERS; i++) assert_ptr_equal(fields[i], &places[i]);
    assert_null(layer.out);
    assert_int_equal(layer.mark, 0);
}

static void test_what_is_made_again(void **state) {
    (void)state;
    static const bool again[4][4] = {
        {true, false, false, false}, {true, true, false, false}, {true, true, true, false}, {true, true, true, true}};
    for (int level = 0; level < 4; level++) {
        for (int part = 0; part < 4; part++) {
            assert_int_equal(level_recomputes((Level)level, (Level)part), again[level][part]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_levels_only_drop),
        cmocka_unit_test(test_every_buffer_has_its_pointer),
        cmocka_unit_test(test_what_is_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
