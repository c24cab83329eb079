#pragma once

/* crun's messages on stderr: each line in one write(), so that lines of workers do not get into it. */

#include <stdbool.h>

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

enum { LOG_LINE_SIZE = 2048 };

/* The last of these lines, without "crun: " and newline; "" before the first. */
void log_copy_last(char line[LOG_LINE_SIZE]);

/* The same in two steps, for a thread that may be left behind: the second step uses nothing but the line. Malloc'ed, or NULL. */
__attribute__((format(printf, 1, 2))) char *log_prepare(const char *format, ...);
void log_write_prepared(const char *line);

/* What to do about the error -errno, behind a message; "": nothing is known. */
const char *log_remedy(int r);

/* A log_line() for each line of the text; NULL: none. */
void log_each_line(const char *text);

/* Text that already consists of whole lines. */
void log_lines(const char *lines);

/* Whether a line can be redrawn: standard error is a terminal that knows how to clear one. */
bool log_has_terminal(void);

/* Redraws a line in place on a terminal, without newline and cut to the width; "" takes the line away. The next log_line()
 * takes the place of the line. Without a terminal: log_line(). For the thread of the loop. */
void log_status(const char *text);

/* From now on every line begins with the local time, behind "crun: ". */
void log_with_times(void);

/* From now on `through` gets the lines, so that a slow stderr delays nothing; lines that `through` refuses (false) are written
 * directly. NULL: all are written directly, as before the first call. */
void log_redirect(bool (*through)(void *data, const char *lines), void *data);
