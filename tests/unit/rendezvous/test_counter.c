/*
 * Counters as text: exactly what strtoll() accepts, checked against it.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "rendezvous/store/counter.h"

#include "tests/support/c/cmocka_fixed.h"

/* What std::stoll() does with the text: throws (false) or returns. */
static bool reference(const char *text, int64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoll(text, &end, 10);
    return end != text && errno == 0;
}

static void check(const char *text)
{
    int64_t expected = 0, got = 0;
    bool is_number = reference(text, &expected);

    if (counter_parse((const uint8_t *)text, strlen(text), &got) != is_number ||
        got != (is_number ? expected : 0))
        fail_msg("\"%s\": strtoll says %d %lld, counter_parse %lld", text, is_number, (long long)expected,
                 (long long)got);
}

static void test_parse(void **state)
{
    static const char *const texts[] = {
        "0",
        "41",
        "-2",
        "+7",
        " \t\n\v\f\r+12abc",
        "0x10",
        "",
        " ",
        "+",
        "-",
        "--1",
        "+-1",
        "abc",
        "1 2",
        "00012",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999",
        "-99999999999999999999999",
        "18446744073709551616",
        "1e3",
        "-0",
        ".5",
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        check(texts[i]);
}

static void test_parse_random(void **state)
{
    static const char letters[] = "0123456789999+- \tx";

    srandom(1);
    for (int i = 0; i < 200000; i++) {
        char text[26];
        size_t n = (size_t)random() % sizeof(text);

        for (size_t j = 0; j < n; j++)
            text[j] = letters[(size_t)random() % (sizeof(letters) - 1)];
        text[n < sizeof(text) ? n : n - 1] = '\0';
        check(text);
    }
}

/* The bytes of a value have no NUL behind them; one inside ends the number. */
static void test_bounds(void **state)
{
    int64_t got;

    assert_true(counter_parse((const uint8_t *)"123", 2, &got));
    assert_int_equal(got, 12);
    assert_true(counter_parse((const uint8_t *)"1\0002", 3, &got));
    assert_int_equal(got, 1);
    assert_false(counter_parse((const uint8_t *)"\0001", 2, &got));
    assert_false(counter_parse(NULL, 0, &got));
}

static void test_format(void **state)
{
    static const int64_t values[] = {0, 1, -1, 9, 10, -10, 123456789, INT64_MAX, INT64_MIN};
    char expected[32], got[COUNTER_TEXT_MAX];

    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        size_t n = (size_t)snprintf(expected, sizeof(expected), "%lld", (long long)values[i]);

        assert_int_equal(counter_format(got, values[i]), n);
        assert_memory_equal(got, expected, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_random),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_format),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
