#include "launcher/util/trace_os.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "launcher/util/line_file_os.h"
#include "launcher/util/log_os.h"
#include "base/format.h"
#include "base/time.h"

struct trace {
    struct line_file *file; /* NULL: standard error, between the other lines of crun */
    uint64_t start_ns;
};

struct trace *trace_sink;

int trace_open(const char *path)
{
    static struct trace trace;

    trace.start_ns = now_ns();
    int r = path ? line_file_open(&trace.file, path, "trace") : 0;
    if (!r)
        trace_sink = &trace;
    return r;
}

void trace_close(void)
{
    if (trace_sink)
        line_file_close(trace_sink->file);
    trace_sink = NULL;
}

void trace_line(const char *format, ...)
{
    char line[1024];

    int n =
        snprintf(line, sizeof(line), "crun: debug: %.3f ", (double)(now_ns() - trace_sink->start_ns) / 1e6);
    (void)format_arguments(line + n, sizeof(line) - (size_t)n - 1, format); /* truncated if long */
    size_t size = strlen(line);
    line[size++] = '\n';
    line[size] = '\0';
    if (trace_sink->file)
        line_file_write(trace_sink->file, line);
    else
        log_lines(line);
}
