#include "launcher/util/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_add(struct text *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);

    uint8_t *room = n < 0 ? NULL : buf_reserve(&t->buf, (size_t)n + 1);
    if (!room) {
        t->failed = true;
        return;
    }
    va_start(args, format);
    (void)vsnprintf((char *)room, (size_t)n + 1, format, args); /* counted above */
    va_end(args);
    buf_commit(&t->buf, (size_t)n);
}

char *text_steal(struct text *t)
{
    char *out = NULL;

    text_add(t, "%c", '\0');
    if (!t->failed) {
        size_t n = buf_size(&t->buf);
        out = malloc(n);
        if (out)
            memcpy(out, buf_bytes(&t->buf), n);
    }
    text_finish(t);
    return out;
}

void text_finish(struct text *t)
{
    buf_finish(&t->buf);
    *t = (struct text){0};
}
