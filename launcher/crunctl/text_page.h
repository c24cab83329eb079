#pragma once

/*
 * Lines for a terminal or a pipe. Texts of other origin (the network, files) are made printable line by line, so none of the texts
 * begins a line or moves a cursor. Pure.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/strbuf.h"

struct text_page {
    int width; /* columns of a line; a longer line is cut. 0: not cut */
    bool
        is_live; /* a terminal redraws the page: each line has a style and erases the rest of the former line */
    size_t n_left; /* lines; SIZE_MAX: no limit */
    struct strbuf out;
};

/* SGR of a line. */
#define STYLE_PLAIN ""
#define STYLE_TITLE "1"
#define STYLE_HEAD "7"
#define STYLE_BAD "31"
#define STYLE_WARN "33"
#define STYLE_DIM "2"

/* Adds a line, or nothing where no line is left. */
__attribute__((format(printf, 3, 4))) void text_page_add(struct text_page *p, const char *style,
                                                         const char *format, ...);

/* The bytes of a line up to the width; each character counts as one column. */
size_t text_page_bytes(const struct text_page *p, const char *line);
