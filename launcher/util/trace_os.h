#pragma once

/*
 * --debug: a trace of the state machines of crun, one line for each event and each action, with the milliseconds since
 * crun's start. A file is written by a thread, so a crun that is killed may lose the last lines. Callers test trace_sink
 * first, so that it costs one comparison when it is off.
 */

struct trace;

extern struct trace *trace_sink; /* NULL: off */

/* Turns the trace on. path: a file to append to; NULL: standard error. Returns 0 or -errno. For main() alone. */
int trace_open(const char *path);

/* Writes what is left to the file, for two seconds at most, and turns the trace off. */
void trace_close(void);

/* Writes one line; format is without a newline. Only with trace_sink set. */
__attribute__((format(printf, 1, 2))) void trace_line(const char *format, ...);
