// test_placement.c - placement.h: how places are told as the value of --offload, and whether they need a disk.
#include "test_helpers.h"

#include "../dev/placement.h"

// All places of the four kinds, against their texts joined by hand.
static void test_every_place_is_told(void **state) {
    (void)state;
    static const char *const names[4][TIERS] = {{"", "optimizer=host", "optimizer=disk"},
                                                {"", "gradients=host", "gradients=disk"},
                                                {"", "weights=host", "weights=disk"},
                                                {"", "activations=host", "activations=disk"}};
    for (int i = 0; i < TIERS * TIERS * TIERS * TIERS; i++) {
        const int tiers[4] = {i % 3, i / 3 % 3, i / 9 % 3, i / 27};
        const Placement place = {i % 4, (Tier)tiers[0], (Tier)tiers[1], (Tier)tiers[2], (Tier)tiers[3], i % 2};
        char text[128], right[128] = "";
        bool disk = false;
        for (int kind = 0; kind < 4; kind++) {
            if (tiers[kind] == TIER_DEVICE) continue;
            if (right[0]) strcat(right, ",");
            strcat(right, names[kind][tiers[kind]]);
            disk = disk || strstr(names[kind][tiers[kind]], "disk");
        }
        memset(text, 'x', sizeof(text));
        placement_text(&place, text, sizeof(text));
        assert_string_equal(text, right);
        assert_int_equal(placement_uses_disk(&place), disk);
    }
}

// The longest text, and the smallest room for it, with which callers get by (128 bytes).
static void test_the_longest_text(void **state) {
    (void)state;
    const Placement place = {3, TIER_HOST, TIER_DISK, TIER_HOST, TIER_DISK, true};
    char text[64];
    memset(text, 'x', sizeof(text));
    placement_text(&place, text, 60);
    assert_string_equal(text, "optimizer=host,gradients=disk,weights=host,activations=disk");
    assert_int_equal(strlen(text), 59);
    assert_int_equal(text[60], 'x');
}

// Stage and the place of the update are flags of their own.
static void test_nothing_away_is_no_text(void **state) {
    (void)state;
    Placement place;
    char text[8] = "before";
    memset(&place, 0, sizeof(place));
    place.stage = 3;
    place.update_on_host = true;
    placement_text(&place, text, sizeof(text));
    assert_string_equal(text, "");
    assert_false(placement_uses_disk(&place));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_place_is_told),
        cmocka_unit_test(test_the_longest_text),
        cmocka_unit_test(test_nothing_away_is_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
