#include "launcher/front/common_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"

static const char *skip_head(const char *line, bool *ret_is_crun)
{
    static const char head[] = "crun: ";
    int n_time = 0;

    *ret_is_crun = strncmp(line, head, sizeof(head) - 1) == 0;
    if (!*ret_is_crun)
        return line;
    line += sizeof(head) - 1;
    (void)sscanf(line, "%*4u-%*2u-%*2u %*2u:%*2u:%*2u%n", &n_time); /* without time n_time stays 0 */
    return line[n_time] == ' ' ? line + n_time + 1 : line;
}

/* age 1: the last line; 0: the oldest of all, whose place is the next line's. Modulo COMMON_LINES_MAX. */
static struct common_line *line_of_age(struct common_lines *a, size_t age)
{
    return &a->lines[(a->end - age) % COMMON_LINES_MAX];
}

static void forget_line(struct common_line *l)
{
    free(l->text);
    free(l->printed);
    *l = (struct common_line){0};
}

/* The oldest held line that the host has not printed yet, or else a shown one. */
static struct common_line *find_line(struct common_lines *a, const char *text, unsigned host, uint64_t now_ms)
{
    for (size_t i = 0; i < COMMON_LINES_MAX; i++) {
        struct common_line *l = line_of_age(a, a->n_held - i);

        if (l->text && !l->printed[host] && now_ms < l->begin_ms + COMMON_LINES_FORGET_MS &&
            strcmp(l->text, text) == 0)
            return l;
    }
    return NULL;
}

/* NULL: no memory, or no due line was taken. */
static struct common_line *new_line(struct common_lines *a, const char *text, bool is_crun, uint64_t now_ms)
{
    struct common_line *l = line_of_age(a, 0);

    if (a->n_held == COMMON_LINES_HELD)
        return NULL;
    forget_line(l);
    *l = (struct common_line){.text = strdup(text),
                              .is_crun = is_crun,
                              .printed = calloc(a->n_hosts, sizeof(bool)),
                              .begin_ms = now_ms};
    if (!l->printed || !l->text) {
        forget_line(l);
        return NULL;
    }
    a->end++;
    a->n_held++;
    return l;
}

void common_lines_add(struct common_lines *a, unsigned host, const char *line, uint64_t now_ms)
{
    bool is_crun;
    const char *text = skip_head(line, &is_crun);
    struct common_line *l = find_line(a, text, host, now_ms);

    if (!l)
        l = new_line(a, text, is_crun, now_ms);
    if (!l)
        return;
    l->printed[host] = true;
    l->n_printed++;
}

/* "[a, c] ", "[7 hosts: a, b, c, d, ...] " */
static void add_names(const struct common_lines *a, const struct common_line *l, struct strbuf *out)
{
    unsigned n = 0;

    if (l->n_printed > COMMON_LINES_NAMES)
        strbuf_add(out, "[%u hosts: ", l->n_printed);
    else
        strbuf_add(out, "[");
    for (unsigned i = 0; i < a->n_hosts && n < COMMON_LINES_NAMES; i++)
        if (l->printed[i])
            strbuf_add(out, "%s%s", n++ > 0 ? ", " : "", a->names[i]);
    strbuf_add(out, l->n_printed > n ? ", ...] " : "] ");
}

char *common_lines_next(struct common_lines *a, unsigned n_usable, uint64_t now_ms, bool *ret_is_crun)
{
    struct common_line *l = line_of_age(a, a->n_held);
    struct strbuf out = {0};

    if (a->n_held == 0)
        return NULL;
    bool is_of_all = l->n_printed == a->n_hosts || (l->n_printed > 1 && l->n_printed >= n_usable);
    if (!is_of_all && a->n_held < COMMON_LINES_HELD && now_ms < l->begin_ms + COMMON_LINES_DELAY_MS)
        return NULL;
    a->n_held--;
    *ret_is_crun = l->is_crun;
    if (l->is_crun && !is_of_all)
        add_names(a, l, &out);
    strbuf_add(&out, "%s", l->text);
    return strbuf_steal(&out);
}

void common_lines_finish(struct common_lines *a)
{
    for (size_t i = 0; i < COMMON_LINES_MAX; i++)
        forget_line(&a->lines[i]);
}
