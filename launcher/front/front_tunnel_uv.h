#pragma once

/*
 * A connection of a remote agent to the rendezvous of the front: bytes of a stream of the channel, and of a unix socket to the server.
 * Both ways are bounded by the windows of the stream.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>
#include <uv.h>

struct channel_stream;
struct front_tunnel;
struct host_channel;

/* The address of an abstract socket, which has a length. */
struct front_address {
    struct sockaddr_un name;
    socklen_t size;
};

/* stream->data is the tunnel from here on. 0 or -errno: the stream was not touched. */
int front_tunnel_open(struct host_channel *channel, struct channel_stream *stream, uv_loop_t *loop,
                      const struct front_address *server);

/* Bytes of the agent; 0 or -ENOMEM. */
int front_tunnel_data(struct front_tunnel *t, const uint8_t *bytes, size_t n);
/* The agent has sent everything. */
void front_tunnel_end(struct front_tunnel *t);
/* The agent takes more bytes. */
void front_tunnel_window(struct front_tunnel *t);

/* The stream or its channel is gone. NULL is fine. */
void front_tunnel_close(struct front_tunnel *t);
