// test_budget.c - budget.h: what a run may take, of flags or of what is available, and what fits it to the byte.
#include "test_helpers.h"

#include "../dev/budget.h"

static const size_t MIB = 1 << 20;

typedef struct {
    Options options;
    Device device;
    Ranks ranks;
    Budget budget;
} Case;

// A CPU, 10 % headroom and one rank, unless a test says otherwise.
static Case new_case(double device_memory, double host_memory) {
    Case c;
    memset(&c, 0, sizeof(c));
    c.device.kind = c.device.real = DEVICE_CPU;
    c.options.device_memory = device_memory;
    c.options.host_memory = host_memory;
    c.options.headroom = 10;
    ranks_open_plan(&c.ranks, 1);
    return c;
}

static void open_case(Case *c) { budget_open(&c->budget, &c->options, &c->device, &c->ranks); }

static void test_sizes_of_the_flags(void **state) {
    (void)state;
    Case c = new_case(1000 * (double)MIB, 3000 * (double)MIB);
    open_case(&c);
    assert_int_equal(c.budget.bytes[TIER_DEVICE], 900 * MIB);
    assert_int_equal(c.budget.bytes[TIER_HOST], 2700 * MIB);
    assert_false(c.budget.shared);
    c.options.headroom = 0;
    open_case(&c);
    assert_int_equal(c.budget.bytes[TIER_DEVICE], 1000 * MIB);
    assert_int_equal(c.budget.bytes[TIER_HOST], 3000 * MIB);
    c.options.headroom = 99;
    open_case(&c);
    assert_in_range(c.budget.bytes[TIER_DEVICE], 10 * MIB - 1, 10 * MIB + 1);
    c.ranks.local_size = 4;  // a flag's size is this rank's, however many there are
    open_case(&c);
    assert_in_range(c.budget.bytes[TIER_HOST], 30 * MIB - 1, 30 * MIB + 1);
}

// What is available moves while a test runs: a quarter of all memory is far beyond that.
static void expect_near(size_t bytes, double right) {
    const double slack = 0.25 * (double)process_memory_available();
    assert_true(fabs((double)bytes - right) <= slack);
}

// Without flags the device of a CPU and its host are the same memory, of which each rank has its part.
static void test_what_is_available(void **state) {
    (void)state;
    const double available = (double)process_memory_available();
    Case c = new_case(0, 0);
    open_case(&c);
    assert_true(c.budget.shared);
    assert_int_equal(c.budget.bytes[TIER_DEVICE], c.budget.bytes[TIER_HOST]);
    expect_near(c.budget.bytes[TIER_HOST], 0.9 * available);
    c.ranks.local_size = 4;
    open_case(&c);
    expect_near(4 * c.budget.bytes[TIER_HOST], 0.9 * available);
    // One of the two is said: they are two memories, and the host has the rest.
    c = new_case(0.5 * available, 0);
    c.options.headroom = 0;
    open_case(&c);
    assert_false(c.budget.shared);
    assert_int_equal(c.budget.bytes[TIER_DEVICE], (size_t)(0.5 * available));
    expect_near(c.budget.bytes[TIER_HOST], 0.5 * available);
    c = new_case(1e18, 0);  // more than there is: nothing is left, not less than nothing
    open_case(&c);
    assert_int_equal(c.budget.bytes[TIER_HOST], 0);
    c = new_case(0, 100 * (double)MIB);
    open_case(&c);
    assert_false(c.budget.shared);
    assert_int_equal(c.budget.bytes[TIER_HOST], 90 * MIB);
    expect_near(c.budget.bytes[TIER_DEVICE], 0.9 * available);
}

static Ledger ledger_of(size_t on_device, size_t on_host) {
    Ledger ledger;
    memset(&ledger, 0, sizeof(ledger));
    ledger.phases[PHASE_FORWARD].peak[TIER_DEVICE] = on_device;
    ledger.phases[PHASE_UPDATE].peak[TIER_HOST] = on_host;
    ledger.phases[PHASE_UPDATE].peak[TIER_DISK] = (size_t)1 << 60;  // is no memory
    return ledger;
}

static void test_two_memories_fit_each(void **state) {
    (void)state;
    const Budget budget = {{1000, 300, 0}, false};
    static const struct {
        size_t device, host;
        bool fits;
    } cases[] = {{1000, 300, true}, {1001, 300, false}, {1000, 301, false}, {0, 0, true}, {300, 1000, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const Ledger ledger = ledger_of(cases[i].device, cases[i].host);
        assert_int_equal(budget_fits(&budget, &ledger), cases[i].fits);
        assert_int_equal(budget_needed(&budget, &ledger, TIER_DEVICE), cases[i].device);
        assert_int_equal(budget_needed(&budget, &ledger, TIER_HOST), cases[i].host);
    }
}

// Peaks of the two tiers in different phases are added all the same: both slabs are reserved for the whole run.
static void test_one_memory_fits_the_sum(void **state) {
    (void)state;
    const Budget budget = {{1000, 1000, 0}, true};
    static const struct {
        size_t device, host;
        bool fits;
    } cases[] = {{1000, 0, true}, {700, 300, true}, {700, 301, false}, {0, 1000, true}, {1, 1000, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const Ledger ledger = ledger_of(cases[i].device, cases[i].host);
        assert_int_equal(budget_fits(&budget, &ledger), cases[i].fits);
        assert_int_equal(budget_needed(&budget, &ledger, TIER_DEVICE), cases[i].device + cases[i].host);
        assert_int_equal(budget_needed(&budget, &ledger, TIER_HOST), cases[i].device + cases[i].host);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_the_flags),
        cmocka_unit_test(test_what_is_available),
        cmocka_unit_test(test_two_memories_fit_each),
        cmocka_unit_test(test_one_memory_fits_the_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
