// test_checkpoint.c - checkpoint.h: the file byte by byte, what is saved is loaded whatever the homes, damage anywhere
// is found, and the newest good one of a directory is taken.
#include "store_helpers.h"

#include "../dev/checkpoint.h"

static char directory[256];

static int open_places(void **state) {
    make_directory(directory);
    return open_swap(state);
}

static int close_places(void **state) {
    remove_directory(directory);
    return close_swap(state);
}

static float state_of(int home, size_t block, size_t e) {
    return (float)random_uniform(9, (uint64_t)home, block * 1000003 + e) - 0.5f;
}

static void open_states(StoreFixture *f, int i, Dtype dtype) {
    const Placement place = some_placement(i % N_PLACEMENTS);
    open_store(f, EVERY_ORDER[i % N_ORDERS], small_shape(2, 8), dtype, &place, 0);
    store_zero(&f->store);
}

static void fill_states(StoreFixture *f) {
    for (int home = HOME_MASTER; home < HOMES; home++) {
        for (size_t block = 0; block < f->store.n_blocks; block++) {
            const size_t n = store_layout(&f->store, block)->n_exact;
            assert_true(host_writes(&f->device, f->values, f->n_most * sizeof(float)));
            memset(f->values, 0, f->n_most * sizeof(float));
            for (size_t e = 0; e < n; e++) f->values[e] = state_of(home, block, e);
            store_put(&f->store, home, block, 0, store_layout(&f->store, block)->n_elements, f->values, f->rounded);
        }
    }
    store_join(&f->store);
}

static CheckpointHeader header_of_step(int64_t step) {
    CheckpointHeader header;
    memset(&header, 0, sizeof(header));
    header.step = step;
    header.updates = step - 1;
    header.B = 3;
    header.T = 5;
    header.tokens_per_step = 15;
    header.tokens = 15 * step;
    header.seed = 77;
    header.data = 88;
    header.loss_scale = 1024;
    header.good_steps = 9;
    header.tuned = 99;
    return header;
}

static const char *path_of_step(int64_t step) {
    return in_directory(directory, "checkpoint_%08lld.bin", (long long)step);
}

// Saves in the directory, from homes of the i-th placement.
static void save_step(int64_t step, int i, Dtype dtype) {
    StoreFixture f;
    CheckpointHeader header = header_of_step(step);
    open_states(&f, i, dtype);
    fill_states(&f);
    checkpoint_save(&f.store, &header, directory);
    for (int t = 0; t < TIERS; t++) assert_int_equal(f.memory.slabs[t].depth, 0);
    close_store(&f);
}

// 1024 bytes of header, then master weights, m and v of embeddings and layers, tensor behind tensor without paddings.
static void test_the_file(void **state) {
    (void)state;
    const ModelShape s = small_shape(2, 8);
    const size_t n_parameters = 67 * 8 + 11 * 8 + 2 * 8 + 2 * (12 * 64 + 13 * 8);
    for (int i = 0; i < N_PLACEMENTS; i++) {
        size_t n_bytes, at = 1024;
        save_step(5, i, i % 2 ? BF16 : FP32);
        char *bytes = read_file(path_of_step(5), &n_bytes);
        assert_int_equal(n_bytes, 1024 + 12 * n_parameters);
        assert_memory_equal(bytes, "TRAINGPT", 8);
        const int64_t right[] = {3, 2, 1, 8, 67, 11, i % 2, 5, 4, 3, 5, 15, 75, 77, 88};
        assert_memory_equal(bytes + 8, right, sizeof(right));
        for (size_t k = sizeof(CheckpointHeader); k < 1024; k++) assert_int_equal(bytes[k], 0);
        BlockLayout embedding, layer;
        layout_blocks(&s, 1, &embedding, &layer);
        for (int home = HOME_MASTER; home < HOMES; home++) {
            for (size_t block = 0; block < 3; block++) {
                const BlockLayout *layout = block == 0 ? &embedding : &layer;
                for (size_t t = 0; t < layout->n_tensors; t++) {
                    for (size_t e = 0; e < layout->tensors[t].n_saved; e++, at += 4) {
                        float x;
                        memcpy(&x, bytes + at, 4);
                        assert_true(x == state_of(home, block, layout->tensors[t].offset + e));
                    }
                }
            }
        }
        assert_int_equal(at, n_bytes);
        assert_int_equal(access(in_directory(directory, "checkpoint_00000005.bin.partial"), F_OK), -1);
        free(bytes);
    }
}

