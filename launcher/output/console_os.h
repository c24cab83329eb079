#pragma once

/*
 * Standard output or standard error of crun, written without waiting for a slow reader: what the console does not take
 * yet stays in `pending`, and console_poll_events() asks the owner to poll for room.
 *
 * The descriptor is shared with the workers and with the process that started crun, so its flags must not change. A
 * pipe or a terminal is opened a second time, and O_NONBLOCK is set there.
 *
 * A regular file can make write() wait for its disk: only the output thread calls console_write(). While it cannot be
 * written (full disk, quota), lines are dropped and counted; a sentence of crun is kept, and tried at once and every second.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum {
    CONSOLE_FULL = 128 << 10, /* producers stop when more than this is pending */
    CONSOLE_KEPT = 64 << 10,  /* sentences beyond this are dropped as lines are */
};

struct console {
    int fd; /* owned */
    bool is_socket;
    bool may_block;  /* could not be opened a second time: small writes, and only when poll() reports room */
    bool broken;     /* the reader has closed its end: everything is dropped */
    bool is_disk;    /* a file: it may be full for a while, and then have room again */
    bool is_in_line; /* is_disk: the last byte written ends no line */
    int disk_error;  /* is_disk: errno of the last write; 0: it worked */
    uint64_t retry_ns; /* disk_error: time of the next try, monotonic */
    uint64_t n_lost;   /* disk_error: bytes of lines dropped */
    struct buf kept;   /* is_disk: sentences of crun, written behind `pending`, not dropped */
    bool is_open;
    struct buf pending; /* whole lines; append here, then call console_write() */
};

/* stdio: 1 or 2. Returns 0 or -errno. */
int console_open(struct console *c, int stdio);

/* Writes what the console takes now. */
void console_write(struct console *c);

/* Appends a sentence of crun, behind what is pending. 0 or -ENOMEM. */
int console_say(struct console *c, const void *text, size_t n);

/* The events to poll c->fd for: POLLOUT while something is pending, else 0. */
short console_poll_events(const struct console *c);

/* Waits up to timeout_ms for room. False when there was none. */
bool console_wait(struct console *c, int timeout_ms);

/* Drops what is pending. Nothing happens on one that is not open. */
void console_close(struct console *c);
