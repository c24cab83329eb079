#pragma once

/*
 * Formatted text that grows, kept in a struct buf. A caller adds all parts with strbuf_add() and checks the outcome once, in strbuf_steal(): after a failed
 * allocation the text is lost as a whole, never cut in the middle.
 */

#include <stdarg.h>
#include <stdbool.h>

#include "base/buf.h"

struct strbuf {
    struct buf buf;
    bool failed; /* memory ran out at some point */
};

__attribute__((format(printf, 2, 3))) void strbuf_add(struct strbuf *t, const char *format, ...);

/* A text that may hold anything, such as a path, as one printable line. */
void strbuf_add_clean(struct strbuf *t, const char *text);

/* The text as a NUL-terminated string that the caller frees, or NULL if any part of it was lost.
 * The text is empty again. */
char *strbuf_steal(struct strbuf *t);

void strbuf_finish(struct strbuf *t);

/* Formatted text alone: malloc'ed; NULL without memory. */
__attribute__((format(printf, 1, 2))) char *strbuf_format(const char *format, ...);
