#include "launcher/front/line_cutter.h"

#include "base/utf8.h"

static void finish_line(struct line_cutter *l, line_cutter_fn *on_line, void *data)
{
    bool is_empty = l->n == 0 || l->is_kept;

    l->is_kept = true; /* an empty line leaves the one before it */
    text_clean(l->line);
    on_line(data, is_empty ? "" : l->line);
}

static void add(struct line_cutter *l, char c)
{
    if (l->is_kept)
        l->n = 0;
    l->is_kept = false;
    if (l->n + 1 == sizeof(l->line))
        return;
    l->line[l->n++] = c ? c : ' ';
    l->line[l->n] = 0;
}

void line_cutter_feed(struct line_cutter *l, const char *bytes, size_t n, line_cutter_fn *on_line, void *data)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] == '\n')
            finish_line(l, on_line, data);
        else if (bytes[i] != '\r')
            add(l, bytes[i]);
}

void line_cutter_end(struct line_cutter *l, line_cutter_fn *on_line, void *data)
{
    if (l->n > 0 && !l->is_kept)
        finish_line(l, on_line, data);
}
