/* The last lines of the ranks' standard error. */

#include "launcher/front/last_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/c/cmocka_fixed.h"

static struct last_lines lines;

static void add(uint32_t rank, const char *text)
{
    last_lines_add(&lines, rank, (const uint8_t *)text, strlen(text));
}

static void expect(uint32_t rank, const char *expected)
{
    char *text = last_lines_get(&lines, rank);

    if (expected)
        assert_string_equal(text, expected);
    else
        assert_null(text);
    free(text);
}

static void test_last_lines(void **state)
{
    last_lines_init(&lines);
    expect(0, NULL);
    add(0, "\n\n");
    expect(0, NULL);
    add(0, "one\ntw");
    expect(0, "\n\none\ntw");
    add(0, "o\nthree\n\nfive\n\n");
    expect(0, "two\nthree\n\nfive");
    add(LAST_LINES_BUCKETS, "of another rank");
    expect(0, "two\nthree\n\nfive");
    expect(LAST_LINES_BUCKETS, "of another rank");
    last_lines_forget(&lines, 0);
    last_lines_forget(&lines, 0);
    expect(0, NULL);
    last_lines_finish(&lines);
}

static void test_bounds(void **state)
{
    char text[LAST_LINES_BYTES + 2];

    last_lines_init(&lines);
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    add(1, "begin\n");
    add(1, text);
    expect(1, text + 1);
    add(1, "end");
    memcpy(text + LAST_LINES_BYTES - 2, "end", 4);
    expect(1, text + 1);
    for (uint32_t i = 0; i <= LAST_LINES_RANKS; i++)
        add(2 + i * LAST_LINES_BUCKETS, "line\n");
    expect(2, NULL);
    expect(2 + LAST_LINES_BUCKETS, "line");
    expect(2 + LAST_LINES_RANKS * LAST_LINES_BUCKETS, "line");
    last_lines_finish(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_last_lines), cmocka_unit_test(test_bounds)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
