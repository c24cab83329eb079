/* CUDA_VISIBLE_DEVICES: entries, and how many GPUs a value leaves. */

#include <string.h>

#include "launcher/cli/visible_devices.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_count(void **state)
{
    static const struct {
        const char *value;
        int n_devices, count;
    } cases[] = {
        {NULL, 8, 8},          {"", 8, 0},
        {"0", 8, 1},           {"0,1", 1, 1},
        {" 3 , 2 ", 8, 2},     {"1,,2", 8, 1},
        {"1,8,2", 8, 1},       {"-1", 8, 0},
        {"1,x", 8, 1},         {"0,1,", 8, 2},
        {"123456", 8, 0},      {"GPU-12345678-1234,MIG-87654321", 8, 1},
        {"GPU-,0", 8, 0},      {"0,0", 8, 0},
        {"0,1, 0", 8, 0},      {"0,9,0", 8, 1},
        {"GPU-a,GPU-b", 8, 2}, {"GPU-a,GPU-a", 8, 0},
        {"GPU-a,1", 8, 1},     {"1,GPU-a", 8, 1},
        {"1,11,111", 200, 3},  {"MIG-a", 8, 1},
        {"MIG-a,MIG-b", 8, 1}, {"MIG-GPU-a/1/0,MIG-GPU-a/2/0", 8, 1},
        {"MIG-a,0", 8, 1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(visible_devices_count(cases[i].value, cases[i].n_devices), cases[i].count);
}

static void test_entries(void **state)
{
    static const char *const expected[] = {"0", "", "GPU-1", "a b", ""};
    const char *rest = "0,, GPU-1 ,a b,", *entry;
    size_t size;

    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        assert_true(visible_devices_next(&rest, &entry, &size));
        assert_int_equal(size, strlen(expected[i]));
        assert_memory_equal(entry, expected[i], size);
    }
    assert_false(visible_devices_next(&rest, &entry, &size));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_entries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
