/* Awaited ranks by the shares of all ranks, and the line about a slow rank: after three checks, once in ten minutes. */

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/slow.h"

#include "tests/support/c/cmocka_fixed.h"

enum { RANKS = 8, CHECK_S = SLOW_CHECK_NS / 1000000000 };
#define SECOND UINT64_C(1000000000)

static void awaited_is_the_median_of_the_others_less_the_own_share(void **state)
{
    static const struct {
        const char *name;
        int32_t waits[RANKS], awaited[RANKS];
        size_t n;
    } rows[] = {
        {"one rank", {70}, {-1}, 1},
        {"two", {70, 0}, {0, 70}, 2},
        {"three: the lower of two", {70, 40, 0}, {0, 0, 40}, 3},
        {"a data loader keeps all waiting alike", {60, 60, 60, 60}, {0, 0, 0, 0}, 4},
        {"no rank waits", {0, 0, 0, 0}, {0, 0, 0, 0}, 4},
        {"half of the ranks are slow", {60, 60, 0, 0}, {0, 0, 60, 60}, 4},
        {"most ranks are slow", {60, 0, 0, 0}, {0, 0, 0, 0}, 4},
        {"bubbles of a pipeline, by design", {30, 35, 40, 45, 50, 45, 40, 35}, {10, 5, 0, 0, 0, 0, 0, 5}, 8},
        {"a long stage of a pipeline", {55, 55, 60, 60, 5, 5, 55, 55}, {0, 0, 0, 0, 50, 50, 0, 0}, 8},
        {"a master that works while all others wait", {0, 95, 95, 95, 95}, {95, 0, 0, 0, 0}, 5},
        {"a rank that waits for all others", {90, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, 5},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int32_t sorted[RANKS];

        memcpy(sorted, rows[i].waits, sizeof(sorted));
        slow_sort(sorted, rows[i].n);
        for (size_t k = 0; k < rows[i].n; k++) {
            int32_t awaited = slow_awaited(sorted, rows[i].n, rows[i].waits[k]);

            if (awaited != rows[i].awaited[k])
                fail_msg("%s: rank %zu: %d", rows[i].name, k, (int)awaited);
        }
    }
}

/* Shares with 20 waits each. The rank itself is read from the member, so the order is another one. */
static void set_ranks(struct hang_rank ranks[4], const int32_t waits[4])
{
    for (int i = 0; i < 4; i++)
        ranks[i] = (struct hang_rank){.rank = 3 - i,
                                      .host = 3 - i < 2 ? "a" : "b",
                                      .activity = ACTIVITY_COMPUTES,
                                      .text = "computes (no tool for its stack)",
                                      .waits_percent = waits[3 - i],
                                      .n_waits = 20};
}

static const int32_t even[4] = {40, 40, 40, 40}, slow_2[4] = {70, 75, 9, 80}, slow_3[4] = {70, 75, 80, 9},
                     slow_2_3[4] = {70, 75, 5, 9}, mildly_2[4] = {70, 75, 30, 80};

static const struct hang_rank *step(struct slow *s, unsigned at, const int32_t waits[4],
                                    struct hang_rank ranks[4])
{
    set_ranks(ranks, waits);
    return slow_step(s, (uint64_t)at * CHECK_S * SECOND + SECOND, ranks, 4);
}

static void the_line_comes_with_the_third_check_in_a_row(void **state)
{
    struct hang_rank ranks[4];
    struct slow s;
    char text[200];

    (void)state;
    s = (struct slow){.checked_ns = 0};
    assert_true(slow_is_due(&s, SECOND));
    assert_null(step(&s, 0, slow_2, ranks));
    assert_false(slow_is_due(&s, CHECK_S * SECOND));
    assert_null(step(&s, 0, slow_2, ranks)); /* not due, and no check */
    assert_null(step(&s, 1, slow_2, ranks));
    assert_null(step(&s, 2, even, ranks));
    assert_null(step(&s, 3, slow_2, ranks));
    assert_null(step(&s, 4, slow_2, ranks));
    const struct hang_rank *rank = step(&s, 5, slow_2, ranks);
    assert_non_null(rank);
    assert_int_equal(rank->rank, 2);
    assert_int_equal(s.percent, 66);
    slow_text(&s, rank, text, sizeof(text));
    assert_string_equal(text,
                        "slow: the other ranks have waited for rank 2 on b for 66 % of the last minute");
    ranks[1].activity = ACTIVITY_SLEEPS;
    (void)strcpy(ranks[1].text, "sleeps");
    slow_text(&s, rank, text, sizeof(text));
    assert_non_null(strstr(text, "rank 2 on b (sleeps) for 66 %"));
}

static void a_line_about_a_rank_is_repeated_after_ten_minutes(void **state)
{
    struct hang_rank ranks[4];
    unsigned lines[4] = {0}, n_lines = 0;
    struct slow s;

    (void)state;
    s = (struct slow){.checked_ns = 0};
    for (unsigned at = 0; at < 70; at++)
        if (step(&s, at, slow_2, ranks) && n_lines < 4)
            lines[n_lines++] = at;
    assert_int_equal(n_lines, 3);
    assert_int_equal(lines[0], 2);
    assert_int_equal(lines[1], 2 + 600 / CHECK_S);
    assert_int_equal(lines[2], 2 + 1200 / CHECK_S);
}

static void another_rank_each_time_is_no_slow_rank(void **state)
{
    struct hang_rank ranks[4];
    struct slow s;

    (void)state;
    s = (struct slow){.checked_ns = 0};
    for (unsigned at = 0; at < 30; at++)
        assert_null(step(&s, at, at % 3 == 0 ? slow_3 : slow_2, ranks));
    for (unsigned at = 30; at < 40; at++)
        assert_null(step(&s, at, mildly_2, ranks)); /* a mark, and no line */
}

/* Both ranks of a node: noise changes the most awaited rank, and each rank has a line of its own. */
static void ranks_of_a_slow_node(void **state)
{
    static const int32_t other[4] = {70, 75, 9, 5};
    struct hang_rank ranks[4];
    struct slow s;
    char text[200];

    (void)state;
    s = (struct slow){.checked_ns = 0};
    assert_null(step(&s, 0, slow_2_3, ranks));
    assert_null(step(&s, 1, other, ranks));
    const struct hang_rank *rank = step(&s, 2, slow_2_3, ranks);
    assert_non_null(rank);
    assert_int_equal(rank->rank, 2);
    slow_text(&s, rank, text, sizeof(text));
    assert_non_null(strstr(text, "for rank 2 on b and 1 more for 65 %"));
    rank = step(&s, 3, slow_2_3, ranks);
    assert_non_null(rank);
    assert_int_equal(rank->rank, 3);
    assert_null(step(&s, 4, slow_2_3, ranks));
}

/* No check is made while no rank waits most of the time. */
static void checks_with_a_gap_are_not_in_a_row(void **state)
{
    struct hang_rank ranks[4];
    struct slow s;

    (void)state;
    s = (struct slow){.checked_ns = 0};
    for (unsigned at = 0; at < 20; at += 2)
        assert_null(step(&s, at, slow_2, ranks));
}

static void ranks_without_a_share_are_not_compared(void **state)
{
    static const int32_t unknown[4] = {70, -1, 9, -1}, single[4] = {-1, -1, 9, -1};
    struct hang_rank ranks[4];
    struct slow s;

    (void)state;
    s = (struct slow){.checked_ns = 0};
    for (unsigned at = 0; at < 10; at++)
        assert_null(step(&s, at, single, ranks));
    assert_null(step(&s, 10, unknown, ranks));
    assert_null(step(&s, 11, unknown, ranks));
    assert_int_equal(step(&s, 12, unknown, ranks)->rank, 2);
    assert_int_equal(s.percent, 61);
}

static void few_long_waits_are_no_rhythm(void **state)
{
    struct hang_rank ranks[4];
    struct slow s;

    (void)state;
    s = (struct slow){.checked_ns = 0};
    for (unsigned at = 0; at < 10; at++) {
        set_ranks(ranks, slow_2);
        for (int i = 0; i < 4; i++)
            ranks[i].n_waits = SLOW_WAITS - 1;
        assert_null(slow_step(&s, (uint64_t)at * CHECK_S * SECOND + SECOND, ranks, 4));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(awaited_is_the_median_of_the_others_less_the_own_share),
        cmocka_unit_test(the_line_comes_with_the_third_check_in_a_row),
        cmocka_unit_test(a_line_about_a_rank_is_repeated_after_ten_minutes),
        cmocka_unit_test(another_rank_each_time_is_no_slow_rank),
        cmocka_unit_test(ranks_of_a_slow_node),
        cmocka_unit_test(checks_with_a_gap_are_not_in_a_row),
        cmocka_unit_test(ranks_without_a_share_are_not_compared),
        cmocka_unit_test(few_long_waits_are_no_rhythm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
