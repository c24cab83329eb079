#include "launcher/output/console_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens what stdio refers to once more, so that O_NONBLOCK concerns nobody else. */
static int open_again(int stdio)
{
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", stdio); /* fits */
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int console_open(struct console *c, uv_loop_t *loop, int stdio, void (*on_room)(void *), void *data)
{
    struct stat info;

    *c = (struct console){.fd = -1, .on_room = on_room, .data = data};
    if (fstat(stdio, &info) < 0)
        return -errno;
    c->is_terminal = isatty(stdio);
    c->is_socket = S_ISSOCK(info.st_mode);
    c->is_file = S_ISREG(info.st_mode) || S_ISBLK(info.st_mode);
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))
        c->fd = open_again(stdio);
    c->may_block = c->fd < 0 && !c->is_socket && !c->is_file;
    if (c->fd < 0)
        c->fd = fcntl(stdio, F_DUPFD_CLOEXEC, 3);
    if (c->fd < 0)
        return -errno;
    if (!c->is_file) {
        int r = uv_poll_init(loop, &c->poll, c->fd);
        if (r == -EPERM) { /* /dev/null and its like: always ready, and epoll will not have them */
            c->is_file = true;
        } else if (r) {
            (void)close(c->fd);
            return r;
        }
        c->poll.data = c;
    }
    c->open = true;
    return 0;
}

bool console_wait(struct console *c, int timeout_ms)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};

    return poll(&p, 1, timeout_ms) > 0;
}

/* As write(), but -EAGAIN instead of waiting. */
static ssize_t write_now(struct console *c)
{
    size_t n = buf_size(&c->pending);
    ssize_t written;

    if (c->is_socket) {
        written = send(c->fd, buf_bytes(&c->pending), n, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
        if (c->may_block && !console_wait(c, 0))
            return -EAGAIN;
        if (c->may_block && n > PIPE_BUF)
            n = PIPE_BUF; /* as much as a pipe with any room has room for */
        written = write(c->fd, buf_bytes(&c->pending), n);
    }
    return written < 0 ? -errno : written;
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct console *c = poll->data;

    console_write(c);
    c->on_room(c->data);
}

static void wait_for_room(struct console *c, bool wait)
{
    if (wait == c->waiting || c->is_file)
        return;
    c->waiting = wait;
    if (wait)
        (void)uv_poll_start(&c->poll, UV_WRITABLE, on_writable); /* fails on a closed handle only */
    else
        (void)uv_poll_stop(&c->poll);
}

void console_write(struct console *c)
{
    while (!c->broken && buf_size(&c->pending) > 0) {
        ssize_t n = write_now(c);
        if (n == -EINTR)
            continue;
        if (n == -EAGAIN)
            break;
        if (n <= 0)
            c->broken = true; /* EPIPE, EIO: the reader is gone, and so is the place to complain */
        else
            buf_consume(&c->pending, (size_t)n);
    }
    if (c->broken)
        buf_reset(&c->pending);
    wait_for_room(c, buf_size(&c->pending) > 0);
}

static void on_closed(uv_handle_t *handle)
{
    struct console *c = handle->data;

    (void)close(c->fd);
    c->fd = -1;
}

void console_close(struct console *c)
{
    if (!c->open)
        return;
    c->open = false;
    buf_finish(&c->pending);
    if (c->is_file) {
        (void)close(c->fd); /* a failed write was noticed when it was made */
        return;
    }
    uv_close((uv_handle_t *)&c->poll, on_closed);
}
