/* Lines of agents: cut from bytes, and shown once. */

#include "launcher/front/common_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launcher/front/line_cutter.h"
#include "tests/support/c/cmocka_fixed.h"

enum { SHOWN_SIZE = 4096, HOSTS = 6 };

static const char *const names[HOSTS] = {"a", "b", "c", "d", "e", "f"};

static struct common_lines *new_lines(unsigned n_hosts)
{
    static struct common_lines a;

    common_lines_finish(&a);
    a = (struct common_lines){.names = names, .n_hosts = n_hosts};
    return &a;
}

/* Appends "line|" for each line that is due, with c in front of crun's. */
static void show(struct common_lines *a, unsigned n_usable, uint64_t now_ms, char shown[SHOWN_SIZE])
{
    bool is_crun;

    for (char *line; (line = common_lines_next(a, n_usable, now_ms, &is_crun)); free(line)) {
        size_t n = strlen(shown);
        (void)snprintf(shown + n, SHOWN_SIZE - n, "%s%s|", is_crun ? "c " : "", line);
    }
}

static void expect_shown(struct common_lines *a, unsigned n_usable, uint64_t now_ms, const char *expected)
{
    char shown[SHOWN_SIZE] = "";

    show(a, n_usable, now_ms, shown);
    assert_string_equal(shown, expected);
}

static void test_a_line_of_all_hosts(void **state)
{
    struct common_lines *a = new_lines(3);

    common_lines_add(a, 1, "crun: rank 3 has failed", 0);
    common_lines_add(a, 0, "crun: 2026-11-28 20:00:00 rank 3 has failed", 10);
    expect_shown(a, 3, 20, "");
    common_lines_add(a, 2, "crun: rank 3 has failed", 30);
    expect_shown(a, 3, 30, "c rank 3 has failed|");
    common_lines_add(a, 2, "crun: stopping", 40);
    common_lines_add(a, 1, "crun: stopping", 40);
    expect_shown(a, 2, 40, "c stopping|"); /* one host is lost */
    common_lines_add(a, 1, "crun: alone", 50);
    expect_shown(a, 1, 50 + COMMON_LINES_DELAY_MS, "c [b] alone|");
    a = new_lines(1);
    common_lines_add(a, 0, "crun: alone", 0);
    expect_shown(a, 1, 0, "c alone|");
}

static void test_a_line_of_some_hosts_names_them(void **state)
{
    struct common_lines *a = new_lines(HOSTS);

    for (unsigned host = 0; host < HOSTS; host++) {
        if (host == 1 || host == 3)
            common_lines_add(a, host, "crun: two", 0);
        if (host != 1 && host != 3)
            common_lines_add(a, host, "crun: four", 0);
        if (host != 1)
            common_lines_add(a, host, "crun: five", 0);
        if (host == 4)
            common_lines_add(a, host, "crun: mine", 0);
        if (host == 4)
            common_lines_add(a, host, "a table", 0);
    }
    expect_shown(a, HOSTS, COMMON_LINES_DELAY_MS - 1, "");
    expect_shown(a, HOSTS, COMMON_LINES_DELAY_MS,
                 "c [a, c, e, f] four|c [5 hosts: a, c, d, e, ...] five|c [b, d] two|c [e] mine|a table|");
}

static void test_lines_keep_their_order(void **state)
{
    struct common_lines *a = new_lines(2);

    common_lines_add(a, 0, "crun: my disk is full", 0);
    common_lines_add(a, 0, "crun: the job ends", 1);
    common_lines_add(a, 1, "crun: the job ends", 2);
    expect_shown(a, 2, 2, "");
    expect_shown(a, 2, COMMON_LINES_DELAY_MS, "c [a] my disk is full|c the job ends|");
}

/* The box of a report has equal lines; hosts send it in pieces, and late. */
static void test_repetitions(void **state)
{
    static const char *const box[] = {"=====", "FAILED", "=====", "crun: again", "crun: again"};
    struct common_lines *a = new_lines(3);

    for (size_t i = 0; i < ARRAY_SIZE(box); i++)
        for (unsigned host = 0; host < 2; host++)
            common_lines_add(a, host, box[i], i);
    expect_shown(a, 3, 1000, "=====|FAILED|=====|c [a, b] again|c [a, b] again|");
    for (size_t i = 0; i < ARRAY_SIZE(box); i++)
        common_lines_add(a, 2, box[i], 2000);
    expect_shown(a, 3, 3000, "");
    common_lines_add(a, 2, "crun: again", 4000);
    expect_shown(a, 3, 5000, "c [c] again|");
    common_lines_add(a, 0, "crun: again", 5000); /* of the same event as the line of c */
    expect_shown(a, 3, 6000, "");
}

/* A host that was not there before prints the held line, and no shown one. */
static void test_a_late_host(void **state)
{
    struct common_lines *a = new_lines(2);

    common_lines_add(a, 0, "crun: lost", 0);
    expect_shown(a, 2, 1000, "c [a] lost|");
    common_lines_add(a, 0, "crun: lost", 2000);
    common_lines_add(a, 1, "crun: lost", 2000);
    expect_shown(a, 2, 2000, "c lost|");
}

/* What another host prints about a later event is no repetition. */
static void test_forgotten(void **state)
{
    struct common_lines *a = new_lines(3);

    common_lines_add(a, 0, "crun: lost", 1000);
    common_lines_add(a, 1, "crun: lost", 1000 + COMMON_LINES_FORGET_MS - 1);
    expect_shown(a, 3, UINT64_MAX, "c [a, b] lost|");
    common_lines_add(a, 2, "crun: lost", 1000 + COMMON_LINES_FORGET_MS);
    expect_shown(a, 3, UINT64_MAX, "c [c] lost|");
}

static void test_full(void **state)
{
    struct common_lines *a = new_lines(3);
    char text[32], shown[SHOWN_SIZE];

    for (unsigned i = 0; i <= COMMON_LINES_HELD; i++) { /* the last is lost: no line was taken */
        (void)snprintf(text, sizeof(text), "%u", i);
        common_lines_add(a, 0, text, 0);
    }
    expect_shown(a, 3, 0, "0|");
    shown[0] = 0;
    show(a, 3, UINT64_MAX, shown);
    assert_string_equal(shown + strlen(shown) - 5, "|255|");
    for (unsigned i = 0; i <= 2 * COMMON_LINES_MAX; i++) { /* forgotten ones are shown again */
        (void)snprintf(text, sizeof(text), "%u", i);
        common_lines_add(a, 1, text, 0);
        shown[0] = 0;
        show(a, 3, UINT64_MAX, shown);
    }
    common_lines_add(a, 2, "0", 0);
    expect_shown(a, 3, UINT64_MAX, "0|");
    common_lines_finish(a);
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
    assert_string_equal(shown, "one||two?[m|");
    assert_string_equal(l.line, "thr");
    line_cutter_end(&l, note_line, shown);
    line_cutter_end(&l, note_line, shown);
    assert_string_equal(shown, "one||two?[m|thr|");
    memset(longer, 'x', sizeof(longer));
    shown[0] = 0;
    line_cutter_feed(&l, longer, sizeof(longer), note_line, shown);
    line_cutter_feed(&l, "\n", 1, note_line, shown);
    assert_int_equal(strlen(shown), LINE_CUTTER_SIZE - 1 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_of_all_hosts),
        cmocka_unit_test(test_a_line_of_some_hosts_names_them),
        cmocka_unit_test(test_lines_keep_their_order),
        cmocka_unit_test(test_repetitions),
        cmocka_unit_test(test_a_late_host),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_cutter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
