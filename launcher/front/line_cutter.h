#pragma once

/* Lines of a stream of bytes: longer lines are cut, control characters as by text_clean(). Pure. */

#include <stdbool.h>
#include <stddef.h>

enum { LINE_CUTTER_SIZE = 2048 };

/* Zeroed before the first use. */
struct line_cutter {
    char line[LINE_CUTTER_SIZE]; /* the line so far; after its end the last line with any text */
    size_t n;
    bool is_kept; /* the line has ended */
};

typedef void line_cutter_fn(void *data, const char *line);

/* Calls on_line() for each line without its newline. */
void line_cutter_feed(struct line_cutter *l, const char *bytes, size_t n, line_cutter_fn *on_line,
                      void *data);

/* The stream, or its present line, has ended. */
void line_cutter_end(struct line_cutter *l, line_cutter_fn *on_line, void *data);
