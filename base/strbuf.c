#include "base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/cleanup.h"
#include "base/format.h"

void strbuf_add(struct strbuf *t, const char *format, ...)
{
    int n = format_arguments(NULL, 0, format);
    uint8_t *room = n < 0 ? NULL : buf_reserve(&t->buf, (size_t)n + 1);
    if (!room) {
        t->failed = true;
        return;
    }
    (void)format_arguments((char *)room, (size_t)n + 1, format); /* counted above */
    buf_commit(&t->buf, (size_t)n);
}

void strbuf_add_clean(struct strbuf *t, const char *text)
{
    _cleanup_free_ char *clean = strdup(text);

    if (clean)
        text_clean(clean);
    else
        t->failed = true;
    strbuf_add(t, "%s", clean ? clean : "");
}

char *strbuf_steal(struct strbuf *t)
{
    char *out = NULL;

    strbuf_add(t, "%c", '\0');
    if (!t->failed) {
        size_t n = buf_size(&t->buf);
        out = malloc(n);
        if (out)
            memcpy(out, buf_bytes(&t->buf), n);
    }
    strbuf_finish(t);
    return out;
}

void strbuf_finish(struct strbuf *t)
{
    buf_finish(&t->buf);
    *t = (struct strbuf){0};
}

char *strbuf_format(const char *format, ...)
{
    char *text;
    va_list args;

    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    return n < 0 ? NULL : text;
}
