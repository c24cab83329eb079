#pragma once

/*
 * One host as the front sees it: the launch command (ssh), the dialogue with the bootstrap script, then the frames of the channel
 * (channel_frame.h).
 *
 * The launch command has a session of its own and dies with the front (PR_SET_PDEATHSIG). Output in front of the greeting is noise of login scripts,
 * but for lines "CRUN-NEEDS MACHINE HASH" and "CRUN-FAILED SENTENCE"; the last of it is kept for the sentence about a failure.
 *
 * Queued output is bounded: bytes of streams by the windows of the far end, the header by CHANNEL_HEADER_MAX.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/front/channel_frame.h"
#include "launcher/front/channel_port_uv.h"

struct host_channel;

struct host_channel_handler {
    void *data;
    /* The host asks for the build of that hash: host_channel_give_copy() follows. */
    void (*on_needs)(void *data, unsigned host, const char *hash);
    void (*on_greeted)(void *data, unsigned host);
    /* 0; or -errno, which ends the channel. After host_channel_close() none comes. */
    int (*on_frame)(void *data, unsigned host, const struct channel_frame *frame);
    /* A line that the launch command, or the far end, has written to standard error. */
    void (*on_line)(void *data, unsigned host, const char *line);
    /* The channel has ended: host_channel_close() follows. why: part of a sentence. After a RESULT as well. */
    void (*on_lost)(void *data, unsigned host, const char *why);
};

struct host_launch {
    const char *file; /* a path */
    char *const *argv, *const *environment;
};

/* NULL without memory; after another failure on_lost() follows at the next tick. Handler and name outlive the channel. */
struct host_channel *host_channel_start(uv_loop_t *loop, unsigned host, const char *name,
                                        const struct host_launch *launch,
                                        const struct host_channel_handler *handler);

/* The answer to on_needs: n bytes that stay valid until the channel is destroyed; 0: there is no such build. */
void host_channel_give_copy(struct host_channel *c, char *bytes, size_t n);

struct channel_link *host_channel_link(struct host_channel *c);

/* Frames are appended to the buffer, then flushed. */
struct buf *host_channel_out(struct host_channel *c);
void host_channel_flush(struct host_channel *c);

/* Why the far end could not do its part, as it has noted; NULL: it has noted nothing. */
const char *host_channel_note(const struct host_channel *c);

/* Every two seconds: a PING, and the judgement about silence. */
void host_channel_tick(struct host_channel *c);

/* For how long the far end has not answered a PING. */
unsigned host_channel_silence_s(const struct host_channel *c);

/* That process of the front's has ended: whether it was the launch command. */
bool host_channel_reap(struct host_channel *c, pid_t pid, int status);

/* No event follows. Before the greeting the launch command is killed; later the far end sees the end of its input. */
void host_channel_close(struct host_channel *c);

/* Whether the launch command still runs. */
bool host_channel_is_alive(const struct host_channel *c);

/* After host_channel_close(), when the loop has run. NULL is fine. */
void host_channel_destroy(struct host_channel *c);
