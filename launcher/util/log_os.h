#pragma once

/* crun's messages on stderr: each line in one write(), so that lines of workers do not get into it. */

#include <stdbool.h>

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

/* Text that already consists of whole lines. */
void log_lines(const char *lines);

/* From now on `through` gets the lines, so that a slow stderr delays nothing; those it refuses (false) are written
 * directly. NULL: all are written directly, as before the first call. */
void log_redirect(bool (*through)(void *data, const char *lines), void *data);
