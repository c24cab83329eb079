#pragma once

/* crun's own words: one line on stderr, written at once so that lines of workers do not get into it. */

#include <stdbool.h>

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

/* Text that already consists of whole lines. */
void log_lines(const char *lines);

/* From now on `through` gets the lines, so that nobody waits for stderr; those that it refuses (false) are
 * written at once, as before. NULL: as in the beginning. */
void log_redirect(bool (*through)(void *data, const char *lines), void *data);
