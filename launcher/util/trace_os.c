#include "launcher/util/trace_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launcher/util/log_os.h"
#include "base/time.h"

struct trace {
    int fd; /* -1: standard error, between the other lines of crun */
    uint64_t start_ns;
};

struct trace *trace_sink;

int trace_open(const char *path)
{
    static struct trace trace;

    trace.fd = -1;
    trace.start_ns = now_ns();
    if (path) {
        trace.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (trace.fd < 0)
            return -errno;
    }
    trace_sink = &trace;
    return 0;
}

void trace_line(const char *format, ...)
{
    char line[1024];
    va_list args;

    int n =
        snprintf(line, sizeof(line), "crun: debug: %.3f ", (double)(now_ns() - trace_sink->start_ns) / 1e6);
    va_start(args, format);
    (void)vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args); /* truncated if long */
    va_end(args);
    size_t size = strlen(line);
    line[size++] = '\n';
    line[size] = '\0';
    if (trace_sink->fd < 0)
        log_lines(line);
    else
        (void)!write(trace_sink->fd, line, size); /* a full disk costs lines of the trace, nothing else */
}
