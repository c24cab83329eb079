/* Rules on lines: what matches is compared with the library's regexec(), which is right, and only slow. */

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/time.h"
#include "launcher/cli/line_rules.h"

#include "tests/support/c/cmocka_fixed.h"

static bool matches(const char *pattern, const char *line)
{
    char error[LINE_PATTERN_ERROR_SIZE];
    struct line_pattern p;

    if (!line_pattern_parse(&p, pattern, strlen(pattern), error))
        fail_msg("'%s': %s", pattern, error);
    return line_pattern_matches(&p, line, strlen(line));
}

static void lines_and_expressions(void **state)
{
    static const struct {
        const char *pattern, *line;
        bool is_match;
    } rows[] = {
        {"loss=(nan|inf)", "step 3 loss=nan", true},
        {"loss=(nan|inf)", "step 3 loss=0.3", false},
        {"^Xid", "NVRM: Xid 79", false},
        {"Xid (48|79|95)", "NVRM: Xid 79", true},
        {"[[:digit:]]{3,}ms", "took 1200ms", true},
        {"[[:digit:]]{3,}ms", "took 99ms", false},
        {"a\\.b", "axb", false},
        {"^$", "", true},
        {"^$", "x", false},
        {"", "anything", true},
        {"\xc3\xa9t\xc3\xa9", "un \xc3\xa9t\xc3\xa9", true},
        {"(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (matches(rows[i].pattern, rows[i].line) != rows[i].is_match)
            fail_msg("'%s' and '%s'", rows[i].pattern, rows[i].line);
}

static void the_same_as_the_library(void **state)
{
    static const char *const patterns[] = {
        "a",      "^a$",     "a|b",         "(a|b)*c", "a{2,3}$", "^(ab|c)+d?$",     "[^a-c]x",
        "(a*)*b", "a{0,2}b", "x{3}",        "\\.",     "(^a|b$)", "[[:digit:]]+m",   "[]a]",
        "[a-]",   "(a|)b",   "^(a|b){2,}$", ".*a.b",   "a?b+c*",  "((a|b)(c|d)?)+$", "a{2}{2}",
    };
    static const char bytes[] = "abcdx.-19m]s";

    srand(1);
    for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
        regex_t library;
        assert_int_equal(regcomp(&library, patterns[i], REG_EXTENDED | REG_NOSUB), 0);
        for (int k = 0; k < 3000; k++) {
            char line[12];
            int n = rand() % 9;
            for (int j = 0; j < n; j++)
                line[j] = bytes[rand() % (int)(sizeof(bytes) - 1)];
            line[n] = 0;
            if (matches(patterns[i], line) != (regexec(&library, line, 0, NULL, 0) == 0))
                fail_msg("'%s' and '%s'", patterns[i], line);
        }
        regfree(&library);
    }
}

/* Expressions for which backtracking takes exponential time. The bound is for a busy machine. */
static void no_expression_is_slow(void **state)
{
    static const char *const patterns[] = {"(a*)*b", "(a|aa)+$", "(a|a)*b", "a{0,60}a{60}b", "(.*)*x(.*)*y"};
    char line[LINE_PATTERN_LINE_MAX + 1];

    memset(line, 'a', sizeof(line) - 1);
    line[sizeof(line) - 1] = 0;
    uint64_t begin_ns = now_ns();
    for (size_t i = 0; i < ARRAY_SIZE(patterns); i++)
        (void)matches(patterns[i], line);
    assert_true(now_ns() - begin_ns < UINT64_C(5000000000));
}

static void rules(void **state)
{
    struct line_rules *r = calloc(1, sizeof(*r));
    char error[LINE_RULE_ERROR_SIZE];

    assert_non_null(r);
    assert_true(line_rules_add(r, "loss=nan=stop", error));
    assert_true(line_rules_add(r, "^warn=mark", error));
    assert_true(line_rules_add(r, "CUDA error=restart", error));
    assert_int_equal(r->items[0].action, LINE_STOP);
    assert_int_equal(line_rules_find(r, 0, "loss=nan", 8), 0);
    assert_int_equal(line_rules_find(r, 1, "loss=nan", 8), -1);
    assert_int_equal(line_rules_find(r, 0, "a CUDA error", 12), 2);
    static const struct {
        const char *text, *part;
    } wrong[] = {
        {"loss", "a rule is REGEX=stop"},   {"=stop", "a rule is"},
        {"loss=kill", "a rule is"},         {"(a=stop", "a ( has no )"},
        {"[a=stop", "a [ has no ]"},        {"*a=stop", "nothing in front"},
        {"a{2=stop", "between { and }"},    {"a{3,2}=stop", "between { and }"},
        {"a{99}=stop", "larger than 64"},   {"a{60}{60}=stop", "too long"},
        {"\\d=stop", "letter or digit"},    {"[b-a]=stop", "wrong way round"},
        {"[[:no:]]=stop", "no such class"}, {"a\\=stop", "nothing behind the last"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_false(line_rules_add(r, wrong[i].text, error));
        if (!strstr(error, wrong[i].part))
            fail_msg("'%s': '%s'", wrong[i].text, error);
    }
    while (r->n_items < LINE_RULES_MAX)
        assert_true(line_rules_add(r, "x=mark", error));
    assert_false(line_rules_add(r, "x=mark", error));
    free(r);
}

static void quotes(void **state)
{
    char out[LINE_QUOTE_SIZE], line[600];

    line_quote(out, "  a\tline \x1b[31m ", 15);
    assert_string_equal(out, "a line ?[31m");
    memset(line, 'x', sizeof(line));
    line_quote(out, line, sizeof(line));
    assert_int_equal(strlen(out), LINE_QUOTE_SIZE - 1);
    line_quote(out, "", 0);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_and_expressions),
        cmocka_unit_test(the_same_as_the_library),
        cmocka_unit_test(no_expression_is_slow),
        cmocka_unit_test(rules),
        cmocka_unit_test(quotes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
