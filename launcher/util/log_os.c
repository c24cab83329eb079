#include "launcher/util/log_os.h"

#include "base/utf8.h"
#include "base/cleanup.h"
#include "base/format.h"
#include "base/lock_os.h"
#include "base/strbuf.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const char prefix[] = "crun: ";
enum { PREFIX_BYTES = sizeof(prefix) - 1 };
static const char clear_line[] = "\r\033[K";
static _Atomic bool has_times; /* a thread may set it at the start */
static bool (*queue)(void *data, const char *lines);
static void *queue_data;
static pthread_mutex_t last_lock = PTHREAD_MUTEX_INITIALIZER; /* threads log, too */
static char last[LOG_LINE_SIZE];                              /* under the lock; with "crun: " and newline */

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

bool log_has_terminal(void)
{
    const char *term = getenv("TERM");

    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

void log_with_times(void)
{
    tzset(); /* reads the file of the time zone now, and not on the event loop */
    has_times = true;
}

/* Without memory, or without a time of day, the lines stay as they are. Malloc'ed or NULL. */
static char *put_times(const char *lines)
{
    const time_t now = time(NULL);
    char stamp[32];
    struct strbuf out = {0};
    struct tm local;

    if (!localtime_r(&now, &local) || strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S ", &local) == 0)
        return NULL;
    while (*lines) {
        size_t n = strcspn(lines, "\n");
        bool is_ours = strncmp(lines, prefix, PREFIX_BYTES) == 0; /* not so in the table of a failure */

        n += lines[n] == '\n';
        if (is_ours)
            strbuf_add(&out, "%s%s%.*s", prefix, stamp, (int)(n - PREFIX_BYTES), lines + PREFIX_BYTES);
        else
            strbuf_add(&out, "%.*s", (int)n, lines);
        lines += n;
    }
    return strbuf_steal(&out);
}

static void print_lines(const char *lines)
{
    if (!queue || !queue(queue_data, lines))
        write_all_to_stderr(lines);
}

/* Malloc'ed; NULL: there is nothing to clear. */
static char *put_clear(const char *lines)
{
    char *cleared = log_has_terminal() ? malloc(sizeof(clear_line) + strlen(lines)) : NULL;

    if (cleared) {
        (void)strcpy(cleared, clear_line);
        (void)strcat(cleared, lines);
    }
    return cleared;
}

static void print_cleared(const char *lines)
{
    _cleanup_free_ char *cleared = put_clear(lines);

    print_lines(cleared ? cleared : lines);
}

/* Workers write to the terminal themselves, and one may have left a progress bar in the current line. */
void log_each_line(const char *text)
{
    for (int n; text && *text; text += n + (text[n] == '\n')) {
        n = (int)strcspn(text, "\n");
        log_line("%.*s", n, text);
    }
}

void log_lines(const char *lines)
{
    _cleanup_free_ char *with_times = has_times ? put_times(lines) : NULL;

    print_cleared(with_times ? with_times : lines);
}

void log_status(const char *text)
{
    static bool is_shown;
    bool was_shown = is_shown;
    struct winsize size;
    char line[1024];
    size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;

    is_shown = *text && log_has_terminal();
    if (!is_shown) {
        if (*text)
            log_line("%s", text);
        else if (was_shown)
            print_cleared("");
        return;
    }
    (void)snprintf(line, sizeof(line), "%s%s", prefix, text); /* far beyond any terminal's width */
    text_clean(line);
    line[text_bytes_of_columns(line, columns)] = '\0';
    print_cleared(line);
}

/* Completes a line whose text behind the prefix is formatted: at most LOG_LINE_SIZE - PREFIX_BYTES - 1 bytes with the final NUL. */
static void compose_line(char line[LOG_LINE_SIZE])
{
    memcpy(line, prefix, PREFIX_BYTES);
    text_clean(line + PREFIX_BYTES); /* names come from users and from other nodes */
    line[strlen(line) + 1] = '\0';
    line[strlen(line)] = '\n';
}

void log_line(const char *format, ...)
{
    char line[LOG_LINE_SIZE];

    (void)format_arguments(line + PREFIX_BYTES, LOG_LINE_SIZE - PREFIX_BYTES - 1, format); /* may be cut */
    compose_line(line);
    (void)pthread_mutex_lock(&last_lock); /* neither can fail */
    memcpy(last, line, sizeof(last));
    (void)pthread_mutex_unlock(&last_lock);
    log_lines(line);
}

void log_copy_last(char line[LOG_LINE_SIZE])
{
    hold_lock(&last_lock);
    const char *from = last + (*last ? PREFIX_BYTES : 0);
    (void)snprintf(line, LOG_LINE_SIZE, "%.*s", (int)strcspn(from, "\n"), from); /* fits */
}

const char *log_remedy(int r)
{
    return r == -EMFILE || r == -ENFILE ? "; raise the limit of open files (ulimit -n)" : "";
}

char *log_prepare(const char *format, ...)
{
    char line[LOG_LINE_SIZE];

    (void)format_arguments(line + PREFIX_BYTES, LOG_LINE_SIZE - PREFIX_BYTES - 1, format); /* may be cut */
    compose_line(line);
    _cleanup_free_ char *with_times = has_times ? put_times(line) : NULL;
    char *cleared = put_clear(with_times ? with_times : line);
    return cleared ? cleared : strdup(with_times ? with_times : line);
}

void log_write_prepared(const char *line)
{
    write_all_to_stderr(line);
}
