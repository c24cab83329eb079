#pragma once

/* The peer table: which ranks are on which host, and where each of them listens. The leader of each
 * host publishes its part in the worker store. Pure; it decodes what any client of the store may have
 * written. */

#include "worker-runtime/net/net_frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peer_table_entry {
    int32_t rank;
    struct net_peer peer;
};

/* Of a whole job. */
struct peer_table {
    int world_size;
    struct net_peer *peers;   /* by rank */
    int *keys;                /* by rank: the number of its host; -1: not known yet */
    uint8_t token[NET_TOKEN]; /* by the host with number 0 */
};

/* 0 or -ENOMEM. */
int peer_table_init(struct peer_table *t, int world_size);
/* Zeroed is fine. */
void peer_table_finish(struct peer_table *t);

/* The bytes that a host puts into the store, malloc'ed; NULL: no memory. token: zeroes but for host 0. */
uint8_t *peer_table_encode(const struct peer_table_entry *entries, int n, const uint8_t token[NET_TOKEN],
                           size_t *ret_size);

/* Adds the part of the host with that number. False: that is no such table, or a rank is impossible
 * or on two hosts; the table is unusable then. */
bool peer_table_add(struct peer_table *t, int host, const uint8_t *data, size_t size);

/* A rank that listens on a loopback address although a rank of another host does not, which can therefore not reach it;
 * -1: there is none. */
int peer_table_find_unreachable(const struct peer_table *t);

/* Every rank is on some host. */
bool peer_table_is_complete(const struct peer_table *t);
