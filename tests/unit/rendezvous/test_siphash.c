/*
 * SipHash-1-3 against values of CPython 3.11, whose hash(bytes) it is: PYTHONHASHSEED=0 (a seed of zeros)
 * and PYTHONHASHSEED=1.
 */

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/siphash.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct {
    const char *text;
    uint64_t with_zeros;
    uint64_t with_one;
} vectors[] = {
    {"a", 0x407448d2b89b1813, 0xd6300bc9f7cc0e73},
    {"/k", 0x6901590b9d8b5aa7, 0x1025ca44ae369213},
    {"0123456", 0x810aaf7acf670379, 0xbc41db10ffbe9e6c},
    {"01234567", 0xda3dcedf84ea6cc6, 0x4b86f65552e7e70b},
    {"012345678", 0xb79d8581f8552753, 0x00c4975d5163d03b},
    {"/default_pg/0//cpu//0/1234567890", 0x45e01efe4469f78a, 0x7c895585a8aa0f2c},
};

static const uint8_t zeros[SIPHASH_SEED_SIZE];
static const uint8_t one[SIPHASH_SEED_SIZE] = {
    0x29, 0x23, 0xbe, 0x84, 0xe1, 0x6c, 0xd6, 0xae, 0x52, 0x90, 0x49, 0xf1, 0xf1, 0xbb, 0xe9, 0xeb,
};

static void test_vectors(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        size_t n = strlen(vectors[i].text);

        assert_true(siphash13(zeros, vectors[i].text, n) == vectors[i].with_zeros);
        assert_true(siphash13(one, vectors[i].text, n) == vectors[i].with_one);
    }
}

/* Names that differ in one bit anywhere, or in length only, differ in their hash. */
static void test_every_byte_counts(void **state)
{
    uint8_t name[24] = {0};
    uint64_t plain = siphash13(one, name, sizeof(name));

    for (size_t bit = 0; bit < 8 * sizeof(name); bit++) {
        name[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(siphash13(one, name, sizeof(name)) != plain);
        name[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t n = 0; n < sizeof(name); n++)
        assert_true(siphash13(one, name, n) != plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_every_byte_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
