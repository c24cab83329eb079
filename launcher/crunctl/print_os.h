#pragma once

/* Standard output of crunctl. Each returns the exit code: 0, or 1 after a line on standard error. */

/* NULL: memory ran out. */
int print_text(const char *text);

/* One JSON text and the end of the line; control characters that JSON allows as they are (DEL and those of C1) are written as
 * escapes, so that a terminal does not take them as commands. */
int print_json_line(const char *json);

/* Before the process ends: what a full disk did not take is found out only then. code: what it would end with. */
int print_end(int code);
