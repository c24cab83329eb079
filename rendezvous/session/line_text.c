#include "rendezvous/session/line_text.h"

#include <stdarg.h>
#include <stdio.h>

void line_text_add(struct line_text *t, const char *format, ...)
{
    size_t room = t->size - t->n;
    va_list arguments;
    int n;

    va_start(arguments, format);
    n = vsnprintf(t->to + t->n, room, format, arguments);
    va_end(arguments);
    if (n > 0)
        t->n += (size_t)n < room ? (size_t)n : room - 1;
}
