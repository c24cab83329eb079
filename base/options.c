#include "base/options.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/decimal.h"
#include "base/format.h"

enum { NAME_SIZE = OPTION_NAME_SIZE, EXPECTED_SIZE = 160 };

enum {
    PREFIX_MIN = 6,   /* a shorter word with a slip is close to the beginning of too many options */
    DISTANCE_MAX = 2, /* more edits are no slip of the finger */
};

/* ---- did you mean ---- */

int option_edit_distance(const char *a, size_t n_a, const char *b)
{
    int row[NAME_SIZE];
    size_t n_b = strlen(b);

    if (n_a >= NAME_SIZE || n_b >= NAME_SIZE)
        return NAME_SIZE;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int diagonal = row[0];

        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            bool same = a[i - 1] == b[j - 1] || (a[i - 1] == '_' && b[j - 1] == '-');
            int best = diagonal + !same;

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n_b];
}

/* How far a word is from an option's name, or from a prefix of the name as long as the word: prefixes are
 * options, too. */
static int distance_to(const char *word, size_t n, char name[NAME_SIZE])
{
    int whole = option_edit_distance(word, n, name);

    if (strlen(name) <= n)
        return whole;
    name[n] = '\0';
    int part = n < PREFIX_MIN ? NAME_SIZE : option_edit_distance(word, n, name);
    return part < whole ? part : whole;
}

const struct option_spec *option_next(const struct option_table *t, const struct option_spec *o)
{
    for (o = o ? o + 1 : t->specs; o < t->specs + t->n; o++)
        if (o->kind != OPTION_GONE)
            return o;
    return NULL;
}

const struct option_spec *option_nearest(const struct option_table *t, const char *word)
{
    const struct option_spec *best = NULL;
    int best_distance = DISTANCE_MAX + 1;
    size_t n = strcspn(word, "=");

    for (const struct option_spec *o = option_next(t, NULL); o; o = option_next(t, o)) {
        char name[NAME_SIZE];

        (void)snprintf(name, sizeof(name), "--%s", o->name); /* names in a table are short */
        int distance = distance_to(word, n, name);
        if (distance < best_distance && 3 * distance <= (int)n) {
            best = o;
            best_distance = distance;
        }
    }
    return best;
}

/* ---- values ---- */

int option_choice(const char *choices, const char *word, size_t n)
{
    int i = 0;

    for (const char *c = choices; n && *c; c += strcspn(c, " "), c += *c == ' ', i++)
        if (strcspn(c, " ") == n && strncmp(c, word, n) == 0)
            return i;
    return -1;
}

bool option_scan_size(const char **text, uint64_t max, uint64_t *ret)
{
    static const char units[] = "KMG";
    const char *at = *text;

    if (!decimal_scan(&at, max, ret))
        return false;
    const char *unit = *at ? strchr(units, *at) : NULL;
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (*ret > max >> shift)
        return false;
    *ret <<= shift;
    *text = at + (unit != NULL);
    return true;
}

/* Digits, perhaps a fraction (rounded to milliseconds), perhaps an "s". */
static bool scan_ms(const char **text, uint64_t *ret_ms)
{
    uint64_t seconds, tenths_of_ms = 0;
    const char *at = *text;

    if (!decimal_scan(&at, INT_MAX / 1000, &seconds))
        return false;
    if (*at == '.') {
        at++;
        for (unsigned unit = 1000; *at >= '0' && *at <= '9'; at++, unit /= 10)
            tenths_of_ms += (uint64_t)(*at - '0') * unit;
    }
    *text = at + (*at == 's');
    *ret_ms = seconds * 1000 + (tenths_of_ms + 5) / 10;
    return true;
}

/* Reads the number of a value. */
static bool read_value(const struct option_spec *o, const char *text, uint64_t *ret)
{
    bool ok;

    switch (o->kind) {
    case OPTION_FLAG:
        *ret = 1;
        return true;
    case OPTION_CHOICE:
        *ret = (uint64_t)option_choice(o->choices, text, strlen(text));
        return *ret != UINT64_MAX;
    case OPTION_SECONDS:
        ok = scan_ms(&text, ret);
        break;
    case OPTION_SIZE:
        ok = option_scan_size(&text, UINT64_MAX, ret);
        break;
    default:
        ok = decimal_scan(&text, UINT64_MAX, ret);
    }
    return ok && *text == '\0' && *ret >= o->min && *ret <= o->max;
}

static void store_value(const struct option_spec *o, uint64_t value, void *member)
{
    assert(o->size <= 1 || o->size == sizeof(uint32_t) || o->size == sizeof(uint64_t));

    if (o->size == 1)
        *(uint8_t *)member = (uint8_t)value;
    else if (o->size == sizeof(uint32_t))
        *(uint32_t *)member = (uint32_t)value;
    else if (o->size == sizeof(uint64_t))
        *(uint64_t *)member = value;
}

