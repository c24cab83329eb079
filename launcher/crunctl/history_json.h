#pragma once

/* Lines of the event log to history.h, and the history of one run as JSON for crunctl --json. */

#include <stdbool.h>
#include <stddef.h>

struct history_line;
struct history_run;

/* False: not a line of an event log; it is to be left out. */
bool history_line_from_json(const char *bytes, size_t n, struct history_line *ret);

/* {"version":1,"job":...,"generations":[...]}, malloc'ed; NULL without memory. */
char *history_to_json(const struct history_run *run);
