#pragma once

/*
 * Which rank of a group is on which host, and which ranks are connected over the network. Pure.
 *
 * Hosts are numbered in the order of their lowest ranks; the first rank of a host is its leader. Leaders
 * are connected to those 1, 2, 4, 8 ... hosts ahead (round the ring), which is what Bruck's all-gather
 * takes: after as many rounds as there are such distances, every host has the blocks of all. Ranks of a
 * host have rails: the i-th rank of a host is connected to the i-th rank of the next one, and carries a
 * share of long data.
 */

#include <stdbool.h>
#include <stddef.h>

enum {
    TOPOLOGY_ROUNDS_MAX = 12,       /* 1 << TOPOLOGY_ROUNDS_MAX hosts */
    TOPOLOGY_RAIL_MIN = 128 * 1024, /* bytes that are worth a rail of their own */
    TOPOLOGY_SLICE_UNIT = 64,       /* shares begin at lines */
};

struct topology {
    int world_size, n_hosts;
    int host, local;         /* of this rank: its host, its number there */
    int n_rails;             /* ranks of the smallest host */
    int n_most;              /* ranks of the largest host */
    bool in_order;           /* the ranks of each host follow each other */
    int *host_of, *local_of; /* by rank */
    int *ranks;              /* host by host, in ascending order */
    int *first;              /* by host: where its ranks begin there; one more at the end */
};

/* keys: by rank, the same number for those on one host, 0 <= key < n_keys. 0 or -ENOMEM. */
int topology_init(struct topology *h, const int *keys, int n_keys, int world_size, int rank);
/* Zeroed is fine. */
void topology_finish(struct topology *h);

static inline int topology_host_size(const struct topology *h, int host)
{
    return h->first[host + 1] - h->first[host];
}

static inline int topology_rank(const struct topology *h, int host, int local)
{
    return h->ranks[h->first[host] + local];
}

/* Round the ring: `by` hosts ahead (or back, if negative). */
int topology_ahead(const struct topology *h, int host, int by);

int topology_n_rounds(int n_hosts);

/* In this round of an exchange every host sends its first n_blocks blocks 1 << round hosts ahead. */
int topology_n_blocks(int n_hosts, int round);

/*
 * Whether a reduction of n_bytes takes less time as all-to-all of slices between the leaders and an all-gather of the
 * results (2 log2(hosts) steps, each leader sending the data of all ranks of its host about log2(hosts) / 2 times) than in
 * the chain (2 (hosts - 1) steps). The same on all ranks.
 */
bool topology_prefers_transpose(const struct topology *h, size_t n_bytes);

/* How many rails carry n_bytes. */
int topology_rails_for(const struct topology *h, size_t n_bytes);

/* The share of a rail; whole units but for the last byte of all. */
struct topology_slice {
    size_t begin, end;
};
struct topology_slice topology_slice(size_t n_bytes, int n_rails, int rail);
