/*
 * The parser of command lines: what a table of rows takes, stores and refuses.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/options.h"

#include "tests/support/c/cmocka_fixed.h"

struct target {
    bool flag, wants_second;
    const char *text;
    enum { FIRST, SECOND, THIRD } choice;
    int small, no_choice;
    uint64_t number, size;
    unsigned ms;
    const char *own;
    const char *words[3];
    int n_words;
};

static const char *take_own(void *member, const char *text)
{
    *(const char **)member = text;
    return strcmp(text, "bad") == 0 ? "good" : NULL;
}

static const char *check_text(void *member, const char *text)
{
    assert_ptr_equal(*(const char **)member, text); /* stored before */
    return *text ? NULL : "empty";
}

static int take_word(void *to, const char *word, char *error, size_t n)
{
    struct target *t = to;

    if (t->n_words == ARRAY_SIZE(t->words)) {
        (void)snprintf(error, n, "too many: %s", word);
        return OPTIONS_E_USAGE;
    }
    t->words[t->n_words++] = word;
    return 0;
}

#define AT(member) OPTION_AT(struct target, member)

static const struct option_spec specs[] = {
    {"flag", OPTION_FLAG, AT(flag), .letter = 'f', .help = "a flag"},
    {"wants-second", OPTION_CHOICE, AT(wants_second), .choices = "no yes", .placeholder = "no|yes",
     .help = "a choice in a bool"},
    {"a-text", OPTION_TEXT, AT(text), .placeholder = "TEXT", .fallback = "default", .take = check_text,
     .help = "a text"},
    {"choice", OPTION_CHOICE, AT(choice), .choices = "first second third", .placeholder = "NAME",
     .fallback = "second", .help = "an enum"},
    {"no-choice", OPTION_CHOICE, AT(no_choice), .choices = " first second", .placeholder = "NAME",
     .help = "0: none is given"},
    {"small", OPTION_NUMBER, AT(small), 3, INT32_MAX, "N", NULL, "a number in an int"},
    {"number", OPTION_NUMBER, AT(number), 0, UINT64_MAX, "N", "7", "a number"},
    {"size", OPTION_SIZE, AT(size), 1024, UINT64_C(1) << 40, "SIZE", "64K", "a size"},
    {"time", OPTION_SECONDS, AT(ms), 1, INT32_MAX, "SECONDS", "0.25", "a time"},
    {"own", OPTION_OWN, AT(own), .placeholder = "X", .take = take_own, .help = "read by the program"},
    {"old", OPTION_GONE, .help = "use --own"},
    OPTION_ROWS_OF_ALL,
};

static const struct option_table table = {
    .commands = "program alias",
    .page = "program(1)",
    .specs = specs,
    .n = ARRAY_SIZE(specs),
    .take_word = take_word,
    .usage = "usage: program\n",
};

static struct target target;
static char error[256];

/* Up to four words behind the program's name. */
static int parse_with(const struct option_table *t, const char *const words[4])
{
    const char *argv[6] = {"program"};

    for (int i = 0; i < 4 && words[i]; i++)
        argv[i + 1] = words[i];
    target = (struct target){0};
    error[0] = '\0';
    return option_table_parse(t, (char *const *)(uintptr_t)argv, &target, error, sizeof(error));
}

static int parse(const char *const words[4])
{
    return parse_with(&table, words);
}

static void test_defaults(void **state)
{
    assert_int_equal(parse((const char *[4]){NULL}), 0);
    assert_false(target.flag);
    assert_string_equal(target.text, "default");
    assert_int_equal(target.choice, SECOND);
    assert_true(target.number == 7 && target.size == 65536 && target.ms == 250 && target.small == 0);
    assert_null(target.own);
}

static void test_no_name_of_the_program(void **state)
{
    assert_int_equal(option_table_parse(&table, (char *const[]){NULL}, &target, error, sizeof(error)), 0);
}

