/* Output in pieces, said; lines with prefixes, answered. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/output/line_prefix.h"
#include "launcher/util/strlist.h"
#include "base/buf.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static void expect_buf(const struct buf *b, const char *expected)
{
    assert_int_equal(buf_size(b), strlen(expected));
    if (*expected)
        assert_memory_equal(buf_bytes(b), expected, strlen(expected));
}

static void test_take(void **state)
{
    static const struct {
        const char *data;
        bool final;
        size_t taken;
        const char *console;
    } cases[] = {
        {"a\nb\n", false, 4, "p:a\np:b\n"},
        {"a\nb", false, 2, "p:a\n"},
        {"a\nb", true, 3, "p:a\np:b\n"},
        {"a", false, 0, ""},
        {"", true, 0, ""},
        {"\n\n", false, 2, "p:\np:\n"},
        {"a\rb\n", false, 4, "p:a\np:b\n"},
        {"a\r\nb\n", false, 5, "p:a\np:b\n"},
        {"a\r", false, 0, ""}, /* an LF may follow */
        {"a\r", true, 2, "p:a\n"},
        {"a\n\rb\n", false, 5, "p:a\np:\np:b\n"},
    };
    const struct line_prefix lines = {.prefix = "p:"};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf console = {0};
        ptrdiff_t taken =
            line_prefix_take(&lines, cases[i].data, strlen(cases[i].data), cases[i].final, &console, NULL);
        assert_int_equal(taken, cases[i].taken);
        expect_buf(&console, cases[i].console);
        buf_finish(&console);
    }
}

/* A line that is too long is broken between characters. */
static void test_break_between_characters(void **state)
{
    static const struct {
        const char *end; /* of the first LINES_PIECE bytes */
        size_t n_left;   /* for the next piece */
    } cases[] = {
        {"a", 0},
        {"\xC3\xA9", 0},
        {"\xC3", 1},
        {"\xE2\x82\xAC", 0},
        {"\xE2\x82", 2},
        {"a\xE2", 1},
        {"\xF0\x9F\x98\x80", 0},
        {"\xF0\x9F\x98", 3},
        {"\x80\x80\x80\x80\x80", 0}, /* no text */
    };
    const struct line_prefix lines = {.prefix = ""};
    char *data = malloc(LINES_PIECE);

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf console = {0};
        memset(data, 'x', LINES_PIECE);
        memcpy(data + LINES_PIECE - strlen(cases[i].end), cases[i].end, strlen(cases[i].end));
        assert_int_equal(line_prefix_take(&lines, data, LINES_PIECE, false, &console, NULL),
                         LINES_PIECE - cases[i].n_left);
        buf_reset(&console);
        assert_int_equal(line_prefix_take(&lines, data, LINES_PIECE, true, &console, NULL), LINES_PIECE);
        buf_finish(&console);
    }
    free(data);
}

static void count_match(void *data, const char *line, size_t n)
{
    *(int *)data += memmem(line, n, "CUDA error", 10) != NULL;
}

/* A rule finds its text where a long line was broken, and not where a line ended. */
static void test_rules_see_across_a_break(void **state)
{
    int n_matches = 0;
    struct line_seam seam = {0};
    struct line_prefix lines = {.prefix = "", .on_line = count_match, .data = &n_matches, .seam = &seam};
    char *data = malloc(LINES_PIECE);
    struct buf console = {0};

    memset(data, 'x', LINES_PIECE);
    memcpy(data + LINES_PIECE - 6, "CUDA e", 6);
    assert_int_equal(line_prefix_take(&lines, data, LINES_PIECE, false, &console, NULL), LINES_PIECE);
    assert_int_equal(n_matches, 0);
    assert_int_equal(line_prefix_take(&lines, "rror: here\n", 11, false, &console, NULL), 11);
    assert_int_equal(n_matches, 1);
    assert_int_equal(line_prefix_take(&lines, "CUDA e\n", 7, false, &console, NULL), 7);
    assert_int_equal(line_prefix_take(&lines, "rror\n", 5, false, &console, NULL), 5);
    assert_int_equal(n_matches, 1);
    buf_finish(&console);
    free(data);
}

struct bar {
    struct line_prefix lines;
    struct buf waiting, console, filtered;
};

static void write_bar(struct bar *b, uint64_t now_ns, const char *text, bool final)
{
    b->lines.now_ns = now_ns;
    assert_int_equal(buf_append(&b->waiting, text, strlen(text)), 0);
    ptrdiff_t taken = line_prefix_take(&b->lines, (const char *)buf_bytes(&b->waiting), buf_size(&b->waiting),
                                       final, &b->console, &b->filtered);
    assert_true(taken >= 0);
    buf_consume(&b->waiting, (size_t)taken);
}

