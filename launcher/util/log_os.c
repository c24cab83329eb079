#include "launcher/util/log_os.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool (*queue)(void *data, const char *lines);
static void *queue_data;

void log_redirect(bool (*through)(void *data, const char *lines), void *data)
{
    queue = through;
    queue_data = data;
}

void log_lines(const char *lines)
{
    size_t n = strlen(lines);

    if (queue && queue(queue_data, lines))
        return;
    while (n > 0) {
        ssize_t written = write(STDERR_FILENO, lines, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return; /* the reader has closed it, and there is no other place to report */
        lines += written;
        n -= (size_t)written;
    }
}

void log_line(const char *format, ...)
{
    char line[2048] = "crun: ";
    const size_t n_prefix = strlen(line);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line + n_prefix, sizeof(line) - n_prefix - 1, format, args); /* a longer one is cut */
    va_end(args);
    line[strlen(line) + 1] = '\0';
    line[strlen(line)] = '\n';
    log_lines(line);
}
