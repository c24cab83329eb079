#pragma once

/* A line of text that is put together from parts. What is beyond its room is left out. */

#include <stddef.h>

struct line_text {
    char *to;
    size_t size, n; /* room, and length so far */
};

void line_text_add(struct line_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