static void test_stored_values(void **state)
{
    static const struct {
        const char *words[4];
        size_t offset, size;
        uint64_t value;
    } rows[] = {
        {{"--flag"}, AT(flag), 1},
        {{"-f"}, AT(flag), 1},
        {{"--wants-second=yes"}, AT(wants_second), 1},
        {{"--wants_second", "no"}, AT(wants_second), 0},
        {{"--choice", "third"}, AT(choice), THIRD},
        {{"--choice=third", "--choice=first"}, AT(choice), FIRST},
        {{"--no-choice", "second"}, AT(no_choice), 2},
        {{"--flag"}, AT(no_choice), 0},
        {{"--small", "3"}, AT(small), 3},
        {{"--small=2147483647"}, AT(small), INT32_MAX},
        {{"--number=18446744073709551615"}, AT(number), UINT64_MAX},
        {{"--size", "1K"}, AT(size), 1024},
        {{"--size", "3M"}, AT(size), 3 << 20},
        {{"--size", "1024G"}, AT(size), UINT64_C(1) << 40},
        {{"--size", "5000"}, AT(size), 5000},
        {{"--time", "2"}, AT(ms), 2000},
        {{"--time", "1.5s"}, AT(ms), 1500},
        {{"--time", "0.0014"}, AT(ms), 1},
        {{"--time", "1.9996"}, AT(ms), 2000},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t value = 0;

        if (parse(rows[i].words) != 0)
            fail_msg("%s: %s", rows[i].words[0], error);
        memcpy(&value, (const char *)&target + rows[i].offset,
               rows[i].size); /* little endian, as all that is tested */
        if (value != rows[i].value)
            fail_msg("%s: %llu", rows[i].words[0], (unsigned long long)value);
    }
}

static void test_texts_and_words(void **state)
{
    assert_int_equal(parse((const char *[4]){"one", "--a-text", "--flag", "two"}), 0);
    assert_string_equal(target.text, "--flag"); /* the next word, whatever it is */
    assert_false(target.flag);
    assert_int_equal(target.n_words, 2);
    assert_string_equal(target.words[1], "two");
    assert_int_equal(parse((const char *[4]){"--own=a=b", "--", "--flag", "-"}), 0);
    assert_string_equal(target.own, "a=b");
    assert_false(target.flag);
    assert_string_equal(target.words[0], "--flag");
    assert_string_equal(target.words[1], "-");
    assert_int_equal(parse((const char *[4]){"a", "b", "c", "d"}), OPTIONS_E_USAGE);
    assert_string_equal(error, "too many: d");
}

static void test_refused(void **state)
{
    static const struct {
        const char *words[4];
        const char *error;
    } rows[] = {
        {{"--nonsense"}, "unknown option '--nonsense'"},
        {{"--nubmer=1"}, "unknown option '--nubmer=1'; did you mean --number?"},
        {{"--numbe"}, "unknown option '--numbe'; did you mean --number?"}, /* names are written out */
        {{"--Number=1"}, "unknown option '--Number=1'; did you mean --number?"},
        {{"-x"}, "unknown option '-x'"},
        {{"-ff"}, "unknown option '-ff'"},
        {{"-flag"}, "unknown option '-flag'; did you mean --flag?"},
        {{"---flag"}, "unknown option '---flag'; did you mean --flag?"},
        {{"--=1"}, "unknown option '--=1'"},
        {{"--flag=1"}, "--flag=1: the option takes no value"},
        {{"--a-text"}, "a value is missing behind --a-text TEXT"},
        {{"--a-text="}, "--a-text : not empty"},
        {{"--choice", "fourth"}, "--choice fourth: not first, second or third"},
        {{"--choice", "firs"}, "--choice firs: not first, second or third"},
        {{"--choice", "first second"}, "--choice first second: not first, second or third"},
        {{"--choice="}, "--choice : not first, second or third"},
        {{"--no-choice="}, "--no-choice : not first or second"},
        {{"--no-choice", " "}, "--no-choice  : not first or second"},
        {{"--wants-second", "1"}, "--wants-second 1: not no or yes"},
        {{"--small", "2"}, "--small 2: not a whole number from 3 to 2147483647"},
        {{"--small", "2147483648"}, "--small 2147483648: not a whole number from 3 to 2147483647"},
        {{"--number", "-1"}, "--number -1: not a whole number from 0 to 18446744073709551615"},
        {{"--number", "18446744073709551616"},
         "--number 18446744073709551616: not a whole number from 0 to 18446744073709551615"},
        {{"--number", "1K"}, "--number 1K: not a whole number from 0 to 18446744073709551615"},
        {{"--number", " 1"}, "--number  1: not a whole number from 0 to 18446744073709551615"},
        {{"--size", "1"}, "--size 1: not a size (K, M, G are allowed) from 1K to 1024G"},
        {{"--size", "1T"}, "--size 1T: not a size (K, M, G are allowed) from 1K to 1024G"},
        {{"--size", "1KK"}, "--size 1KK: not a size (K, M, G are allowed) from 1K to 1024G"},
        {{"--size", "18446744073709551615G"},
         "--size 18446744073709551615G: not a size (K, M, G are allowed) from 1K to 1024G"},
        {{"--size", "17179869185G"}, /* 1G after 64 bits */
         "--size 17179869185G: not a size (K, M, G are allowed) from 1K to 1024G"},
        {{"--time", "0"}, "--time 0: not a time in seconds from 0.001 to 2147483.647"},
        {{"--time", ".5"}, "--time .5: not a time in seconds from 0.001 to 2147483.647"},
        {{"--time", "1ss"}, "--time 1ss: not a time in seconds from 0.001 to 2147483.647"},
        {{"--time", "99999999999999999999"},
         "--time 99999999999999999999: not a time in seconds from 0.001 to 2147483.647"},
        {{"--own", "bad"}, "--own bad: not good"},
        {{"--old=1"}, "--old is gone: use --own"},
        {{"--old"}, "--old is gone: use --own"},
        {{"--flag", "--nonsense", "--help"}, "unknown option '--nonsense'"}, /* the first one counts */
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int r = parse(rows[i].words);

        if (r != OPTIONS_E_USAGE || strcmp(error, rows[i].error) != 0)
            fail_msg("%s: %d \"%s\"", rows[i].words[0], r, error);
    }
}

