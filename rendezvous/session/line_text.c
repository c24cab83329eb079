#include "rendezvous/session/line_text.h"

#include "base/format.h"

void line_text_add(struct line_text *t, const char *format, ...)
{
    size_t room = t->size - t->n;
    int n = format_arguments(t->to + t->n, room, format);
    if (n > 0)
        t->n += (size_t)n < room ? (size_t)n : room - 1;
}
