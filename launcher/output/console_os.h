#pragma once

/*
 * Standard output or standard error of crun, written without waiting for a slow reader: what the console does not take
 * yet stays in `pending`, and console_poll_events() asks the owner to poll for room.
 *
 * The descriptor is shared with the workers and with the process that started crun, so its flags must not change. A
 * pipe or a terminal is opened a second time, and O_NONBLOCK is set there.
 *
 * A regular file can make write() wait for its disk: only the output thread calls console_write().
 */

#include <stdbool.h>

#include "base/buf.h"

enum {
    CONSOLE_FULL = 128 << 10, /* producers stop when more than this is pending */
};

struct console {
    int fd; /* owned */
    bool is_socket;
    bool may_block; /* could not be opened a second time: small writes, and only when poll() reports room */
    bool broken;    /* the reader has closed its end: everything is dropped */
    bool is_open;
    struct buf pending; /* whole lines; append here, then call console_write() */
};

/* stdio: 1 or 2. Returns 0 or -errno. */
int console_open(struct console *c, int stdio);

/* Writes what the console takes now. */
void console_write(struct console *c);

/* The events to poll c->fd for: POLLOUT while something is pending, else 0. */
short console_poll_events(const struct console *c);

/* Waits up to timeout_ms for room. False when there was none. */
bool console_wait(struct console *c, int timeout_ms);

/* Drops what is pending. Nothing happens on one that is not open. */
void console_close(struct console *c);