static void test_sentence_that_is_cut(void **state)
{
    char word[600] = "--", small[16];

    memset(word + 2, 'x', sizeof(word) - 3);
    assert_int_equal(parse((const char *[4]){word}), OPTIONS_E_USAGE);
    assert_int_equal(strlen(error), sizeof(error) - 1);
    const char *argv[] = {"program", "--old", NULL};
    assert_int_equal(
        option_table_parse(&table, (char *const *)(uintptr_t)argv, &target, small, sizeof(small)),
        OPTIONS_E_USAGE);
    assert_string_equal(small, "--old is gone: ");
}

static void test_no_other_words(void **state)
{
    struct option_table without = table;

    without.take_word = NULL;
    assert_int_equal(parse_with(&without, (const char *[4]){"file"}), OPTIONS_E_USAGE);
    assert_string_equal(error, "file: there are options only");
}

static void test_answers(void **state)
{
    static const struct {
        const char *words[4];
        int result;
        const char *text;
    } rows[] = {
        {{"--version", "--nonsense"}, OPTIONS_E_VERSION, "program 1.2\n"},
        {{"-h"}, OPTIONS_E_HELP, "  --time SECONDS              a time (0.25)\n"},
        {{"--help"}, OPTIONS_E_HELP, "  -f, --flag                  a flag\n"},
        {{"--print-completion", "bash"}, OPTIONS_E_COMPLETION, "-F _program program alias\n"},
        {{"--print-completion=zsh"}, OPTIONS_E_COMPLETION + 1, "#compdef program alias\n"},
        {{"--print_completion=tcsh"}, OPTIONS_E_COMPLETION + 2, "'n/--choice/(first second third)/'"},
        {{"--print-completion", "fish"}, OPTIONS_E_COMPLETION + 3, "-l choice -x -a 'first second third'"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int r = parse(rows[i].words);

        assert_int_equal(r, rows[i].result);
        char *text = option_table_answer(&table, r, "1.2");
        if (!text || !strstr(text, rows[i].text) || strstr(text, "--old"))
            fail_msg("%s: %s", rows[i].words[0], text ? text : "(none)");
        free(text);
    }
    assert_int_equal(parse((const char *[4]){"--print-completion", "sh"}), OPTIONS_E_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_no_name_of_the_program),
        cmocka_unit_test(test_stored_values),  cmocka_unit_test(test_texts_and_words),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_sentence_that_is_cut),
        cmocka_unit_test(test_no_other_words), cmocka_unit_test(test_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
