/*
 * A list is names between commas that are not in brackets. Reading goes name by name: its brackets are
 * measured once, and then counted through like the digits of a number, the last bracket fastest. Nothing is allocated, and a name is formed only when it is asked for,
 * so a list of a million hosts costs no more than its text.
 */

#include "launcher/cli/hostlist.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS_MAX = 9 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Characters of host names; all others are syntax or a mistake. */
static bool is_in_name(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
           c == '_';
}

/* ---- brackets ---- */

struct range {
    uint32_t first, last;
    int width; /* digits of the first as it is written */
};

static bool read_number(const char **at, uint32_t *ret, int *ret_width)
{
    uint32_t value = 0;
    int width = 0;

    for (; is_digit(**at); (*at)++) {
        if (++width > DIGITS_MAX)
            return false;
        value = value * 10 + (uint32_t)(**at - '0');
    }
    *ret = value;
    *ret_width = width;
    return width > 0;
}

/* FIRST or FIRST-LAST */
static bool read_range(const char **at, struct range *range)
{
    int width;

    if (!read_number(at, &range->first, &range->width))
        return false;
    range->last = range->first;
    if (**at != '-')
        return true;
    (*at)++;
    return read_number(at, &range->last, &width) && range->last >= range->first;
}

/* *at is behind "["; afterwards behind "]". The number of its elements; 0: it is none, or has too many. */
static size_t measure_bracket(const char **at)
{
    size_t n = 0;

    for (;;) {
        struct range range;

        if (!read_range(at, &range))
            return 0;
        n += range.last - range.first + 1;
        if (n > HOSTLIST_MAX)
            return 0;
        if (*(*at)++ == ']')
            return n;
        if ((*at)[-1] != ',')
            return 0;
    }
}

/* Prints element number `number` of a bracket. *at is behind its "[", and afterwards behind its "]". */
static int print_element(const char **at, size_t number, char *out, size_t size)
{
    struct range range = {0};
    int n = 0;

    for (;;) {
        (void)read_range(at, &range); /* measured before: it is one */
        if (n == 0 && number <= range.last - range.first)
            n = snprintf(out, size, "%0*u", range.width, range.first + (uint32_t)number);
        number -= range.last - range.first + 1; /* wraps once it was found; not looked at then */
        if (*(*at)++ == ']')
            return n;
    }
}

/* ---- names ---- */

/* The next letter or bracket of the name at *at. False: neither. */
static bool measure_part(struct hostlist_reader *r, const char **at, size_t *n_hosts, size_t *n_letters)
{
    size_t n;

    if (is_in_name(*(*at)++)) {
        (*n_letters)++;
        return true;
    }
    if ((*at)[-1] != '[' || r->n_brackets == HOSTLIST_BRACKETS_MAX)
        return false;
    n = measure_bracket(at);
    if (n == 0 || *n_hosts * n > HOSTLIST_MAX)
        return false;
    *n_hosts *= n;
    r->n[r->n_brackets] = n;
    r->at[r->n_brackets++] = 0;
    return true;
}

/* Measures the name at text. Its number of hosts, and where it ends; 0: it is none. */
static size_t measure_name(struct hostlist_reader *r, const char *text)
{
    const char *at = text;
    size_t n_hosts = 1, n_letters = 0;

    r->text = text;
    r->n_brackets = 0;
    while (*at && *at != ',')
        if (!measure_part(r, &at, &n_hosts, &n_letters))
            return 0;
    r->next = at;
    /* It fits whatever the numbers are. */
    return at > text && n_letters + DIGITS_MAX * HOSTLIST_BRACKETS_MAX < HOSTLIST_NAME_SIZE ? n_hosts : 0;
}

static void print_name(const struct hostlist_reader *r, char name[HOSTLIST_NAME_SIZE])
{
    const char *at = r->text;
    size_t n = 0;

    for (int bracket = 0; at < r->next;) {
        char c = *at++;

        if (c != '[')
            name[n++] = c;
        else {
            n += (size_t)print_element(&at, r->at[bracket], name + n, HOSTLIST_NAME_SIZE - n);
            bracket++;
        }
    }
    name[n] = '\0';
}

/* To the name's next host; false: that was its last. */
static bool advance(struct hostlist_reader *r)
{
    for (int i = r->n_brackets - 1; i >= 0; i--) {
        if (++r->at[i] < r->n[i])
            return true;
        r->at[i] = 0;
    }
    return false;
}

/* All of it, without printing a name. -1: it is no list. */
int hostlist_count(const char *text)
{
    struct hostlist_reader r;
    size_t total = 0;

    for (;;) {
        size_t n = measure_name(&r, text);

        total += n;
        if (n == 0 || total > HOSTLIST_MAX)
            return -1;
        if (!*r.next)
            return (int)total;
        text = r.next + 1;
    }
}

bool hostlist_begin(struct hostlist_reader *r, const char *text)
{
    int n = hostlist_count(text);

    if (n < 0)
        return false;
    *r = (struct hostlist_reader){.n_left = (size_t)n};
    (void)measure_name(r, text); /* it is one */
    return true;
}

bool hostlist_next(struct hostlist_reader *r, char name[HOSTLIST_NAME_SIZE])
{
    if (r->n_left == 0)
        return false;
    print_name(r, name);
    r->n_left--;
    if (!advance(r) && r->n_left > 0)
        (void)measure_name(r, r->next + 1); /* it is one */
    return true;
}
