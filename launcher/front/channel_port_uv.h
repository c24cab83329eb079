#pragma once

/*
 * One end of a channel with its streams (link), and the descriptors that carry streams (ports), alike for the far end and the front. A port
 * reads its descriptor into DATA as far as the stream's window allows, writes the DATA of the other end to the descriptor,
 * and grants the written bytes. The port closes when both directions are at their end.
 *
 * A port without a stream opens a stream with the first byte read (far end). Above CHANNEL_OUT_MAX bytes for the other end no
 * port reads, so a slow other end blocks the writers behind the descriptors.
 *
 * Ways to fail: a broken descriptor (its bytes are dropped and granted), an early close (the stream stays without a port until
 * both ends have ended the stream), no memory (`failure`; the stream ends).
 */

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "launcher/front/channel_streams.h"
#include "base/buf.h"
#include "base/list.h"

enum { CHANNEL_OUT_MAX = 512 << 10 };

/* Bytes for a stream of libuv: appended to `queued`, then flushed. */
struct channel_writer {
    uv_stream_t *to;
    uv_write_t write;
    struct buf queued, sending; /* queued: behind the bytes of `sending`, which libuv has */
    bool is_broken;             /* the stream takes nothing any more: all bytes are dropped */
    void (*on_sent)(struct channel_writer *w, size_t n); /* n bytes were sent, or dropped */
};

size_t channel_writer_size(const struct channel_writer *w);
void channel_writer_flush(struct channel_writer *w);

struct channel_link {
    struct channel_streams streams;
    struct buf in;             /* bytes of the other end */
    struct channel_writer out; /* frames for the other end */
    struct list ports;
    bool is_deaf; /* the other end is gone: ports read what comes and drop it */
    bool is_over; /* no frame is passed on any more */
    int failure;  /* 0 or -errno */
};

typedef int channel_frame_fn(void *data, const struct channel_frame *frame);

void channel_link_init(struct channel_link *l, bool is_far, uv_stream_t *to);
/* Passes on each whole frame of `in` until is_over, or on_frame() fails: also behind a failed write, as the last frames of the other end
 * may be there already. 0 or -errno. */
int channel_link_take(struct channel_link *l, channel_frame_fn *on_frame, void *data);
/* Ports of the kind are closed. */
void channel_link_close(struct channel_link *l, enum channel_stream_kind kind);
/* The other end is gone. Connections end. */
void channel_link_go_deaf(struct channel_link *l);
/* Behind the close of all ports, when the loop has run. */
void channel_link_finish(struct channel_link *l);

struct channel_port {
    uv_pipe_t pipe; /* of any descriptor with which pipe(2) or socket(2) reads and writes */
    struct list entry;
    struct channel_link *link;
    struct channel_writer to;
    struct channel_open open;
    struct channel_stream *stream; /* NULL: before the first byte, or closed */
    size_t left;                   /* bytes that may still be read */
    bool reads;                    /* more is to be read */
    bool has_all;                  /* behind the queued bytes nothing follows */
};

/* Takes fd in any case; with a stream, stream->data is the port until it closes. 0 or -errno. */
int channel_port_create(struct channel_link *l, int fd, const struct channel_open *open,
                        struct channel_stream *stream);

/* Opens the port's stream, unless that was done. 0 or -errno. */
int channel_port_open(struct channel_port *p);

/* DATA, END_OF_STREAM or WINDOW of the port's stream. 0 or -ENOMEM. */
int channel_port_take(struct channel_port *p, const struct channel_frame *frame);

/* The process behind the descriptor has ended: what had been written is still read, nothing is written. The port may close. */
void channel_port_drain(struct channel_port *p);

void channel_port_close(struct channel_port *p);
