/* Random numbers and permutations against PyTorch's own output. */

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/err.h"
#include "tests/unit/worker-runtime/torch_vectors.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_uniform(void **state)
{
    float values[ARRAY_SIZE(uniform_seed_7)];
    struct crw_rng rng;
    crw_rng_seed(&rng, 7);
    /* In two pieces: the stream does not depend on how it is read. */
    crw_rng_uniform(&rng, values, 13, -0.3f, 0.7f);
    crw_rng_uniform(&rng, values + 13, ARRAY_SIZE(values) - 13, -0.3f, 0.7f);
    assert_memory_equal(values, uniform_seed_7, sizeof(values));
}

static void test_only_low_half_of_the_seed_counts(void **state)
{
    struct crw_rng a, b;
    crw_rng_seed(&a, 5);
    crw_rng_seed(&b, (UINT64_C(1) << 40) + 5);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(crw_rng_u32(&a), crw_rng_u32(&b));
}

static void test_reference_sequence(void **state)
{
    /* The 10,000th number of MT19937 with seed 5489, as the C++ standard gives it for std::mt19937. */
    struct crw_rng rng;
    crw_rng_seed(&rng, 5489);
    for (int i = 0; i < 9999; i++)
        (void)crw_rng_u32(&rng);
    assert_int_equal(crw_rng_u32(&rng), 4123659995u);
}

static void test_short_randperm(void **state)
{
    static const uint32_t seed_0[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2},
                          seed_1[] = {5, 6, 1, 2, 0, 8, 9, 3, 7, 4};
    uint32_t list[10];
    assert_int_equal(crw_randperm(0, 10, list), 0);
    assert_memory_equal(list, seed_0, sizeof(list));
    assert_int_equal(crw_randperm(1, 10, list), 0);
    assert_memory_equal(list, seed_1, sizeof(list));
    assert_int_equal(crw_randperm(1, 1, list), 0);
    assert_int_equal(list[0], 0);
    assert_int_equal(crw_randperm(1, 0, list), 0);
}

/* CRC-32 of the permutation as PyTorch stores it, 64-bit little-endian. */
static uint32_t crc_of(const uint32_t *list, size_t n)
{
    uLong crc = crc32(0, NULL, 0);
    for (size_t i = 0; i < n; i++) {
        uint8_t wide[8] = {(uint8_t)list[i], (uint8_t)(list[i] >> 8), (uint8_t)(list[i] >> 16),
                           (uint8_t)(list[i] >> 24)};
        crc = crc32(crc, wide, sizeof(wide));
    }
    return (uint32_t)crc;
}

static void test_randperm_of_an_epoch(void **state)
{
    enum { N = 60000 };
    static const uint32_t head[] = {36044, 10678, 57327, 55074, 21567, 15479, 9481, 43095};
    static const uint32_t tail[] = {6465, 31951, 27130, 1544};
    uint32_t *list = calloc(N, sizeof(*list));
    assert_non_null(list);
    assert_int_equal(crw_randperm(0, N, list), 0);
    assert_memory_equal(list, head, sizeof(head));
    assert_memory_equal(list + N - ARRAY_SIZE(tail), tail, sizeof(tail));
    assert_int_equal(crc_of(list, N), 0xb049686du);
    assert_int_equal(crw_randperm(1, N, list), 0);
    assert_int_equal(crc_of(list, N), 0x0e67764du);
    free(list);
}

static void test_randperm_too_long(void **state)
{
    uint32_t untouched = 7;
    assert_int_equal(crw_randperm(0, UINT32_MAX / 20, &untouched), CRW_E_ARGUMENT);
    assert_int_equal(untouched, 7);
    assert_non_null(strstr(crw_error_message(), "too long"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_only_low_half_of_the_seed_counts),
        cmocka_unit_test(test_reference_sequence),
        cmocka_unit_test(test_short_randperm),
        cmocka_unit_test(test_randperm_of_an_epoch),
        cmocka_unit_test(test_randperm_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
