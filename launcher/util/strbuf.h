#pragma once

/*
 * Formatted text that grows, kept in a struct buf. Whoever builds a text calls strbuf_add() as often as it
 * likes and looks at the outcome once, in strbuf_steal(): after one allocation failed the text is lost as a
 * whole, never cut silently in the middle.
 */

#include <stdarg.h>
#include <stdbool.h>

#include "base/buf.h"

struct strbuf {
    struct buf buf;
    bool failed; /* memory ran out at some point */
};

__attribute__((format(printf, 2, 3))) void strbuf_add(struct strbuf *t, const char *format, ...);

/* The text as a NUL-terminated string that the caller frees, or NULL if any part of it was lost.
 * The text is empty again. */
char *strbuf_steal(struct strbuf *t);

void strbuf_finish(struct strbuf *t);
