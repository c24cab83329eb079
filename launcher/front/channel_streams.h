#pragma once

/*
 * The streams of one channel, kept alike by both ends: open numbers, bytes that each end may still send, bytes that each end has to
 * grant. An end that sends beyond its window, or on an unknown stream, ends the channel. So does a far end that opens more
 * streams than its workers can have: each stream takes descriptors of the front.
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
#include "base/list.h"

enum {
    CHANNEL_OUTPUT_WINDOW = 256 << 10,
    CHANNEL_CONNECTION_WINDOW = 64 << 10,
    CHANNEL_STDIN_WINDOW = 64 << 10,
    CHANNEL_BUCKETS = 64,
};

struct channel_stream {
    struct list entry; /* of a bucket */
    uint32_t number;
    struct channel_open open;
    uint32_t may_send;    /* bytes that the other end takes */
    uint32_t may_receive; /* bytes that the other end may still send */
    uint32_t owed;        /* consumed bytes, not granted yet */
    bool has_sent_end, has_received_end;
    void *data; /* the owner's */
};

struct channel_streams {
    bool is_far;
    uint32_t last;                      /* highest number so far */
    size_t max_connections, max_others; /* open at once */
    size_t n_connections, n_others;
    struct list all[CHANNEL_BUCKETS]; /* by number % CHANNEL_BUCKETS */
};

void channel_streams_init(struct channel_streams *s, bool is_far);
/* Of a host with n_workers workers. No stream can be opened before. */
void channel_streams_limit(struct channel_streams *s, size_t n_workers);
/* The data of the streams is the owner's. */
void channel_streams_finish(struct channel_streams *s);

/* Whether an end sends DATA on a stream of the kind. */
bool channel_kind_is_sent(enum channel_stream_kind kind, bool by_far);

/* Whether a stream of the kind can be opened now. */
bool channel_streams_have_room(const struct channel_streams *s, enum channel_stream_kind kind);

/* NULL: not there, or gone. */
struct channel_stream *channel_streams_find(const struct channel_streams *s, uint32_t number);

/* The far end: opens a stream of its own and appends the OPEN. 0; -EMFILE without room; -ENOMEM, which ends the channel. */
int channel_streams_open(struct channel_streams *s, const struct channel_open *open, struct buf *out,
                         struct channel_stream **ret);

/*
 * Applies an OPEN, DATA, END_OF_STREAM or WINDOW of the other end. 0: *ret is the stream (the owner may pass the stream
 * to channel_streams_drop_ended() afterwards), or NULL when nothing is to be done. -ENOMEM; -EMFILE: an OPEN without room;
 * -EBADMSG: the other end broke the protocol.
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
