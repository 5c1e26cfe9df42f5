// test_witness.c - witness.h: what was touched of memory that held poison is found to the word, and a ledger that says
// another number ends the run; a take whose top is a workspace may have touched less.
#include "device_helpers.h"

#include "../dev/witness.h"

enum { BYTES = 1 << 16, WORD = 8 };

static Device device;
static char *memory;

static int open_bytes(void **state) {
    (void)state;
    const Order order = {QUEUE_EAGER, 0};
    open_cpu(&device, order);
    memory = (char *)aligned_alloc(64, BYTES);
    return memory == NULL;
}

static int close_bytes(void **state) {
    (void)state;
    free(memory);
    close_cpu(&device);
    return 0;
}

// As a number of any type that the trainer knows, poison is NaN: who reads it does not go on as if nothing was.
static void test_poison_is_no_number(void **state) {
    (void)state;
    witness_poison(&device, false, memory, BYTES);
    for (size_t i = 0; i < BYTES; i += 2) {
        double x64;
        float x32;
        uint16_t x16;
        memcpy(&x16, memory + i, 2);
        if (i % 4 == 2) assert_true(isnan(number_from_bf16(x16)));  // the upper half of each word of four bytes
        if (i % 4 == 0) {
            memcpy(&x32, memory + i, 4);
            assert_true(isnan(x32));
        }
        if (i % 8 == 0) {
            memcpy(&x64, memory + i, 8);
            assert_true(isnan(x64));
        }
    }
}

// The first byte that was touched, wherever it is; whole words count.
static void test_the_first_touch_is_found(void **state) {
    (void)state;
    for (size_t at = 0; at < BYTES; at += at < 200 ? 1 : 997) {
        witness_poison(&device, false, memory, BYTES);
        assert_int_equal(witness_untouched(&device, false, memory, BYTES), BYTES);
        memory[at] ^= 1;
        assert_int_equal(witness_untouched(&device, false, memory, BYTES), at / WORD * WORD);
        if (at < BYTES - 1) memory[BYTES - 1] ^= 1;
        assert_int_equal(witness_untouched(&device, false, memory, BYTES), at / WORD * WORD);
        assert_int_equal(witness_untouched(&device, false, memory, at / WORD * WORD), at / WORD * WORD);
    }
    assert_int_equal(witness_untouched(&device, false, memory, 0), 0);
}

// Poison goes where it is asked for, and no further.
static void test_poison_stays_within(void **state) {
    (void)state;
    memset(memory, 0, BYTES);
    witness_poison(&device, false, memory + 64, 128);
    for (size_t i = 0; i < BYTES; i += WORD) {
        uint64_t word;
        memcpy(&word, memory + i, WORD);
        assert_int_equal(word, i >= 64 && i < 192 ? WITNESS_POISON : 0);
    }
    witness_poison(&device, false, memory, 0);
    assert_int_equal(memory[0], 0);
}

// A slab of which the upper `touched` bytes were used; the ledger says `peak`.
typedef struct {
    size_t touched, peak;
    Kind top;
} Claim;

static void check(void *argument) {
    const Claim *claim = (const Claim *)argument;
    PhaseLedger phase;
    memset(&phase, 0, sizeof(phase));
    phase.peak[TIER_HOST] = claim->peak;
    phase.top[TIER_HOST] = claim->top;
    witness_poison(&device, false, memory, BYTES);
    memset(memory + BYTES - claim->touched, 1, claim->touched);
    witness_check(&device, false, memory, BYTES, BYTES, TIER_HOST, PHASE_HEAD, &phase);
}

static void test_a_ledger_that_is_true(void **state) {
    (void)state;
    static const Claim claims[] = {
        {0, 0, KIND_SCRATCH},        {1024, 1024, KIND_SCRATCH},   {1024 - 64, 1024, KIND_SCRATCH},
        {8, 64, KIND_SCRATCH},       {BYTES, BYTES, KIND_SCRATCH}, {0, 4096, KIND_WORKSPACE},
        {4096, 4096, KIND_WORKSPACE}};
    for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
        Claim claim = claims[i];
        check(&claim);
    }
}

static void test_a_ledger_that_is_not(void **state) {
    (void)state;
    static const struct {
        Claim claim;
        const char *words;
    } cases[] = {{{1032, 1024, KIND_SCRATCH}, "host memory, phase head|says 1024 bytes, 1032 were"},
                 {{1024 - 72, 1024, KIND_SCRATCH}, "says 1024 bytes, 952 were"},
                 {{8, 0, KIND_SCRATCH}, "says 0 bytes, 8 were"},
                 {{4104, 4096, KIND_WORKSPACE}, "says 4096 bytes, 4104 were"},
                 {{BYTES, BYTES - 64, KIND_SCRATCH}, "65536 were"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Claim claim = cases[i].claim;
        expect_die(check, &claim, cases[i].words);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poison_is_no_number),
        cmocka_unit_test(test_the_first_touch_is_found),
        cmocka_unit_test(test_poison_stays_within),
        cmocka_unit_test(test_a_ledger_that_is_true),
        cmocka_unit_test(test_a_ledger_that_is_not),
    };
#ifdef _OPENMP
    omp_set_num_threads(1);  // children have no other
#endif
    return cmocka_run_group_tests(tests, open_bytes, close_bytes);
}
