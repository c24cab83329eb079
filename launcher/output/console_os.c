#include "launcher/output/console_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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
    bool is_disk = S_ISREG(info.st_mode) || S_ISBLK(info.st_mode);
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))
        c->fd = open_again(stdio);
    c->may_block = c->fd < 0 && !c->is_socket && !is_disk;
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

void console_write(struct console *c)
{
    while (!c->broken && buf_size(&c->pending) > 0) {
        ssize_t n = console_write_once(c);
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN)
            break;
        if (n <= 0)
            c->broken = true; /* EPIPE, EIO, ENOSPC: there is no other place to report it */
        else
            buf_consume(&c->pending, (size_t)n);
    }
    if (c->broken)
        buf_reset(&c->pending);
}

short console_poll_events(const struct console *c)
{
    return c->is_open && buf_size(&c->pending) > 0 ? POLLOUT : 0;
}

void console_close(struct console *c)
{
    if (!c->is_open)
        return;
    c->is_open = false;
    buf_finish(&c->pending);
    (void)close(c->fd); /* a failed write was noticed when it was made */
    c->fd = -1;
}
