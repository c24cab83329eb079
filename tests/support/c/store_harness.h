#pragma once

/*
 * The store core with clients but without sockets: bytes in, bytes out. What the server does around the
 * core (greeting, slicing, cutting off) is done here in the shortest way.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "proto/wire.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/store/store.h"

enum { HARNESS_CLIENTS_MAX = 16 };

struct harness_client {
    struct store_client client;
    struct wire_scanner scanner;
    struct buf in;
    struct outbox out; /* replies not taken yet */
    bool greeted;
    bool closed; /* cut off by the server side */
    int result;  /* what store_apply() said then; 0: the bytes were not a message */
};

struct harness {
    struct store store;
    struct wire_limits wire;
    /* CRUN_STORE_TURN: each request is executed in turns of so many units, and each turn may reply with about so many bytes; 0: no limit. */
    uint64_t turn;
    size_t turn_output;
    struct harness_client clients[HARNESS_CLIENTS_MAX];
};

/* limits NULL: the defaults. Returns 0 or -ENOMEM. */
int harness_init(struct harness *h, const struct store_limits *limits);
void harness_finish(struct harness *h);

/* The client sends n bytes. A client that was cut off sends into nothing. */
void harness_feed(struct harness *h, unsigned client, const uint8_t *data, size_t n);

/* The client closes its side, or starts anew after that. */
void harness_close(struct harness *h, unsigned client);

/* Moves up to n bytes of what the client was answered to `to`; returns how many. */
size_t harness_take(struct harness *h, unsigned client, uint8_t *to, size_t n);

static inline size_t harness_pending(const struct harness *h, unsigned client)
{
    return outbox_size(&h->clients[client].out);
}
