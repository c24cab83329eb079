#include "launcher/output/line_prefix.h"

#include <errno.h>
#include <string.h>

#include "launcher/util/strlist.h"
#include "launcher/util/strbuf.h"
#include "base/err.h"

bool line_prefix_find_end(const char *data, size_t n_bytes, bool final, size_t *ret_length, size_t *ret_next)
{
    const char *lf = memchr(data, '\n', n_bytes);
    const char *cr = memchr(data, '\r', lf ? (size_t)(lf - data) : n_bytes);

    if (cr && !final && cr + 1 == data + n_bytes && n_bytes < LINES_PIECE)
        cr = NULL; /* whether an LF follows is not known yet */
    if (!lf && !cr)
        return false;
    const char *end = cr ? cr : lf;
    *ret_length = (size_t)(end - data);
    *ret_next = *ret_length + 1 + (cr && cr + 1 == lf);
    return true;
}

static bool matches_filter(const struct strlist *filter, const char *line, size_t n)
{
    for (size_t i = 0; filter && i < filter->n_items; i++)
        if (memmem(line, n, filter->items[i], strlen(filter->items[i])))
            return true;
    return false;
}

static int append_line(struct buf *out, const char *prefix, const char *line, size_t n)
{
    int r = buf_append(out, prefix, strlen(prefix));

    if (!r)
        r = buf_append(out, line, n);
    return r ? r : buf_append(out, "\n", 1);
}

static int append_shown_line(const struct line_prefix *l, const char *line, size_t n, struct buf *console,
                             struct buf *filtered)
{
    int r = append_line(console, l->prefix, line, n);

    if (!r && filtered && matches_filter(l->filter, line, n))
        r = append_line(filtered, l->prefix_plain, line, n);
    return r;
}

ptrdiff_t line_prefix_take(const struct line_prefix *lines, const char *data, size_t n_bytes, bool final,
                           struct buf *console, struct buf *filtered)
{
    const size_t console_size = buf_size(console), filtered_size = filtered ? buf_size(filtered) : 0;
    size_t taken = 0, length, next;
    int r = 0;

    while (!r && taken < n_bytes &&
           line_prefix_find_end(data + taken, n_bytes - taken, final, &length, &next)) {
        r = append_shown_line(lines, data + taken, length, console, filtered);
        taken += next;
    }
    size_t rest = n_bytes - taken;
    if (!r && rest > 0 && (final || rest >= LINES_PIECE)) {
        r = append_shown_line(lines, data + taken, rest, console, filtered);
        taken += rest;
    }
    if (r) {
        console->end = console->begin + console_size;
        if (filtered)
            filtered->end = filtered->begin + filtered_size;
        return r;
    }
    return (ptrdiff_t)taken;
}

/* ---- prefix ---- */

struct variable {
    const char *name; /* as it stands in a template */
    const char *text;
    int number; /* when text is NULL */
};

/* Appends what stands for the variable at *s and returns its length there; 0 when there is none. */
static size_t add_prefix_variable(struct strbuf *out, const char *s, const struct variable *variables,
                                  size_t n_variables)
{
    for (size_t i = 0; i < n_variables; i++) {
        size_t n = strlen(variables[i].name);
        if (strncmp(s, variables[i].name, n) != 0)
            continue;
        if (variables[i].text)
            strbuf_add(out, "%s", variables[i].text);
        else
            strbuf_add(out, "%d", variables[i].number);
        return n;
    }
    return 0;
}

char *line_prefix_prefix(const char *template, const char *role, int local_rank, int rank, const char *host)
{
    const struct variable variables[] = {
        {"${role_name}", role, 0},
        {"${local_rank}", NULL, local_rank},
        {"${rank}", NULL, rank},
        {"${host}", host, 0},
    };
    struct strbuf out = {0};

    while (*template) {
        size_t n = add_prefix_variable(&out, template, variables, ARRAY_SIZE(variables));
        if (n == 0)
            strbuf_add(&out, "%c", *template);
        template += n ? n : 1;
    }
    return strbuf_steal(&out);
}
