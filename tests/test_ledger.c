// test_ledger.c - ledger.h: the highest peak and its phase, and names for everything that is counted.
#include "test_helpers.h"

#include "../dev/ledger.h"

static void test_the_highest_peak(void **state) {
    (void)state;
    Ledger ledger;
    memset(&ledger, 0, sizeof(ledger));
    for (int t = 0; t < TIERS; t++) {
        assert_int_equal(ledger_peak(&ledger, (Tier)t), 0);
        assert_int_equal(ledger_peak_phase(&ledger, (Tier)t), PHASE_SETUP);
    }
    const size_t most = SIZE_MAX;
    for (int t = 0; t < TIERS; t++) {
        for (int p = 0; p < PHASES; p++) {
            memset(&ledger, 0, sizeof(ledger));
            for (int q = 0; q < PHASES; q++) ledger.phases[q].peak[t] = most - 1;
            ledger.phases[p].peak[t] = most;
            assert_int_equal(ledger_peak(&ledger, (Tier)t), most);
            assert_int_equal(ledger_peak_phase(&ledger, (Tier)t), p);
            for (int other = 0; other < TIERS; other++) {
                if (other != t) assert_int_equal(ledger_peak(&ledger, (Tier)other), 0);
            }
        }
    }
}

// The first of several that are as high.
static void test_the_first_of_equal_phases(void **state) {
    (void)state;
    Ledger ledger;
    memset(&ledger, 0, sizeof(ledger));
    ledger.phases[PHASE_UPDATE].peak[TIER_HOST] = 64;
    ledger.phases[PHASE_SAVE].peak[TIER_HOST] = 64;
    assert_int_equal(ledger_peak_phase(&ledger, TIER_HOST), PHASE_UPDATE);
}

// memory.csv and its readers tell rows apart by these names.
static void expect_names(const char *(*name)(int), int n) {
    for (int i = 0; i < n; i++) {
        assert_true(strlen(name(i)) > 2);
        assert_null(strpbrk(name(i), ",\n\""));
        for (int j = 0; j < i; j++) assert_string_not_equal(name(i), name(j));
    }
}

static void test_names(void **state) {
    (void)state;
    expect_names(ledger_tier_name, TIERS);
    expect_names(ledger_kind_name, KINDS);
    expect_names(ledger_phase_name, PHASES);
    assert_string_equal(ledger_tier_name(TIER_DISK), "disk");
    assert_string_equal(ledger_kind_name(KIND_LOGITS), "logits");
    assert_string_equal(ledger_kind_name(KIND_WORKSPACE), "workspace");
    assert_string_equal(ledger_kind_name(KIND_FILES), "files");
    assert_string_equal(ledger_phase_name(PHASE_BACKWARD), "backward");
    assert_string_equal(ledger_phase_name(PHASE_SAVE), "save");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_highest_peak),
        cmocka_unit_test(test_the_first_of_equal_phases),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
