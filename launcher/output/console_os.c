#include "launcher/output/console_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/time.h"

enum { RETRY_NS = 1000000000 };

/* A new open file description of the same pipe or terminal: O_NONBLOCK concerns this one alone. */
static int open_again(int stdio)
{
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", stdio); /* fits */
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int console_open(struct console *c, int stdio)
{
    struct stat info;

    *c = (struct console){.fd = -1};
    if (fstat(stdio, &info) < 0)
        return -errno;
    c->is_socket = S_ISSOCK(info.st_mode);
    c->is_disk = S_ISREG(info.st_mode) || S_ISBLK(info.st_mode);
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))
        c->fd = open_again(stdio);
    c->may_block = c->fd < 0 && !c->is_socket && !c->is_disk;
    if (c->fd < 0)
        c->fd = fcntl(stdio, F_DUPFD_CLOEXEC, 3);
    if (c->fd < 0)
        return -errno;
    c->is_open = true;
    return 0;
}

bool console_wait(struct console *c, int timeout_ms)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};

    return poll(&p, 1, timeout_ms) > 0;
}

/* As write(), but returns -errno, and -EAGAIN where it would have to wait. */
static ssize_t console_write_once(struct console *c)
{
    size_t n = buf_size(&c->pending);
    ssize_t written;

    if (c->is_socket) {
        written = send(c->fd, buf_bytes(&c->pending), n, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
        if (c->may_block && !console_wait(c, 0))
            return -EAGAIN;
        if (c->may_block && n > PIPE_BUF)
            n = PIPE_BUF; /* a pipe with any room has room for this much */
        written = write(c->fd, buf_bytes(&c->pending), n);
    }
    return written < 0 ? -errno : written;
}

/* ---- a file ---- */

/* 0 or errno. One that is_whole and was written in part is written again from its beginning. */
static int write_buf(struct console *c, struct buf *b, bool is_whole)
{
    const char *bytes = (const char *)buf_bytes(b);
    size_t n = buf_size(b), at = 0;
    ssize_t written = 1;

    for (; at < n && written > 0; at += written > 0 ? (size_t)written : 0)
        written = write(c->fd, bytes + at, n - at);
    int error = at == n ? 0 : written < 0 ? errno : ENOSPC;
    if (at > 0)
        c->is_in_line = bytes[at - 1] != '\n';
    if (n > 0)
        buf_consume(b, error && is_whole ? 0 : at);
    return error;
}

/* What was lost since the first failure, in a line of its own. Without memory it is not reported. */
static int report_loss(struct console *c)
{
    _cleanup_(buf_finish) struct buf note = {0};
    char text[128];

    (void)snprintf(text, sizeof(text), "crun: %llu bytes of output were lost: %s\n",
                   (unsigned long long)c->n_lost, strerror(c->disk_error)); /* fits */
    if (c->is_in_line)
        (void)buf_append(&note, "\n", 1);
    if (c->n_lost)
        (void)buf_append(&note, text, strlen(text));
    return write_buf(c, &note, true);
}

static void write_file(struct console *c)
{
    int error = c->disk_error;

    if (!error || now_ns() >= c->retry_ns) {
        error = error ? report_loss(c) : 0;
        c->n_lost = error ? c->n_lost : 0;
        error = error ? error : write_buf(c, &c->kept, true); /* older than what is pending */
        error = error ? error : write_buf(c, &c->pending, false);
        c->retry_ns = error ? now_ns() + RETRY_NS : 0;
    }
    c->disk_error = error;
    c->n_lost += error ? buf_size(&c->pending) : 0;
    buf_reset(&c->pending);
}

int console_say(struct console *c, const void *text, size_t n)
{
    if (!c->is_disk)
        return buf_append(&c->pending, text, n);
    console_write(c); /* lines that were there before */
    c->retry_ns = 0;
    if (buf_size(&c->kept) + n <= CONSOLE_KEPT)
        return buf_append(&c->kept, text, n);
    c->n_lost += n;
    return 0;
}

void console_write(struct console *c)
{
    if (c->is_disk && c->is_open) {
        write_file(c);
        return;
    }
    while (!c->broken && buf_size(&c->pending) > 0) {
        ssize_t n = console_write_once(c);
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN)
            break;
        if (n <= 0)
            c->broken = true; /* EPIPE, EIO: there is no other place to report it */
        else
            buf_consume(&c->pending, (size_t)n);
    }
    if (c->broken)
        buf_reset(&c->pending);
}

short console_poll_events(const struct console *c)
{
    return c->is_open && !c->is_disk && buf_size(&c->pending) > 0 ? POLLOUT : 0;
}

void console_close(struct console *c)
{
    if (!c->is_open)
        return;
    c->retry_ns = 0;
    if (c->is_disk)
        console_write(c); /* with the note on what was lost, if there is room now */
    c->is_open = false;
    buf_finish(&c->pending);
    buf_finish(&c->kept);
    close_fd(&c->fd); /* a failed write was noticed when it was made */
}
