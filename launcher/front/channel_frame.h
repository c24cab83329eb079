#pragma once

/*
 * The bytes between a front (`crun --hosts`) and a far end (`crun --front-channel` on a host), on the standard input and
 * output of the far end. See PROTOCOL.md, "Channel of a host".
 *
 *   far end                                                  front
 *   "\nCRUN-CHANNEL 1 VERSION\n"                        ->
 *                                                       <-   SECRET, DIRECTORY, VARIABLE..., ARGUMENT..., START
 *   OPEN, DATA, END_OF_STREAM, PONG, NOTE, ...          ->
 *                                                       <-   DATA, WINDOW, PING, SIGNAL, ...
 *   RESULT                                              ->
 *
 * A frame is a head of CHANNEL_HEAD bytes (u8 kind, u8 zero, u16 zero, u32 stream, u32 size; little endian) and `size` bytes of
 * payload: bytes, or up to CHANNEL_NUMBERS_MAX u32. A frame that its sender may not send, of a wrong size, with a NUL byte in a text, or with a number that the kind does
 * not have ends the channel. The decoder finds all of these, so that no consumer checks a payload again.
 *
 * Decoders take all bytes that have arrived, and need at most one frame at a time. No allocation but in
 * the encoders.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum channel_kind {
    CHANNEL_SECRET = 1, /* first frame of the front: the job's secret; empty: the job is open */
    CHANNEL_DIRECTORY,  /* header, at most once: the working directory */
    CHANNEL_VARIABLE,   /* header: NAME=VALUE */
    CHANNEL_ARGUMENT,   /* header: an argument of the agent */
    CHANNEL_START,      /* end of the header: struct channel_start */
    CHANNEL_OPEN,       /* a new stream: struct channel_open */
    CHANNEL_DATA,
    CHANNEL_END_OF_STREAM, /* the sender sends no more DATA on the stream */
    CHANNEL_WINDOW,        /* number of further bytes that the sender of the frame takes */
    CHANNEL_PING,
    CHANNEL_PONG,
    CHANNEL_SIGNAL, /* number of a signal for the agent */
    CHANNEL_NOTE,   /* a sentence of the far end */
    CHANNEL_RESULT, /* last frame of the far end: struct channel_result */
    CHANNEL_KIND_COUNT
};

enum {
    CHANNEL_HEAD = 12,
    CHANNEL_PAYLOAD_MAX = 64 << 10,
    CHANNEL_SECRET_MAX = 4096,
    CHANNEL_TEXT_MAX = 4096,      /* of a DIRECTORY or a NOTE */
    CHANNEL_HEADER_MAX = 4 << 20, /* heads and payloads of a whole header */
};

enum channel_stream_kind {
    CHANNEL_STDIN, /* of rank 0, on the host of rank 0 */
    CHANNEL_STDOUT,
    CHANNEL_STDERR,
    CHANNEL_AGENT_OUT,
    CHANNEL_AGENT_ERR,
    CHANNEL_CONNECTION, /* a connection of the agent to the rendezvous */
    CHANNEL_ERROR_FILE, /* a file, here and below, as in output_handover_sock.h */
    CHANNEL_STACKS,
    CHANNEL_NCCL_TEXT,
    CHANNEL_NCCL_JSON,
    CHANNEL_STREAM_KIND_COUNT
};

struct channel_start {
    uint32_t shutdown_s; /* time of the agent for its workers, after SIGTERM */
    uint32_t n_workers;  /* workers that the host can have; the bound of its streams comes from these */
};

struct channel_open {
    uint32_t kind; /* enum channel_stream_kind */
    uint32_t rank, local_rank,
        attempt; /* of output and files; else 0. From STACKS on: local_rank numbers the folder of stacks */
};

struct channel_result {
    uint32_t has_exited; /* 1 or 0 */
    uint32_t code;       /* exit code, or without has_exited the number of the signal */
};

enum { CHANNEL_NUMBERS_MAX = 4 };

struct channel_frame {
    enum channel_kind kind;
    uint32_t stream;
    const uint8_t *bytes; /* the payload; points into the bytes that were decoded */
    size_t n;
    union { /* the payload of a kind with numbers */
        uint32_t numbers[CHANNEL_NUMBERS_MAX];
        struct channel_start start;
        struct channel_open open;
        uint32_t window, signal;
        struct channel_result result;
    };
};

/* 0 or -ENOMEM; `out` is unchanged then. The caller keeps the bounds of the kind. */
int channel_frame_append(struct buf *out, enum channel_kind kind, uint32_t stream, const void *bytes,
                         size_t n);
int channel_numbers_append(struct buf *out, enum channel_kind kind, uint32_t stream, const uint32_t *numbers,
                           size_t n);

/* 1: *ret is the next frame, of *ret_size bytes in all. 0: more bytes are needed. -EBADMSG: the sender broke the protocol;
 * found as soon as the head is there, or the whole frame. */
int channel_frame_take(const uint8_t *bytes, size_t n, bool from_far, struct channel_frame *ret,
                       size_t *ret_size);

/* The line in front of the frames of a far end, without a newline: VERSION of crun follows. */
#define CHANNEL_GREETING "CRUN-CHANNEL 1 "

/* 1: the line is a greeting. 0: none. -EPROTO: a greeting of another protocol. */
int channel_greeting_check(const char *line);
