/* Lines of agents: cut from bytes, and shown once. */

#include "launcher/front/common_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launcher/front/line_cutter.h"
#include "tests/support/c/cmocka_fixed.h"

enum { SHOWN_SIZE = 4096 };

/* Appends "host*text|" for each line that is due; * is = for a line that several hosts have printed, else >. */
static void show(struct common_lines *a, uint64_t now_ms, char shown[SHOWN_SIZE])
{
    struct held_line line;

    while (common_lines_next(a, now_ms, &line)) {
        size_t n = strlen(shown);
        (void)snprintf(shown + n, SHOWN_SIZE - n, "%s%u%c%s|", line.is_crun ? "c" : "", line.host,
                       line.is_common ? '=' : '>', line.text);
        free(line.text);
    }
}

static void test_shown_once(void **state)
{
    static struct common_lines a;
    char shown[SHOWN_SIZE] = "";

    common_lines_add(&a, 0, "crun: rank 3 has failed", 0);
    common_lines_add(&a, 1, "crun: 2026-11-28 20:00:00 rank 3 has failed", 10);
    common_lines_add(&a, 1, "crun: my disk is full", 20);
    show(&a, COMMON_LINES_DELAY_MS - 1, shown);
    assert_string_equal(shown, "");
    show(&a, COMMON_LINES_DELAY_MS, shown);
    assert_string_equal(shown, "c0=rank 3 has failed|");
    show(&a, 2 * COMMON_LINES_DELAY_MS, shown);
    assert_string_equal(shown, "c0=rank 3 has failed|c1>my disk is full|");
}

/* The box of a report has equal lines; hosts send it in pieces. */
static void test_repetitions_of_the_owner(void **state)
{
    static const char *const box[] = {"=====", "FAILED", "=====", "crun: again", "crun: again"};
    static struct common_lines a;
    char shown[SHOWN_SIZE] = "";

    for (size_t i = 0; i < ARRAY_SIZE(box); i++)
        for (unsigned host = 0; host < 3; host++)
            common_lines_add(&a, host, box[i], i);
    show(&a, UINT64_MAX, shown);
    assert_string_equal(shown, "0======|0=FAILED|0======|c0=again|c0=again|");
}

/* What another host prints about a later event is no repetition. */
static void test_forgotten(void **state)
{
    static struct common_lines a;
    char shown[SHOWN_SIZE] = "";

    common_lines_add(&a, 0, "crun: lost", 1000);
    common_lines_add(&a, 1, "crun: lost", 1000 + COMMON_LINES_FORGET_MS - 1);
    show(&a, UINT64_MAX, shown);
    common_lines_add(&a, 1, "crun: lost", 1000 + COMMON_LINES_FORGET_MS);
    common_lines_add(&a, 2, "crun: lost", 2000 + COMMON_LINES_FORGET_MS);
    show(&a, UINT64_MAX, shown);
    assert_string_equal(shown, "c0=lost|c1=lost|");
}

static void test_full(void **state)
{
    static struct common_lines a;
    char shown[SHOWN_SIZE] = "", text[32];

    for (unsigned i = 0; i <= COMMON_LINES_HELD; i++) { /* the last is lost: no line was taken */
        (void)snprintf(text, sizeof(text), "%u", i);
        common_lines_add(&a, 0, text, 0);
    }
    show(&a, 0, shown);
    assert_string_equal(shown, "0>0|");
    show(&a, UINT64_MAX, shown);
    for (unsigned i = 0; i <= 2 * COMMON_LINES_SEEN; i++) { /* forgotten ones are shown again */
        struct held_line line;
        (void)snprintf(text, sizeof(text), "%u", i);
        common_lines_add(&a, 1, text, 0);
        while (common_lines_next(&a, UINT64_MAX, &line))
            free(line.text);
    }
    shown[0] = 0;
    common_lines_add(&a, 2, "0", 0);
    show(&a, UINT64_MAX, shown);
    assert_string_equal(shown, "2>0|");
}

static void note_line(void *data, const char *line)
{
    strcat(strcat(data, line), "|");
}

static void test_cutter(void **state)
{
    static struct line_cutter l;
    char shown[2 * LINE_CUTTER_SIZE + 64] = "";
    char longer[LINE_CUTTER_SIZE + 10];

    line_cutter_feed(&l, "on", 2, note_line, shown);
    line_cutter_feed(&l, "e\r\n\ntwo\x1b[m\nthr", 14, note_line, shown);
    assert_string_equal(shown, "one||two [m|");
    assert_string_equal(line_cutter_last(&l), "thr");
    line_cutter_end(&l, note_line, shown);
    line_cutter_end(&l, note_line, shown);
    assert_string_equal(shown, "one||two [m|thr|");
    memset(longer, 'x', sizeof(longer));
    shown[0] = 0;
    line_cutter_feed(&l, longer, sizeof(longer), note_line, shown);
    line_cutter_feed(&l, "\n", 1, note_line, shown);
    assert_int_equal(strlen(shown), LINE_CUTTER_SIZE - 1 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shown_once), cmocka_unit_test(test_repetitions_of_the_owner),
        cmocka_unit_test(test_forgotten),  cmocka_unit_test(test_full),
        cmocka_unit_test(test_cutter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
