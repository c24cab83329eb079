/* Lines of several ranks in, what the console shows out. */

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "launcher/output/fold.h"

#include "tests/support/c/cmocka_fixed.h"

enum { MEMBERS = 4 };

#define MS UINT64_C(1000000)

enum operation {
    NOTHING, /* closes a table */
    LINE,    /* the member prints text */
    ERROR,   /* the same, to its other stream */
    TICK,    /* fold_emit() */
    LEAVE,
    FLUSH,
};

struct step {
    enum operation operation;
    unsigned ms;
    int member;
    const char *text;
    const char *shown; /* by this step */
};

static void add(struct fold *f, const struct step *s, int first_rank, struct buf *console)
{
    char prefix[16];

    (void)snprintf(prefix, sizeof(prefix), "[%d]:", s->member); /* fits */
    fold_add(f,
             &(struct fold_line){.member = s->member,
                                 .rank = first_rank + s->member,
                                 .source = s->operation == ERROR,
                                 .prefix = prefix,
                                 .text = s->text,
                                 .n_bytes = strlen(s->text),
                                 .now_ns = s->ms * MS},
             console);
}

static void expect_shown(struct buf *console, const char *expected)
{
    assert_int_equal(buf_append(console, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(console), expected);
    buf_reset(console);
}

static void take_step(struct fold *f, const struct step *s, int first_rank)
{
    struct buf console = {0};

    if (s->operation == LINE || s->operation == ERROR)
        add(f, s, first_rank, &console);
    else if (s->operation == TICK)
        fold_emit(f, s->ms * MS, &console);
    else if (s->operation == LEAVE)
        fold_leave(f, s->member);
    else
        fold_flush(f, &console);
    expect_shown(&console, s->shown ? s->shown : "");
}

static void run_table(const struct step *steps, int first_rank)
{
    struct fold *f = fold_create(MEMBERS, 0);

    assert_non_null(f);
    for (int i = 0; i < MEMBERS; i++)
        assert_int_equal(fold_join(f, i), 0);
    for (; steps->operation; steps++)
        take_step(f, steps, first_rank);
    fold_free(f);
}

static void test_all_print_alike(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 2, "a", NULL},
        {LINE, 1, 0, "a", NULL},
        {LINE, 1, 0, "b", NULL},
        {LINE, 2, 1, "a", NULL},
        {LINE, 2, 3, "a", "[ranks 8-11] a\n"},
        {LINE, 3, 3, "b", NULL},
        {LINE, 3, 1, "b", NULL},
        {LINE, 3, 2, "b", "[ranks 8-11] b\n"},
        {LINE, 4, 0, "", NULL},
        {LINE, 4, 1, "", NULL},
        {LINE, 4, 2, "", NULL},
        {LINE, 4, 3, "", "[ranks 8-11] \n"},
        {0},
    };

    run_table(steps, 8);
}

static void test_some_print_alike(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "a", NULL},
        {LINE, 50, 1, "other", NULL},
        {LINE, 60, 3, "a", NULL},
        {TICK, 199, 0, NULL, NULL},
        {TICK, 200, 0, NULL, "[ranks 0,3] a\n"},
        {TICK, 249, 0, NULL, NULL},
        {TICK, 250, 0, NULL, "[1]:other\n"},
        {LINE, 300, 0, "x", NULL},
        {LINE, 300, 1, "x", NULL},
        {LINE, 300, 3, "x", NULL},
        {FLUSH, 300, 0, NULL, "[ranks 0-1,3] x\n"},
        {0},
    };

    run_table(steps, 0);
}

/* Two ranks print two lines in different orders: one of the lines is shown twice. */
static void test_order_of_a_member_is_kept(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "first", NULL},
        {LINE, 10, 0, "a", NULL},
        {LINE, 10, 1, "a", NULL},
        {LINE, 10, 2, "a", NULL},
        {LINE, 10, 3, "a", NULL},
        {LINE, 11, 1, "first", NULL},
        {LINE, 199, 2, "b", NULL},
        {TICK, 200, 0, NULL, "[ranks 1-3] a\n[ranks 0-1] first\n"},
        {TICK, 209, 0, NULL, NULL},
        {TICK, 210, 0, NULL, "[0]:a\n"},
        {LINE, 399, 3, "b", NULL},
        {TICK, 399, 0, NULL, "[ranks 2-3] b\n"},
        {0},
    };

    run_table(steps, 0);
}

