#pragma once

/*
 * The streams of one channel, kept alike by both ends: open numbers, bytes that each end may still send, bytes that each end has to
 * grant. An end that sends beyond its window, or on an unknown stream, ends the channel.
 *
 * DATA of output comes from the far end, DATA of stdin from the front, DATA of a connection from both. A stream is gone when
 * each sender of DATA has sent END_OF_STREAM. A WINDOW of the receiver may cross the END_OF_STREAM, so a WINDOW for a stream
 * that is gone is dropped.
 *
 * The owner reports consumed bytes with channel_stream_grant(), and dropped bytes too: the other end would wait for ever.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/front/channel_frame.h"

enum {
    CHANNEL_STREAMS_MAX =
        16384, /* open at once: 2 for each of 4,096 workers, the replaced ones', connections */
    CHANNEL_OUTPUT_WINDOW = 256 << 10,
    CHANNEL_CONNECTION_WINDOW = 64 << 10,
    CHANNEL_STDIN_WINDOW = 64 << 10, /* the far end grants so much once its agent wants stdin */
};

struct channel_stream {
    uint32_t number;
    struct channel_open open;
    uint32_t may_send;    /* bytes that the other end takes */
    uint32_t may_receive; /* bytes that the other end may still send */
    uint32_t owed;        /* consumed bytes, not granted yet */
    bool has_sent_end, has_received_end;
    void *data; /* the owner's */
};

struct channel_streams {
    bool is_far, wants_stdin;
    uint32_t last;               /* highest number so far */
    struct channel_stream **all; /* sorted by number */
    size_t n, capacity;
};

void channel_streams_init(struct channel_streams *s, bool is_far);
/* The data of the streams is the owner's. */
void channel_streams_finish(struct channel_streams *s);

/* NULL: not there, or gone. */
struct channel_stream *channel_streams_find(const struct channel_streams *s, uint32_t number);

/* The far end: opens a stream of its own and appends the OPEN. 0, -ENOMEM, or -EMFILE above CHANNEL_STREAMS_MAX. */
int channel_streams_open(struct channel_streams *s, const struct channel_open *open, struct buf *out,
                         struct channel_stream **ret);

/* Both ends, once: stream 0. The far end appends STDIN_WANTED and the first WINDOW. 0 or -ENOMEM. */
int channel_streams_want_stdin(struct channel_streams *s, struct buf *out, struct channel_stream **ret);

/*
 * Applies an OPEN, STDIN_WANTED, DATA, END_OF_STREAM or WINDOW of the other end. 0: *ret is the stream (the owner may pass the stream
 * to channel_streams_drop_ended() afterwards), or NULL when nothing is to be done. -ENOMEM; -EBADMSG: the other end broke the
 * protocol.
 */
int channel_streams_apply(struct channel_streams *s, const struct channel_frame *frame,
                          struct channel_stream **ret);

/* Appends DATA: n <= may_send, and <= CHANNEL_PAYLOAD_MAX. 0 or -ENOMEM. */
int channel_stream_send(struct channel_stream *stream, const void *bytes, size_t n, struct buf *out);
/* Appends END_OF_STREAM once; further calls do nothing. 0 or -ENOMEM. */
int channel_stream_send_end(struct channel_stream *stream, struct buf *out);
/* n received bytes were consumed. Appends a WINDOW when half of the window is owed. 0 or -ENOMEM. */
int channel_stream_grant(struct channel_stream *stream, size_t n, struct buf *out);

/* True: the stream was gone and is freed now. */
bool channel_streams_drop_ended(struct channel_streams *s, struct channel_stream *stream);
