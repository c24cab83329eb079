#include "launcher/output/line_prefix.h"

#include <stdio.h>
#include <string.h>

#include "launcher/output/fold.h"
#include "launcher/util/strlist.h"
#include "launcher/util/template.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/utf8.h"

#define REDRAW_NS UINT64_C(1000000000)

/* Where the line that begins at data ends: its length, and *ret_next behind its end mark; false when it does
 * not end within n_bytes. */
static bool find_line_end(const char *data, size_t n_bytes, bool final, size_t *ret_length, size_t *ret_next)
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

static int show_line(const struct line_prefix *l, const char *line, size_t n, struct buf *console)
{
    if (!l->fold)
        return append_line(console, l->prefix, line, n);
    struct fold_line folded = *l->folded;
    folded.prefix = l->prefix;
    folded.text = line;
    folded.n_bytes = n;
    folded.now_ns = l->now_ns;
    fold_add(l->fold, &folded, console);
    return 0;
}

static void look_at_line(const struct line_prefix *l, const char *line, size_t n)
{
    size_t n_more = n < LINES_SEAM ? n : LINES_SEAM;

    if (l->seam && l->seam->n > 0) {
        memcpy(l->seam->bytes + l->seam->n, line, n_more);
        l->on_line(l->data, l->seam->bytes, l->seam->n + n_more);
    }
    l->on_line(l->data, line, n);
}

static void begin_seam(const struct line_prefix *l, const char *end, size_t n)
{
    if (!l->seam)
        return;
    l->seam->n = n < LINES_SEAM ? n : LINES_SEAM;
    memcpy(l->seam->bytes, end - l->seam->n, l->seam->n);
}

/* console: NULL when the line is not for it. */
static int append_shown_line(const struct line_prefix *l, const char *line, size_t n, struct buf *console,
                             struct buf *filtered)
{
    int r = console ? show_line(l, line, n, console) : 0;

    if (!r && console && l->on_line)
        look_at_line(l, line, n);
    if (!r && filtered && matches_filter(l->filter, line, n))
        r = append_line(filtered, l->prefix_plain, line, n);
    return r;
}

/* Whether a state of a progress bar, which ends with CR, is left out. is_last: nothing follows it. */
static bool skips_redraw(const struct line_prefix *l, size_t length, bool is_last)
{
    if (!l->redraw_due_ns || is_last)
        return false;
    if (length == 0 || l->now_ns < *l->redraw_due_ns)
        return true;
    *l->redraw_due_ns = l->now_ns + REDRAW_NS;
    return false;
}

ptrdiff_t line_prefix_take(const struct line_prefix *lines, const char *data, size_t n_bytes, bool final,
                           struct buf *console, struct buf *filtered)
{
    const size_t console_size = buf_size(console), filtered_size = filtered ? buf_size(filtered) : 0;
    size_t taken = 0, length, next;
    int r = 0;

    while (!r && taken < n_bytes && find_line_end(data + taken, n_bytes - taken, final, &length, &next)) {
        bool is_redraw = data[taken + length] == '\r' && next == length + 1;
        bool is_last = final && taken + next == n_bytes;
        struct buf *shown = is_redraw && skips_redraw(lines, length, is_last) ? NULL : console;
        r = append_shown_line(lines, data + taken, length, shown, filtered);
        begin_seam(lines, data, 0);
        taken += next;
    }
    size_t rest = n_bytes - taken;
    if (!r && rest > 0 && (final || rest >= LINES_PIECE)) {
        rest = final ? rest : text_whole_size(data + taken, rest);
        r = append_shown_line(lines, data + taken, rest, console, filtered);
        begin_seam(lines, data + taken + rest, final ? 0 : rest);
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

char *line_prefix_prefix(const char *template, const char *role, int local_rank, int rank, const char *host)
{
    char local_text[16], rank_text[16];
    const struct template_variable variables[] = {
        {"role_name", role}, {"local_rank", local_text}, {"rank", rank_text}, {"hostname", host},
        {"host", host},
    };

    (void)snprintf(local_text, sizeof(local_text), "%d", local_rank); /* both fit */
    (void)snprintf(rank_text, sizeof(rank_text), "%d", rank);
    return template_substitute(template, variables, ARRAY_SIZE(variables));
}
