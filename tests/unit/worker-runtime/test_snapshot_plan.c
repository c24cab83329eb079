/*
 * Names of snapshots, and which of them may be deleted.
 */

#include "worker-runtime/checkpoint/snapshot_plan.h"

#include <string.h>

#include "tests/support/c/cmocka_fixed.h"

static void names_and_steps_agree(void **state)
{
    static const uint64_t steps[] = {0, 1, 938, 999999999999, 1000000000000, UINT64_MAX};
    char name[SNAPSHOT_NAME_SIZE];

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        uint64_t step = 1234;

        snapshot_name(steps[i], name);
        assert_true(snapshot_name_parse(name, &step));
        assert_int_equal(step, steps[i]);
    }
    snapshot_name(938, name);
    assert_string_equal(name, "snap-000000000938.safetensors");
}

static void other_names_are_not_snapshots(void **state)
{
    static const char *const names[] = {
        "",
        ".",
        "snap-",
        "snap-.safetensors",
        "snap-1.safetensors",
        "snap-00000000001.safetensors",
        "snap-0000000000001.safetensors",
        "snap-000000000001.safetensors.tmp",
        "snap-000000000001.safetensor",
        "snap-00000000000a.safetensors",
        "snap--00000000001.safetensors",
        "snap-99999999999999999999.safetensors",
        "snap-999999999999999999999999999.safetensors",
        "Snap-000000000001.safetensors",
        ".snap-000000000001.7.tmp",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        uint64_t step = 4711;

        assert_false(snapshot_name_parse(names[i], &step));
        assert_int_equal(step, 4711);
    }
}

static void temporaries_are_recognised(void **state)
{
    char name[SNAPSHOT_NAME_SIZE];

    snapshot_temporary_name(UINT64_MAX, INT32_MAX, name);
    assert_true(snapshot_name_is_temporary(name));
    snapshot_name(7, name);
    assert_false(snapshot_name_is_temporary(name));
    assert_false(snapshot_name_is_temporary(".snap-"));
    assert_false(snapshot_name_is_temporary("notes.tmp"));
    assert_false(snapshot_name_is_temporary(".tmp"));
}

/* One letter for each file, newest first: v valid, d damaged, ? nobody looked. */
static void plans(void **state)
{
    static const struct {
        const char *files;
        int keep;
        int examine; /* -1: enough is known */
        size_t n_keep;
    } cases[] = {
        {"", 1, -1, 0},      {"v", 1, -1, 1},   {"vv", 1, -1, 1},    {"vvv", 2, -1, 2},
        {"vvv", 5, -1, 3},   {"dv", 1, -1, 2},  {"ddd", 1, -1, 3},   {"vdv", 1, -1, 1},
        {"vdvdv", 2, -1, 3}, {"v?", 1, -1, 1},  {"?v", 1, 0, 2},     {"v?v", 2, 1, 3},
        {"d?", 1, 1, 2},     {"vd??", 2, 2, 4}, {"vdv??", 2, -1, 3}, {"dvvd?", 3, 4, 5},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct snapshot_entry entries[8];
        size_t n = strlen(cases[i].files), examine;

        for (size_t k = 0; k < n; k++) {
            char file = cases[i].files[k];

            entries[k].step = 100 - k;
            entries[k].state = file == 'v'   ? SNAPSHOT_VALID
                               : file == 'd' ? SNAPSHOT_DAMAGED
                                             : SNAPSHOT_UNKNOWN;
        }
        if (snapshot_plan(entries, n, cases[i].keep, &examine) != cases[i].n_keep)
            fail_msg("\"%s\" keeping %d", cases[i].files, cases[i].keep);
        assert_int_equal(examine, cases[i].examine < 0 ? n : (size_t)cases[i].examine);
    }
}

static void sorts_newest_first(void **state)
{
    struct snapshot_entry entries[] = {{5, 0}, {UINT64_MAX, 0}, {0, 0}, {7, 0}};

    snapshot_sort(entries, 4);
    assert_int_equal(entries[0].step, UINT64_MAX);
    assert_int_equal(entries[1].step, 7);
    assert_int_equal(entries[2].step, 5);
    assert_int_equal(entries[3].step, 0);
    snapshot_sort(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_steps_agree),      cmocka_unit_test(other_names_are_not_snapshots),
        cmocka_unit_test(temporaries_are_recognised), cmocka_unit_test(plans),
        cmocka_unit_test(sorts_newest_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