// Into other homes and another type: all states, or as the start of a run only the weights; the padded vocabulary and
// what pads blocks is zero, whatever was there.
static void test_what_is_saved_is_loaded(void **state) {
    (void)state;
    save_step(6, 4, BF16);
    for (int i = 0; i < 2 * N_PLACEMENTS; i++) {
        const bool with_moments = i % 2;
        const Dtype dtype = (Dtype)(i % DTYPES);
        StoreFixture f;
        open_states(&f, i / 2, dtype);
        for (int home = HOME_MASTER; home < HOMES; home++) {
            for (size_t block = 0; block < 3; block++) {
                if (f.store.homes[home].tier == TIER_DISK) continue;  // a new swap file is zero
                assert_true(host_writes(&f.device, f.values, f.n_most * sizeof(float)));
                for (size_t e = 0; e < f.n_most; e++) f.values[e] = 7;
                store_put(&f.store, home, block, 0, store_layout(&f.store, block)->n_elements, f.values, f.rounded);
            }
        }
        store_join(&f.store);
        checkpoint_load(&f.store, path_of_step(6), with_moments);
        for (size_t block = 0; block < 3; block++) {
            const BlockLayout *layout = store_layout(&f.store, block);
            for (int home = HOME_MASTER; home < HOMES; home++) {
                const float *x = block_of(&f, home, block);
                for (size_t e = 0; e < layout->n_elements; e++) {
                    const bool padded = block == 0 && e >= 67 * 8 && e < 128 * 8;
                    const bool there = e < layout->n_exact && !padded && (home == HOME_MASTER || with_moments);
                    assert_true(x[e] == (there ? state_of(home, block, e) : 0));
                }
            }
            const float *x = block_of(&f, HOME_MASTER, block);
            store_weights_begin(&f.store, block, NO_BLOCK);
            for (size_t e = 0; e < layout->n_elements; e++) {
                float rounded[1];
                number_put(dtype, rounded, 0, x[e]);
                assert_true(number_get(dtype, store_weights(&f.store, block), e) == number_get(dtype, rounded, 0));
            }
            store_weights_done(&f.store, block);
        }
        close_store(&f);
    }
}

// A plan takes the room that a run takes for pieces on their way, and opens no file.
static void test_a_plan_of_both(void **state) {
    (void)state;
    for (int dtype = FP32; dtype <= BF16; dtype++) {
        Device cpu, plan;
        Memory memory;
        Ranks ranks;
        Store store;
        Placement place;
        CheckpointHeader header = header_of_step(1);
        memset(&cpu, 0, sizeof(cpu));
        memset(&place, 0, sizeof(place));
        cpu.kind = cpu.real = DEVICE_CPU;
        device_stand_in(&plan, &cpu);
        memory_open_plan(&memory, &plan);
        ranks_open_plan(&ranks, 1);
        store_open(&store, &plan, &memory, &ranks, small_shape(2, 8), (Dtype)dtype, &place, 0);
        memory_begin(&memory, PHASE_SAVE);
        checkpoint_save(&store, &header, NULL);
        memory_end(&memory);
        memory_begin(&memory, PHASE_SETUP);
        checkpoint_load(&store, NULL, true);
        memory_end(&memory);
        const size_t n = 3 * 4096;
        assert_int_equal(memory.ledger.phases[PHASE_SAVE].peak[TIER_HOST], 4 * n);
        assert_int_equal(memory.ledger.phases[PHASE_SETUP].peak[TIER_HOST], (dtype == FP32 ? 4 : 6) * n);
        memory_close(&memory);
    }
}

