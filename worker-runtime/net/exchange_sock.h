#pragma once

/*
 * All-gather of one small block per host among the host leaders: Bruck's algorithm, ceil(log2 hosts)
 * rounds. In each round a host sends the blocks that it has so far.
 *
 * And an all-to-all over the same links.
 *
 * A block begins with the signature of the call and its length, so that hosts that are in different
 * calls find out, all of them, and stay in step for the next one.
 */

#include "worker-runtime/shm/topology.h"
#include "worker-runtime/net/net_link_sock.h"

#include <stdint.h>

enum { EXCHANGE_MAX = 128 * 1024 }; /* bytes of the blocks of all hosts, their heads included */

struct exchange_links {
    struct net_link *ahead[TOPOLOGY_ROUNDS_MAX],
        *back[TOPOLOGY_ROUNDS_MAX]; /* 1 << round hosts ahead, and back */
};

struct exchange_block {
    uint64_t signature;
    uint32_t host;
    uint32_t n_bytes; /* that follow */
};

struct exchange {
    struct net_flow flow;
    const struct topology *topology;
    const struct exchange_links *links;
    uint32_t number; /* of exchanges so far: both ends must be at the same one */
    uint8_t *blocks; /* EXCHANGE_MAX bytes; own block first, then backwards round the ring */
    size_t *begins;  /* by block; one more at the end; n_hosts + 1 of them */
};

/* The most bytes for each rank, with as many ranks as there are, that fit. */
size_t exchange_capacity(const struct topology *topology);

/* n_bytes of this host. 0, NET_E_..., -EPROTO (another host sent what is impossible), other -errno. */
int exchange_run(struct exchange *x, uint64_t signature, const void *data, size_t n_bytes);

/*
 * All-to-all of blocks of n_block bytes, Bruck's algorithm: as many rounds, in each of which a host sends half of its
 * blocks. blocks: n_hosts of them, block i for the host i ahead; after it block i is from the host i back. room: n_hosts
 * blocks. All hosts with the same n_block, which they have agreed on. The results of exchange_run().
 */
int exchange_transpose(struct exchange *x, uint8_t *blocks, size_t n_block, uint8_t *room);

/* After exchange_run(): the block of a host. The data is in x->blocks until the next exchange. */
struct exchange_block exchange_block_of(const struct exchange *x, int host, const uint8_t **ret_data);
