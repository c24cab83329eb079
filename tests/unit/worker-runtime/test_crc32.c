/* Checksums: known answers, the instruction against the table, and zlib. */

#include <string.h>

#include <zlib.h>

#include "base/crc32.h"
#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

static void test_known_answers(void **state)
{
    /* RFC 3720, B.4. */
    uint8_t zeros[32] = {0}, ones[32], rising[32];
    memset(ones, 0xff, sizeof(ones));
    for (int i = 0; i < 32; i++)
        rising[i] = (uint8_t)i;
    assert_int_equal(crw_crc32c(0, zeros, sizeof(zeros)), 0x8a9136aau);
    assert_int_equal(crw_crc32c(0, ones, sizeof(ones)), 0x62a8ab43u);
    assert_int_equal(crw_crc32c(0, rising, sizeof(rising)), 0x46dd794eu);
    assert_int_equal(crw_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crw_crc32c(0, "", 0), 0);
    assert_int_equal(crc32c_table(0, "123456789", 9), 0xe3069283u);
}

static void test_tables_pieces_and_zlib_agree(void **state)
{
    uint8_t bytes[200];
    struct crw_rng rng;
    crw_rng_seed(&rng, 1);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)crw_rng_u32(&rng);
    for (size_t start = 0; start < 9; start++)
        for (size_t n = 0; start + n <= sizeof(bytes); n++) {
            uint32_t whole = crw_crc32c(0, bytes + start, n);
            assert_int_equal(crc32c_table(0, bytes + start, n), whole);
            assert_int_equal(
                crw_crc32c(crw_crc32c(0, bytes + start, n / 3), bytes + start + n / 3, n - n / 3), whole);
            assert_int_equal(
                crc32_zlib(crc32_zlib(0, bytes + start, n / 3), bytes + start + n / 3, n - n / 3),
                crc32(0, bytes + start, (unsigned)n));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_tables_pieces_and_zlib_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
