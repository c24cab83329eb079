/* Texts from the network for a line on a terminal. */

#include <stdio.h>

#include "base/err.h"
#include "base/utf8.h"

#include "tests/support/c/cmocka_fixed.h"

static void expect_clean(const char *text, const char *expected)
{
    char line[64];

    (void)snprintf(line, sizeof(line), "%s", text); /* fits */
    text_clean(line);
    assert_string_equal(line, expected);
}

static void test_controls(void **state)
{
    expect_clean("", "");
    expect_clean("a\tb\nc\rd", "a b c d");
    expect_clean("a\x1b[31mb\x7f", "a?[31mb?");
    expect_clean("\xc2\x9b", "?"); /* C1 in UTF-8 */
}

/* A terminal of 8 bits takes a byte of C1 for the beginning of a command. */
static void test_bytes_outside_utf8(void **state)
{
    expect_clean(
        "\x9b"
        "31mred",
        "?31mred");
    expect_clean("a\x80\x9f\xa0\xff", "a??\xa0\xff");
    expect_clean("\xe2\x80", "\xe2?"); /* cut */
    expect_clean(
        "\xc3\x9b"
        "3\x9b",
        "\xc3\x9b"
        "3?");
}

static void test_characters_stay(void **state)
{
    static const char *const texts[] = {"\xc3\x9b",     "\xe2\x86\x92", "\xe2\x80\xa9",    "\xe2\x80\xaf",
                                        "\xe2\x81\xa5", "\xe2\x81\xaa", "\xf0\x9f\x9a\x80"};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        expect_clean(texts[i], texts[i]);
}

static void test_direction(void **state)
{
    expect_clean(
        "a\xe2\x80\xaa"
        "b\xe2\x80\xae"
        "c",
        "a?b?c");
    expect_clean(
        "a\xe2\x81\xa6"
        "b\xe2\x81\xa9"
        "c",
        "a?b?c");
}

static void test_sentences_end_behind_a_word(void **state)
{
    static const struct {
        const char *from, *to; /* of 16 bytes */
    } cases[] = {
        {"", ""},
        {"123456789 12345", "123456789 12345"},
        {"123456789 123456", "123456789 ..."},
        {"1234567890 12345", "1234567890 ..."},
        {"12345678901 1234", "12345678901 ..."},
        {"one two three four", "one two ..."},
        {"one 34567890123456789", "one 3456789 ..."},
        {"12345678901234567", "12345678901 ..."},
        {"1234567890\xc3\xa4 12345", "1234567890 ..."},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char to[16];
        text_copy_words(to, sizeof(to), cases[i].from);
        assert_string_equal(to, cases[i].to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences_end_behind_a_word), cmocka_unit_test(test_controls),
        cmocka_unit_test(test_bytes_outside_utf8), cmocka_unit_test(test_characters_stay),
        cmocka_unit_test(test_direction)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
