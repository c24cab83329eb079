#pragma once

/*
 * Pairwise reduce-scatter of long data, where each host has one rank: every rank sends each other one the part that
 * belongs there, and combines what comes with its own part, in rank order. So the bits are those of one host, and a rank
 * sends (hosts - 1) / hosts of its array: half of what an all-reduce takes.
 *
 * Ways it fails: a socket ends, nothing moves for too long, the interrupt. The caller ends the group.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/net/net_link_sock.h"

enum { PAIRWISE_HOSTS_MAX = 64 }; /* each of them is two sockets of every rank */

struct pairwise {
    struct net_flow flow;
    int n_hosts, host;
    struct net_link *const *out, *const *in; /* by host: to it and from it; the own ones are not looked at */
    uint8_t *room;    /* line-aligned; what came and waits for the parts of other hosts */
    size_t room_size; /* 128 bytes for each host at least */
};

/* data: count elements for each host, in order; the part for this one becomes result, which may be that part itself. 0,
 * NET_E_..., -errno. */
int pairwise_reduce_scatter(struct pairwise *p, const void *data, void *result, size_t count,
                            enum crw_dtype dtype, enum crw_op op);