/* Prints the value in the largest unit that divides the value. */
static void format_value(const struct option_spec *o, uint64_t value, char *text, size_t n)
{
    unsigned unit = 0;

    if (o->kind == OPTION_SECONDS) {
        (void)snprintf(text, n, "%.10g", (double)value / 1000);
        return;
    }
    while (o->kind == OPTION_SIZE && unit < 3 && value > 0 && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(text, n, "%llu%.*s", (unsigned long long)value, unit > 0, &" KMG"[unit]);
}

/* "a, b or c", or the kind of number and its bounds. */
static const char *describe_values(const struct option_spec *o, char out[EXPECTED_SIZE])
{
    char min[32], max[32];
    size_t at = 0;

    const char *c = o->kind == OPTION_CHOICE ? o->choices + strspn(o->choices, " ") : "";
    while (*c && at < EXPECTED_SIZE) {
        size_t n = strcspn(c, " ");
        const char *next = c + n + (c[n] == ' ');
        const char *between = !*next ? "" : strchr(next, ' ') ? ", " : " or ";

        at += (size_t)snprintf(out + at, EXPECTED_SIZE - at, "%.*s%s", (int)n, c, between);
        c = next;
    }
    if (o->kind == OPTION_CHOICE)
        return out;
    format_value(o, o->min, min, sizeof(min));
    format_value(o, o->max, max, sizeof(max));
    (void)snprintf(out, EXPECTED_SIZE, "a %s from %s to %s", /* fits */
                   o->kind == OPTION_SECONDS ? "time in seconds"
                   : o->kind == OPTION_SIZE  ? "size (K, M, G are allowed)"
                                             : "whole number",
                   min, max);
    return out;
}

/* NULL, or the expected kind of value. */
static const char *take_value(const struct option_spec *o, const char *text, void *to,
                              char expected[EXPECTED_SIZE])
{
    void *member = (char *)to + o->offset;
    uint64_t value;

    if (o->kind == OPTION_TEXT && o->size > 0)
        *(const char **)member = text;
    else if (o->kind != OPTION_TEXT && o->kind != OPTION_OWN) {
        if (!read_value(o, text, &value))
            return describe_values(o, expected);
        store_value(o, value, member);
    }
    return o->take ? o->take(member, text) : NULL;
}

/* ---- words ---- */

struct option_parser {
    const struct option_table *table;
    char *const *next; /* word to look at */
    void *to;
    char *error;
    size_t error_size;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct option_parser *p, const char *format, ...)
{
    (void)format_arguments(p->error, p->error_size, format); /* a cut sentence is still the best there is */
    return OPTIONS_E_USAGE;
}

/* Underscores of the word are dashes. */
static bool is_name(const char *name, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!name[i] || name[i] != (word[i] == '_' ? '-' : word[i]))
            return false;
    return name[n] == '\0';
}

static const struct option_spec *find_option(const struct option_table *t, const char *word)
{
    bool is_letter = word[1] != '-' && word[1] && !word[2];
    size_t n = strcspn(word, "=");

    for (const struct option_spec *o = t->specs; o < t->specs + t->n; o++)
        if (is_letter ? o->letter == word[1] : word[1] == '-' && is_name(o->name, word + 2, n - 2))
            return o;
    return NULL;
}

static int refuse_unknown(struct option_parser *p, const char *word)
{
    const struct option_spec *meant = option_nearest(p->table, word);

    return refuse(p, "unknown option '%s'%s%s%s", word, meant ? "; did you mean --" : "",
                  meant ? meant->name : "", meant ? "?" : "");
}

static int take_found(struct option_parser *p, const struct option_spec *o, const char *value)
{
    char expected[EXPECTED_SIZE];

    if (o->kind == OPTION_GONE)
        return refuse(p, "--%s is gone: %s", o->name, o->help);
    if (o->kind == OPTION_FLAG && value)
        return refuse(p, "--%s=%s: the option takes no value", o->name, value);
    if (o->kind != OPTION_FLAG && !value)
        value = *p->next ? *p->next++ : NULL;
    if (o->kind != OPTION_FLAG && !value)
        return refuse(p, "a value is missing behind --%s%s%s", o->name, o->placeholder ? " " : "",
                      o->placeholder ? o->placeholder : "");
    const char *wrong = take_value(o, value, p->to, expected);
    if (wrong)
        return refuse(p, "--%s %s: not %s", o->name, value, wrong);
    return value && o->ends == OPTIONS_E_COMPLETION
               ? o->ends + option_choice(o->choices, value, strlen(value))
               : o->ends;
}

static int take_other_word(struct option_parser *p, const char *word)
{
    if (p->table->take_word)
        return p->table->take_word(p->to, word, p->error, p->error_size);
    return refuse(p, "%s: there are options only", word);
}

static int take_next_word(struct option_parser *p, bool *has_ended)
{
    const char *word = *p->next++;

    if (*has_ended || word[0] != '-' || !word[1])
        return take_other_word(p, word);
    *has_ended = strcmp(word, "--") == 0;
    if (*has_ended)
        return 0;
    const struct option_spec *o = find_option(p->table, word);
    const char *value = word[1] == '-' ? strchr(word, '=') : NULL;
    return o ? take_found(p, o, value ? value + 1 : NULL) : refuse_unknown(p, word);
}

int option_table_parse(const struct option_table *t, char *const argv[], void *to, char *error, size_t n)
{
    struct option_parser p = {t, argv[0] ? argv + 1 : argv, to, error, n};
    char expected[EXPECTED_SIZE];
    bool has_ended = false;
    int r = 0;

    error[0] = '\0';
    for (const struct option_spec *o = option_next(t, NULL); o; o = option_next(t, o)) {
        const char *wrong = o->fallback ? take_value(o, o->fallback, to, expected) : NULL;
        assert(!wrong); /* the table's own text */
        (void)wrong;
    }
    while (r == 0 && *p.next)
        r = take_next_word(&p, &has_ended);
    return r;
}
