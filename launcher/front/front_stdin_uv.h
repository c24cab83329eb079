#pragma once

/*
 * Standard input of the front, for the host of rank 0. The front reads while rank 0 takes bytes and crun is in the foreground of
 * the terminal. The end of the input passes on. The process that started crun shares the descriptor, so the flags stay unchanged.
 */

#include <uv.h>

struct channel_stream;
struct front_stdin;
struct host_channel;

int front_stdin_create(struct front_stdin **ret, uv_loop_t *loop);

/* Further bytes go to the stream; front_stdin_go_on() follows. */
void front_stdin_attach(struct front_stdin *s, struct host_channel *channel, struct channel_stream *stream);

/* The stream may have a window, or crun may be in the foreground again: to be called every few seconds. */
void front_stdin_go_on(struct front_stdin *s);

/* The channel is gone. */
void front_stdin_detach(struct front_stdin *s, const struct host_channel *channel);

/* Frees s later, on the loop. NULL is fine. */
void front_stdin_close(struct front_stdin *s);
