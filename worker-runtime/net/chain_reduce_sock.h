#pragma once

/*
 * Chain reduce and chain broadcast of long data, as one rail carries it: each host is connected to the
 * one before and to the one after.
 *
 * A reduction goes up the chain and down again. The first host sends the partial result of its ranks,
 * each next one adds its own ranks and sends it on, the last one has the result and sends it back. So
 * elements are combined in rank order whatever the number of hosts is, with the bits of one host, and
 * each element goes over each link once up, and once down if a host below wants it. Both directions are
 * under way at the same time, in blocks that stay in the cache.
 *
 * A broadcast is the way down alone, from any host.
 *
 * The data of the host's ranks is in shared memory, or there is one rank only.
 */

#include "worker-runtime/crw.h"
#include "worker-runtime/net/net_link_sock.h"

enum { CHAIN_RING = 512 * 1024 }; /* bytes that a host holds of what is on its way up */

struct chain {
    struct net_flow flow;
    /* before NULL: the first host, after NULL: the last. (Down: the last to get it, the first.) */
    struct net_link *before, *after;
    uint8_t *ring; /* CHAIN_RING bytes, line-aligned */
};

/*
 * sources, targets: where the host's ranks have the count elements and want them, in rank order; targets[0] is where
 * results come in, n_targets >= 1. n_ranks: of all hosts.
 *
 * n_wanted: results come in here for the first so many elements only (the last host makes all of them); n_passed, at most
 * n_wanted: the first so many of them go on to the hosts before. What no host further down wants is not sent.
 *
 * wrap: after so many elements the arrays begin again at their first one; 0: they hold all elements.
 */
struct chain_arrays {
    enum crw_dtype dtype;
    enum crw_op op;
    int n_ranks;
    const void *const *sources;
    int n_sources;
    void *const *targets;
    int n_targets;
    size_t count, n_wanted, n_passed, wrap;
};

/* How far a reduction is: bytes. Zeroed at its begin. */
struct chain_progress {
    size_t came, combined, went;
    size_t arrived, copied, passed;
};

/*
 * A reduction in steps, each 0, NET_E_..., -errno: the first n_ready elements of the sources are there. Returns when
 * the first n_done of them have been combined, and their results are in the targets and passed on: that part of the
 * arrays may be used again. Elements between n_done and n_ready are under way meanwhile. The last step is that with
 * n_done = count.
 */
int chain_reduce_step(struct chain *s, const struct chain_arrays *arrays, struct chain_progress *progress,
                      size_t n_ready, size_t n_done);

/* n_bytes from the host that has after = NULL to all before it, into targets[0] and from there into the others.
 * There targets[0] is the source. */
int chain_broadcast(struct chain *s, void *const *targets, int n_targets, size_t n_bytes);
