#pragma once

/*
 * What the leader of a host tells the others through the worker store: which ranks are there, and where
 * each of them listens. Pure; it reads what anybody who reaches the store may have written.
 */

#include "worker-runtime/net/net_sock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct table_entry {
    int32_t rank;
    struct net_peer peer;
};

/* Of a whole job. */
struct table {
    int world_size;
    struct net_peer *peers;   /* by rank */
    int *keys;                /* by rank: the number of its host; -1: not told yet */
    uint8_t token[NET_TOKEN]; /* by the host with number 0 */
};

/* 0 or -ENOMEM. */
int table_init(struct table *t, int world_size);
/* Zeroed is fine. */
void table_finish(struct table *t);

/* The bytes that a host puts into the store, malloc'ed; NULL: no memory. token: zeroes but for host 0. */
uint8_t *table_encode(const struct table_entry *entries, int n, const uint8_t token[NET_TOKEN],
                      size_t *ret_size);

/* Adds what the host with that number told. False: that is no such table, or a rank is impossible or on
 * two hosts; the table is as good as lost then. */
bool table_add(struct table *t, int host, const uint8_t *data, size_t size);

/* A rank that listens on a loopback address although a rank of another host does not, which can therefore not reach it;
 * -1: there is none. */
int table_find_unreachable(const struct table *t);

/* Every rank is on some host. */
bool table_is_complete(const struct table *t);