/* As tqdm writes it, with the CR before each state, ten states a second. */
static void test_progress_bar_is_shown_once_a_second(void **state)
{
    uint64_t due_ns = 0;
    struct strlist filter = {0};
    struct bar bar = {
        .lines = {.prefix = "p:", .prefix_plain = "", .filter = &filter, .redraw_due_ns = &due_ns}};
    char text[32];

    strlist_add_copy(&filter, "7%");
    for (int i = 0; i < 30; i++) {
        (void)snprintf(text, sizeof(text), "\r%d%%", i);
        write_bar(&bar, UINT64_C(5000000000) + (uint64_t)i * 100000000, text, false);
    }
    write_bar(&bar, UINT64_C(8000000000), "\ndone\n", false);
    write_bar(&bar, UINT64_C(8000000001), "last\r", true);
    expect_buf(&bar.console, "p:0%\np:10%\np:20%\np:29%\np:done\np:last\n");
    expect_buf(&bar.filtered, "7%\n17%\n27%\n");
    buf_finish(&bar.waiting);
    buf_finish(&bar.console);
    buf_finish(&bar.filtered);
    strlist_finish(&filter);
}

static void test_long_line_is_broken(void **state)
{
    const struct line_prefix lines = {.prefix = "p:"};
    char *data = malloc(LINES_PIECE);
    struct buf console = {0};

    assert_non_null(data);
    memset(data, 'x', LINES_PIECE);
    assert_int_equal(line_prefix_take(&lines, data, LINES_PIECE - 1, false, &console, NULL), 0);
    assert_int_equal(line_prefix_take(&lines, data, LINES_PIECE, false, &console, NULL), LINES_PIECE);
    assert_int_equal(buf_size(&console), 2 + LINES_PIECE + 1);
    buf_finish(&console);
    free(data);
}

static void test_filter(void **state)
{
    struct strlist filter = {0};
    struct buf console = {0}, filtered = {0};

    strlist_add_copy(&filter, "apple");
    strlist_add_copy(&filter, "pear");
    const struct line_prefix lines = {.prefix = "\033[31mp:", .prefix_plain = "p:", .filter = &filter};
    const char data[] = "an apple\na plum\npears\n";
    assert_int_equal(line_prefix_take(&lines, data, strlen(data), false, &console, &filtered), strlen(data));
    expect_buf(&filtered, "p:an apple\np:pears\n");
    buf_finish(&console);
    buf_finish(&filtered);
    strlist_finish(&filter);
}

/* However a text is cut into pieces, the lines are the same, and each byte is shown once. */
static void test_any_cut(void **state)
{
    static const char text[] = "one\r\ntwo\rthree\n\r\n\rfour\n\nfive";
    const struct line_prefix lines = {.prefix = ">"};

    for (size_t cut = 0; cut < (1u << 12); cut++) {
        struct buf console = {0}, waiting = {0};
        for (size_t i = 0; i < strlen(text); i++) {
            assert_int_equal(buf_append(&waiting, text + i, 1), 0);
            bool final = i + 1 == strlen(text);
            if (!final && !(cut >> (i % 12) & 1))
                continue;
            ptrdiff_t taken = line_prefix_take(&lines, (const char *)buf_bytes(&waiting), buf_size(&waiting),
                                               final, &console, NULL);
            assert_true(taken >= 0);
            buf_consume(&waiting, (size_t)taken);
        }
        assert_int_equal(buf_size(&waiting), 0);
        expect_buf(&console, ">one\n>two\n>three\n>\n>\n>four\n>\n>five\n");
        buf_finish(&console);
        buf_finish(&waiting);
    }
}

static void test_prefix(void **state)
{
    static const struct {
        const char *template, *prefix;
    } cases[] = {
        {"[${role_name}${local_rank}]:", "[trainer3]:"},
        {"${rank}@${host} ", "11@node7 "},
        {"${rank", "${rank"},
        {"$rank ${x} $$", "11 ${x} $"},
        {"${hostname}:$local_rank: ", "node7:3: "},
        {"", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *prefix = line_prefix_prefix(cases[i].template, "trainer", 3, 11, "node7");
        assert_string_equal(prefix, cases[i].prefix);
        free(prefix);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_break_between_characters),
        cmocka_unit_test(test_rules_see_across_a_break),
        cmocka_unit_test(test_progress_bar_is_shown_once_a_second),
        cmocka_unit_test(test_long_line_is_broken),
        cmocka_unit_test(test_filter),
        cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_prefix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
