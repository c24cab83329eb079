#pragma once

/*
 * The agent session's bytes: the frames of crun and the rendezvous around their JSON bodies. See
 * PROTOCOL.md, "Agent session".
 *
 *   agent                              rendezvous
 *   VALIDATE, PING(nonce)         ->
 *                                 <-   nonce            (any TCPStore answers so far)
 *   opening, frame, frame, ...    ->
 *                                 <-   opening, frame, frame, ...
 *
 * A frame is a u32 length (little-endian) and that many bytes of body. An empty frame is a sign of life.
 *
 * The decoder takes what arrived, in slices of any size, and never wants more than one frame at a time. No
 * I/O, no allocation.
 */

#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

/* The first byte is no operation of a TCPStore, so that PyTorch's closes the connection here. The digit is
 * the version of what follows: change it when the frames change, or a body that older ones must not read. */
#define FRAME_OPENING                                                                                        \
    "\xC5"                                                                                                   \
    "crun/1\n"

enum {
    FRAME_OPENING_SIZE = sizeof(FRAME_OPENING) - 1,
    FRAME_OPENING_VERSION_AT = 6, /* where the digit is */
    FRAME_FIRST_BYTE = 0xC5,      /* by which a server recognises an agent */
    FRAME_HEADER_SIZE = 4,
    FRAME_BODY_MAX = 16384,
};

/* Results of decoding. All but FRAME_E_MORE are final. */
enum {
    FRAME_E_MORE = 1, /* nothing wrong so far; reader->need: how many bytes it takes at least */
    FRAME_E_FOREIGN,  /* the peer is something else: found at the first wrong byte */
    FRAME_E_VERSION,  /* the peer is one of us, of another version: reader->version */
    FRAME_E_LONG,     /* a body above FRAME_BODY_MAX: reader->need has its length */
};

enum frame_kind {
    FRAME_ECHO,   /* the peer speaks the TCPStore protocol */
    FRAME_OPENED, /* the peer speaks ours */
    FRAME_ALIVE,
    FRAME_BODY,
    FRAME_KIND_COUNT
};

/* What comes next. */
enum frame_stage { FRAME_STAGE_ECHO, FRAME_STAGE_OPENING, FRAME_STAGE_FRAMES };

struct frame_reader {
    enum frame_stage stage;
    uint32_t nonce; /* of the PING */
    size_t need;
    char version; /* after FRAME_E_VERSION: the peer's digit */
};

struct frame {
    enum frame_kind kind;
    struct wire_span body; /* of FRAME_BODY; points into what was decoded */
};

/* The agent's side expects the echo first; the rendezvous, the opening. */
void frame_reader_init_agent(struct frame_reader *f, uint32_t nonce);
void frame_reader_init_server(struct frame_reader *f);

/*
 * Decodes what starts at data[0], of which n bytes are there. 0: *ret is set, and *ret_size bytes are used
 * up. Otherwise nothing is; after FRAME_E_MORE it may be called again with more (even at another address).
 */
int frame_decode(struct frame_reader *f, const uint8_t *data, size_t n, struct frame *ret, size_t *ret_size);

/* Encoders append; 0 or -ENOMEM, the buf then holds what it held. */
int frame_put_greeting(struct buf *out, uint32_t nonce); /* VALIDATE and PING */
int frame_put_opening(struct buf *out);
int frame_put_alive(struct buf *out);
/* -EMSGSIZE: above FRAME_BODY_MAX. An empty body would be an "I am here": -EINVAL. */
int frame_put_body(struct buf *out, const void *body, size_t n);