/* Lines of single ranks between equal ones. */
static void test_own_lines_between(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "same", NULL},
        {LINE, 0, 0, "own 0", NULL},
        {LINE, 0, 0, "end", NULL},
        {LINE, 0, 1, "same", NULL},
        {LINE, 0, 1, "own 1", NULL},
        {LINE, 0, 1, "end", NULL},
        {LINE, 50, 2, "same", NULL},
        {LINE, 50, 2, "own 2", NULL},
        {LINE, 50, 2, "end", NULL},
        {LINE, 60, 3, "same", "[ranks 0-3] same\n"},
        {LINE, 60, 3, "end", NULL},
        {TICK, 199, 0, NULL, NULL},
        {TICK, 200, 0, NULL, "[0]:own 0\n[1]:own 1\n[2]:own 2\n[ranks 0-3] end\n"},
        {0},
    };

    run_table(steps, 0);
}

/* All were printed at once, but the reader could not run for a second between the first and the second rank. */
static void test_reader_that_runs_late(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "a", NULL},
        {LINE, 1000, 1, "a", NULL},
        {LINE, 1000, 2, "a", NULL},
        {LINE, 1000, 3, "a", "[ranks 0-3] a\n"},
        {0},
    };

    run_table(steps, 0);
}

static void test_repeated_lines_are_not_one(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "a", NULL},
        {LINE, 0, 0, "a", NULL},
        {LINE, 0, 1, "a", NULL},
        {LINE, 0, 2, "a", NULL},
        {LINE, 0, 3, "a", "[ranks 0-3] a\n"},
        {FLUSH, 0, 0, NULL, "[0]:a\n"},
        {0},
    };

    run_table(steps, 0);
}

static void test_streams_are_not_mixed(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "a", NULL},
        {ERROR, 0, 1, "a", NULL},
        {FLUSH, 0, 0, NULL, "[0]:a\n[1]:a\n"},
        {0},
    };

    run_table(steps, 0);
}

/* Members that have left are not waited for, and what they have printed does not stand for the others. */
static void test_members_leave(void **state)
{
    static const struct step steps[] = {
        {LINE, 0, 0, "done", NULL},
        {LEAVE, 0, 0, NULL, NULL},
        {LINE, 1, 1, "done", NULL},
        {LINE, 1, 2, "done", NULL},
        {TICK, 2, 0, NULL, NULL},
        {LINE, 3, 3, "done", "[ranks 0-3] done\n"},
        {LINE, 4, 1, "x", NULL},
        {LINE, 4, 2, "x", NULL},
        {LEAVE, 4, 3, NULL, NULL},
        {TICK, 4, 0, NULL, "[ranks 1-2] x\n"},
        {0},
    };

    run_table(steps, 0);
}

static void test_due(void **state)
{
    struct fold *f = fold_create(MEMBERS, 0);
    const struct step step = {LINE, 7, 1, "a", NULL};

    assert_non_null(f);
    assert_true(fold_due_ns(f) == UINT64_MAX);
    assert_int_equal(fold_join(f, 0), 0);
    assert_int_equal(fold_join(f, 1), 0);
    take_step(f, &step, 0);
    assert_true(fold_due_ns(f) == 7 * MS + FOLD_WAIT_NS);
    fold_free(f);
}

/* Each of two streams of a member joins. */
static void test_member_with_two_streams(void **state)
{
    struct fold *f = fold_create(2, 0);
    static const struct step steps[] = {
        {LINE, 0, 0, "a", NULL},   {LEAVE, 0, 1, NULL, NULL},     {TICK, 0, 0, NULL, NULL},
        {LEAVE, 0, 1, NULL, NULL}, {TICK, 0, 0, NULL, "[0]:a\n"},
    };

    assert_non_null(f);
    assert_int_equal(fold_join(f, 0), 0);
    assert_int_equal(fold_join(f, 1), 0);
    assert_int_equal(fold_join(f, 1), 0);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        take_step(f, &steps[i], 0);
    fold_free(f);
}