// Damage anywhere is found, whether a bit is another or the file is longer or shorter: the one before is taken.
static void test_damage_is_found(void **state) {
    (void)state;
    char path[PATH_MAX];
    CheckpointHeader header;
    size_t n;
    save_step(7, 0, FP32);
    save_step(8, 0, FP32);
    char *good = read_file(path_of_step(8), &n), *bad = (char *)malloc(n + 1);
    assert_true(checkpoint_newest(directory, path, sizeof(path), &header));
    assert_int_equal(header.step, 8);
    assert_null(checkpoint_check(path_of_step(8), &header));
    const size_t used = sizeof(CheckpointHeader);
    for (int i = 0; i < 120; i++) {
        memcpy(bad, good, n);
        bad[n] = 0;
        size_t length = n, flip = n;
        if (i < 40) length = (size_t)i * used / 40;                            // cut within the header
        else if (i < 60) length = 1024 + (n - 1024) * (size_t)(i - 40) / 20;   // within the data
        else if (i < 90) flip = (size_t)(i - 60) * used / 30;                  // a bit of the header
        else if (i < 119) flip = 1024 + (n - 1025) * (size_t)(i - 90) / 28;    // of the data
        else length = n + 1;                                                   // a byte too many
        if (flip < n) bad[flip] ^= (char)(1 << (i % 8));
        write_file(path_of_step(8), bad, length);
        const char *wrong = checkpoint_check(path_of_step(8), &header);
        if (!wrong) fail_msg("damage %d (length %zu, bit at %zu) was not found", i, length, flip);
        if (i % 10 != 0) continue;
        assert_true(checkpoint_newest(directory, path, sizeof(path), &header));
        assert_int_equal(header.step, 7);
        assert_string_equal(path, path_of_step(7));
    }
    free(good);
    free(bad);
}

// A header whose own hash is right, and which says what can't be.
static void test_impossible_headers(void **state) {
    (void)state;
    CheckpointHeader right;
    size_t n;
    save_step(9, 0, FP32);
    char *bytes = read_file(path_of_step(9), &n);
    memcpy(&right, bytes, sizeof(right));
    const struct {
        size_t field;
        int64_t value;
        const char *words;
    } faults[] = {{offsetof(CheckpointHeader, magic), 1, "is not a checkpoint of train_gpt"},
                  {offsetof(CheckpointHeader, format), 2, "has a format that this program does not know"},
                  {offsetof(CheckpointHeader, format), 4, "has a format that this program does not know"},
                  {offsetof(CheckpointHeader, L), 0, "has an impossible model"},
                  {offsetof(CheckpointHeader, L), -2, "has an impossible model"},
                  {offsetof(CheckpointHeader, NH), 3, "has an impossible model"},
                  {offsetof(CheckpointHeader, NH), 0, "has an impossible model"},
                  {offsetof(CheckpointHeader, C), 16, "has an impossible model"},
                  {offsetof(CheckpointHeader, V), 0, "has an impossible model"},
                  {offsetof(CheckpointHeader, maxT), -1, "has an impossible model"},
                  {offsetof(CheckpointHeader, dtype), DTYPES, "has an impossible model"},
                  {offsetof(CheckpointHeader, dtype), -1, "has an impossible model"},
                  {offsetof(CheckpointHeader, n_parameters), 1, "has an impossible model"}};
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        CheckpointHeader header = right, found;
        memcpy((char *)&header + faults[i].field, &faults[i].value, 8);
        header.header_hash = checkpoint_header_hash(&header);
        memcpy(bytes, &header, sizeof(header));
        write_file(path_of_step(9), bytes, n);
        assert_string_equal(checkpoint_check(path_of_step(9), &found), faults[i].words);
    }
    free(bytes);
    unlink(path_of_step(9));
    assert_string_equal(checkpoint_check(path_of_step(9), &right), "No such file or directory");
    assert_string_equal(checkpoint_check(directory, &right), "is not a file");
}

