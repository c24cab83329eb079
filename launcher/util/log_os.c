#include "launcher/util/log_os.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool (*queue)(void *data, const char *lines);
static void *queue_data;

void log_redirect(bool (*through)(void *data, const char *lines), void *data)
{
    queue = through;
    queue_data = data;
}

static void write_all_to_stderr(const char *text)
{
    size_t n = strlen(text);

    while (n > 0) {
        ssize_t written = write(STDERR_FILENO, text, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return; /* the reader has closed it, and there is no other place to report */
        text += written;
        n -= (size_t)written;
    }
}

static bool can_clear_line(void)
{
    const char *term = getenv("TERM");

    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

static void print_lines(const char *lines)
{
    if (!queue || !queue(queue_data, lines))
        write_all_to_stderr(lines);
}

/* Workers write to the terminal themselves, and one may have left a progress bar in the current line. */
void log_lines(const char *lines)
{
    static const char clear_line[] = "\r\033[K";
    _cleanup_free_ char *cleared = can_clear_line() ? malloc(sizeof(clear_line) + strlen(lines)) : NULL;

    if (cleared) {
        (void)strcpy(cleared, clear_line);
        (void)strcat(cleared, lines);
    }
    print_lines(cleared ? cleared : lines);
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
