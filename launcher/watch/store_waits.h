#pragma once

/*
 * Ranks that wait for keys of the worker store, and the ranks awaited there. Pure.
 *
 * The store knows connections, and each node knows the connections of its own workers (store_sockets_sock.h): a digest of the worker's end
 * of a connection joins both. The name of a key may have the rank that sets the key. A rank that waits for a key itself is not awaited by
 * name, so a counter that looks like a rank does little harm.
 */

#include <stddef.h>
#include <stdint.h>

enum { STORE_WAITS_MAX = 2048 /* of one description */ };

struct hang_rank;

/* Waits of the store. A key is kept as the end of its text. */
struct store_waits {
    struct store_wait {
        uint64_t client;
        int setter; /* -1: none */
        size_t n_keys;
        char key[64];
    } items[STORE_WAITS_MAX];
    size_t n, n_ranks; /* n_ranks: of the job */
};

/* The end of a connection: an address in numbers and a port. Never 0. */
uint64_t store_client_of(const char *host, uint16_t port);

/* A rank in the name of a key, of a world with n_ranks; -1: none.
 *
 *   ready/1, rank_1_ready, worker:1      1
 *   default_pg/0//cpu//0/2               2   gloo: the address of rank 2
 *   default_pg/0//cuda//7                0   NCCL: rank 0 sets all unique ids
 *   default_pg/0//3//cpu//0/1            -1  a rank within a smaller group
 *   store_based_barrier_key:0:last_worker, init/   -1
 *   crw/group/0/0/host/2     -1  libcrw: a host */
int store_key_rank(const char *key, size_t size, size_t n_ranks);

/* n_keys: the client waits for so many, and `key` is the first. Waits beyond STORE_WAITS_MAX are left out. */
void store_waits_add(struct store_waits *w, uint64_t client, const char *key, size_t key_size, size_t n_keys);

/* Gives the waits to the n_ranks ranks of all nodes: the text of a rank with such a connection, and hang_rank.is_awaited. The ranks may
 * be many, and are visited once. */
void store_waits_end(struct store_waits *w, struct hang_rank *ranks);
