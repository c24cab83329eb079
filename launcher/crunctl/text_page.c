#include "launcher/crunctl/text_page.h"

#include <stdint.h>

#include "base/format.h"
#include "base/utf8.h"

enum { LINE_SIZE = 1536 };

size_t text_page_bytes(const struct text_page *p, const char *line)
{
    return text_bytes_of_columns(line, p->width > 0 ? (size_t)p->width : SIZE_MAX);
}

void text_page_add(struct text_page *p, const char *style, const char *format, ...)
{
    char line[LINE_SIZE];

    if (p->n_left == 0)
        return;
    p->n_left -= p->n_left != SIZE_MAX;
    (void)format_arguments(line, sizeof(line), format); /* a longer one is cut */
    text_clean(line);
    int n = (int)text_page_bytes(p, line);
    if (!p->is_live)
        strbuf_add(&p->out, "%.*s\n", n, line);
    else if (*style)
        strbuf_add(&p->out, "\033[%sm%.*s\033[0m\033[K\n", style, n, line);
    else
        strbuf_add(&p->out, "%.*s\033[K\n", n, line);
}
