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

struct hang_rank;

/* The end of a connection: an address in numbers and a port. Never 0. */
uint64_t store_client_of(const char *host, uint16_t port);

/* A rank in the name of a key, of a world with n_ranks; -1: none.
 *
 *   ready/1, rank_1_ready, worker:1      1
 *   default_pg/0//cpu//0/2               2   gloo: the address of rank 2
 *   default_pg/0//cuda//7                0   NCCL: rank 0 sets all unique ids
 *   default_pg/0//3//cpu//0/1            -1  a rank within a smaller group
 *   store_based_barrier_key:0:last_worker, init/   -1 */
int store_key_rank(const char *key, size_t size, size_t n_ranks);

/* Adds a wait to the ranks of all nodes: the text of the rank with that connection. n_keys: the rank waits for so many, and `key` is the
 * first. */
void store_waits_add(struct hang_rank *ranks, size_t n_ranks, uint64_t client, const char *key,
                     size_t key_size, size_t n_keys);

/* After all waits were added: hang_rank.is_awaited. */
void store_waits_end(struct hang_rank *ranks, size_t n_ranks);
