#pragma once

/*
 * Formatted text that grows, kept in a struct buf. Whoever builds a text calls text_add() as often as it
 * likes and looks at the outcome once, in text_steal(): after one allocation failed the text is lost as a
 * whole, never cut silently in the middle.
 */

#include <stdarg.h>
#include <stdbool.h>

#include "base/buf.h"

struct text {
    struct buf buf;
    bool failed; /* memory ran out at some point */
};

__attribute__((format(printf, 2, 3))) void text_add(struct text *t, const char *format, ...);

/* The text as a NUL-terminated string that the caller frees, or NULL if any part of it was lost.
 * The text is empty again. */
char *text_steal(struct text *t);

void text_finish(struct text *t);