static void test_names_of_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t step;
    } names[] = {{"checkpoint_00000000.bin", 0},
                 {"checkpoint_00000012.bin", 12},
                 {"checkpoint_123456789012.bin", 123456789012},
                 {"checkpoint_7.bin", 7},
                 {"checkpoint_-0000001.bin", -1},
                 {"checkpoint_00000012.bin.partial", -1},
                 {"checkpoint_.bin", -1},
                 {"checkpoint_12", -1},
                 {"checkpoint_12.bi", -1},
                 {"a_checkpoint_12.bin", -1},
                 {"checkpoint_x.bin", -1},
                 {"", -1},
                 {"steps.csv", -1}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (checkpoint_name_step(names[i].name) != names[i].step) fail_msg("%s", names[i].name);
    }
}

static void look_for_the_newest(void *place) {
    char path[PATH_MAX];
    CheckpointHeader header;
    if (checkpoint_newest((const char *)place, path, sizeof(path), &header)) _exit(10);
    _exit(11);
}

// None at all, or all of them bad; what a save that was interrupted left behind goes away, other files stay.
static void test_the_newest_of_a_directory(void **state) {
    (void)state;
    char place[256];
    make_directory(place);
    expect_exit(look_for_the_newest, place, 11, "");
    expect_exit(look_for_the_newest, (void *)(uintptr_t)in_directory(place, "none"), 11, "");
    write_file(in_directory(place, "checkpoint_00000009.bin.partial"), "x", 1);
    write_file(in_directory(place, "steps.csv.partial"), "x", 1);
    write_file(in_directory(place, ".partial"), "x", 1);
    expect_exit(look_for_the_newest, place, 11, "");
    assert_int_equal(access(in_directory(place, "checkpoint_00000009.bin.partial"), F_OK), -1);
    assert_int_equal(access(in_directory(place, "steps.csv.partial"), F_OK), 0);
    assert_int_equal(access(in_directory(place, ".partial"), F_OK), 0);
    write_file(in_directory(place, "checkpoint_00000003.bin"), "bad", 3);
    write_file(in_directory(place, "checkpoint_00000010.bin"), "", 0);
    expect_die(look_for_the_newest, place, "checkpoint_00000010.bin is shorter than a header; trying the one before|"
                                           "checkpoint_00000003.bin is shorter|no checkpoint is good. Remove them");
    remove_directory(place);
}

static void save_there(void *place) {
    save_step(3, 0, FP32);
    StoreFixture f;
    CheckpointHeader header = header_of_step(4);
    open_states(&f, 0, FP32);
    checkpoint_save(&f.store, &header, (const char *)place);
}

static void load_another(void *path) {
    StoreFixture f;
    open_states(&f, 0, FP32);
    checkpoint_load(&f.store, (const char *)path, true);
}

static void test_what_ends_the_run(void **state) {
    (void)state;
    char longest[PATH_MAX];
    memset(longest, 'x', sizeof(longest));
    longest[PATH_MAX - 8] = 0;
    expect_die(save_there, longest, "the path is too long");
    expect_die(save_there, (void *)(uintptr_t)in_directory(directory, "none"),
               "can't write |none/checkpoint_00000004.bin: No such file|Earlier checkpoints are untouched");
    // One that was checked, and then became another.
    size_t n;
    save_step(11, 0, FP32);
    char *bytes = read_file(path_of_step(11), &n);
    bytes[n - 1] ^= 1;
    write_file(path_of_step(11), bytes, n);
    expect_die(load_another, (void *)(uintptr_t)path_of_step(11), "changed while it was read");
    write_file(path_of_step(11), bytes, n - 1);
    expect_die(load_another, (void *)(uintptr_t)path_of_step(11), "can't read |again: it has changed");
    free(bytes);
    unlink(path_of_step(11));
    expect_die(load_another, (void *)(uintptr_t)path_of_step(11), "can't read |again: it has changed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file),
        cmocka_unit_test(test_what_is_saved_is_loaded),
        cmocka_unit_test(test_a_plan_of_both),
        cmocka_unit_test(test_damage_is_found),
        cmocka_unit_test(test_impossible_headers),
        cmocka_unit_test(test_names_of_files),
        cmocka_unit_test(test_the_newest_of_a_directory),
        cmocka_unit_test(test_what_ends_the_run),
    };
    return cmocka_run_group_tests(tests, open_places, close_places);
}