static void test_bounds(void **state)
{
    static char text[FOLD_BYTES_MAX / 2];
    struct fold *f = fold_create(MEMBERS, 0);
    struct buf console = {0};

    assert_non_null(f);
    assert_int_equal(fold_join(f, 0), 0);
    assert_int_equal(fold_join(f, 1), 0);
    struct fold_line line = {.prefix = "", .text = "a", .n_bytes = 1};
    for (int i = 0; i < FOLD_LINES_MAX; i++)
        fold_add(f, &line, &console);
    assert_int_equal(buf_size(&console), 0);
    fold_add(f, &line, &console);
    expect_shown(&console, "a\n");
    fold_flush(f, &console);
    assert_int_equal(buf_size(&console), 2 * FOLD_LINES_MAX);
    buf_reset(&console);

    memset(text, 'x', sizeof(text));
    line = (struct fold_line){.prefix = "", .text = text, .n_bytes = sizeof(text)};
    fold_add(f, &line, &console);
    fold_add(f, &line, &console);
    assert_int_equal(buf_size(&console), 0);
    fold_add(f, &line, &console);
    assert_int_equal(buf_size(&console), sizeof(text) + 1);
    buf_reset(&console);
    fold_free(f);
}

/* A front learns of members in turn: lines are due, not complete, until all have joined. */
static void test_members_become_known(void **state)
{
    struct fold *f = fold_create(1, 3);
    static const struct step early[] = {{LINE, 0, 0, "a", NULL}, {LEAVE, 0, 0, NULL, NULL}, {0}},
                             late[] = {
                                 {LINE, 1, 7, "a", NULL},         {LINE, 1, 700, "a", "[ranks 0,7,700] a\n"},
                                 {LINE, 1, 7, "b", NULL},         {LEAVE, 1, 700, NULL, NULL},
                                 {TICK, 300, 0, NULL, "[7]:b\n"}, {0}};

    assert_non_null(f);
    assert_int_equal(fold_join(f, 0), 0);
    for (const struct step *s = early; s->operation; s++)
        take_step(f, s, 0);
    assert_int_equal(fold_join(f, 0), 0);
    assert_int_equal(fold_join(f, 700), 0);
    assert_int_equal(fold_join(f, 7), 0);
    for (const struct step *s = late; s->operation; s++)
        take_step(f, s, 0);
    fold_free(f);
}

static void test_many_members(void **state)
{
    struct fold *f = fold_create(130, 0);
    struct buf console = {0};

    assert_non_null(f);
    for (int i = 0; i < 130; i++)
        assert_int_equal(fold_join(f, i), 0);
    for (int i = 0; i < 130; i++) {
        assert_int_equal(buf_size(&console), 0);
        fold_add(f, &(struct fold_line){.member = i, .rank = i, .prefix = "", .text = "a", .n_bytes = 1},
                 &console);
    }
    expect_shown(&console, "[ranks 0-129] a\n");
    for (int i = 0; i < 130; i += 64)
        fold_add(f, &(struct fold_line){.member = i, .rank = i, .prefix = "", .text = "b", .n_bytes = 1},
                 &console);
    fold_flush(f, &console);
    expect_shown(&console, "[ranks 0,64,128] b\n");
    fold_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_print_alike),
        cmocka_unit_test(test_some_print_alike),
        cmocka_unit_test(test_order_of_a_member_is_kept),
        cmocka_unit_test(test_own_lines_between),
        cmocka_unit_test(test_reader_that_runs_late),
        cmocka_unit_test(test_repeated_lines_are_not_one),
        cmocka_unit_test(test_streams_are_not_mixed),
        cmocka_unit_test(test_members_leave),
        cmocka_unit_test(test_due),
        cmocka_unit_test(test_member_with_two_streams),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_members_become_known),
        cmocka_unit_test(test_many_members),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
