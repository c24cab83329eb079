#pragma once

/*
 * Standard output or standard error of crun, written without ever waiting for a slow reader: what it does not
 * take yet stays here, and the owner is told when there is room again.
 *
 * The descriptor is shared with the workers and with whoever started crun, so its flags are not ours to
 * change. A pipe or a terminal is opened a second time, for our own use.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/buf.h"

enum {
    CONSOLE_FULL = 128 << 10, /* more than this is not kept here: producers are to wait */
};

struct console {
    int fd; /* ours */
    bool is_terminal;
    bool is_socket;
    bool may_block; /* could not be opened a second time: small writes, and only when there is room */
    bool is_file;   /* takes everything at once */
    bool broken;    /* nobody reads any more; everything is dropped */
    bool waiting;   /* for room */
    bool open;
    struct buf pending; /* whole lines; append here, then console_write() */
    uv_poll_t poll;
    void (*on_room)(void *data);
    void *data;
};

/* stdio: 1 or 2. Returns 0 or -errno. */
int console_open(struct console *c, uv_loop_t *loop, int stdio, void (*on_room)(void *), void *data);

/* Writes what can be written now. When something is left, on_room is called after it has become less. */
void console_write(struct console *c);

/* Waits up to timeout_ms for room. False when there was none. */
bool console_wait(struct console *c, int timeout_ms);

/* Drops what is pending. The memory must live until the loop has run dry. */
void console_close(struct console *c);
