#pragma once

/*
 * What a front does with the streams of its channels, by kind: output of ranks is shown and kept (front_output_uv.h), lines of
 * agents are shown once (common_lines.h), connections go to the rendezvous (channel_port_uv.h), rank 0 gets standard input.
 */

#include <uv.h>

#include "launcher/front/common_lines.h"
#include "launcher/front/last_lines.h"

struct channel_frame;
struct front_output;
struct front_server;
struct front_stdin;
struct host_channel;

struct front_streams {
    uv_loop_t *loop;
    const unsigned *n_usable;    /* hosts, as in struct front */
    struct front_server *server; /* NULL: agents dial a crund themselves */
    struct front_output *output;
    struct front_stdin *input;
    struct common_lines lines;      /* names and n_hosts are the caller's */
    uv_timer_t timer;               /* runs while lines are held */
    uint32_t attempt;               /* highest so far */
    struct last_lines stderr_lines; /* of streams that the console does not show */
    bool is_showing;                /* held lines */
};

/* Without memory for the lines' timer nothing fails. The members above `timer` are the caller's. */
void front_streams_init(struct front_streams *s);

/* A frame of a stream. 0 or -errno, which ends the channel. */
int front_streams_frame(struct front_streams *s, unsigned host, struct host_channel *c,
                        const struct channel_frame *frame);

/* n bytes of a stream of output were consumed. */
void front_streams_grant(struct host_channel *c, uint32_t number, size_t n);

/* Before host_channel_close(). */
void front_streams_close_host(struct front_streams *s, unsigned host, struct host_channel *c);

/* front_output_say() for lines of the front itself, behind the held lines. */
bool front_streams_say(struct front_streams *s, const char *lines);

/* Shows the held lines; no stream is open any more. */
void front_streams_finish(struct front_streams *s);
