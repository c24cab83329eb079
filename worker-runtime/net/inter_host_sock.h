#pragma once

/*
 * Collectives and messages of a group over several hosts. The ranks of one host meet in the memory that they
 * share (shm_os.h); the hosts speak over TCP (tcp_sock.h).
 *
 * Every collective begins the same way: the ranks of a host meet; their leaders exchange which call this is
 * and, when it is short, the data of all ranks; the ranks of a host meet again and all have the same answer. What
 * is long then goes through the chain of hosts (chain_reduce.h), each rank of a host carrying a share.
 *
 * Elements are combined in rank order, so the bits are those of one host; when the ranks of a host do not
 * follow each other, long data is combined host by host, in rank order in each.
 *
 * Ways to die: a rank of this host ends (the watch ends the shared memory and makes `interrupt_fd` readable), one of
 * another host does (the watch hears it from the net), a connection closes, nobody comes in time. Whoever
 * sees it ends its group here and closes its links, which frees those who wait at the other ends.
 */

#include "worker-runtime/net/exchange.h"
#include "worker-runtime/shm/topology.h"
#include "worker-runtime/shm/shm_os.h"
#include "worker-runtime/net/net_sock.h"

struct span {
    struct hosts hosts;
    struct shm *shm; /* the part of this host; its rank 0 is the leader */
    struct net *net;
    uint32_t group;   /* its number for the net */
    const int *world; /* what its ranks are in the world; NULL: the same */
    struct net_wait wait;
    int interrupt_fd; /* an eventfd */

    struct exchange_links links; /* the leader's; else -1 */
    struct exchange exchange;    /* the leader's */
    int before, after;           /* of this rank's lane, round the ring; -1: it has none */
    int *out;                    /* by rank: messages to it; -1: none so far */
    uint8_t *own;                /* the leader's: what its host says */
    uint8_t *table;              /* what all ranks say, where nobody else of this host needs it */
    uint8_t *ring;               /* the lane's */
    uint8_t *staging;            /* this rank's; NULL: not used so far */
    unsigned n_spread;           /* pieces that went through the leader's room so far */
    uint64_t *locations;         /* by number here: where its array is */
    void **views, **targets;     /* scratch */
};

/* keys: by rank of the group, the same for those on one host. Takes a share of net, not shm. 0 or -errno, with a
 * sentence; then it is zeroed. */
int span_init(struct span *s, struct net *net, uint32_t group, struct shm *shm, const int *keys, int n_keys,
              int rank, int world_size, const int *world);
/* Makes the links; all ranks at the same time. Results of crw.h. interrupt_fd: of the watch. */
int span_connect(struct span *s, int interrupt_fd);
/* The control connections of the world; before the links. */
int span_connect_controls(struct span *s, int interrupt_fd);
/* Zeroed is fine. */
void span_finish(struct span *s);
/* Frees whoever waits: the shared memory was ended. For struct watched. */
void span_interrupt(void *span);

int span_all_reduce(struct span *s, void *data, size_t count, enum crw_dtype dtype, enum crw_op op);
int span_reduce(struct span *s, void *data, size_t count, enum crw_dtype dtype, enum crw_op op, int root);
int span_reduce_scatter(struct span *s, const void *data, void *result, size_t count, enum crw_dtype dtype,
                        enum crw_op op);
int span_broadcast(struct span *s, void *data, size_t n_bytes, int root);
int span_all_gather(struct span *s, const void *data, size_t n_bytes, void *all);
int span_gather(struct span *s, const void *data, size_t n_bytes, void *all, int root);
int span_scatter(struct span *s, const void *all, size_t n_bytes, void *data, int root);
int span_barrier(struct span *s);
int span_alloc(struct span *s, size_t n_bytes, void **ret_data);

/* To and from ranks of other hosts. */
int span_send(struct span *s, const void *data, size_t n_bytes, int to);
int span_receive(struct span *s, void *data, size_t n_bytes, int from);

/* ------------------------------------------------------------------ between the files of it */

/* Nobody reads the wire of a group that is over. Forwards r: the sentence is there. */
int span_break(struct span *s, int r);
/* A result of tcp_sock.h becomes one of crw.h and the end of the group; fd: whose. */
int span_fail(struct span *s, int r, int fd);
/* shm_meet(); 0, CRW_E_ARGUMENT, or the group is over. */
int span_meet(struct span *s, const struct shm_post *post);

/*
 * Everybody says n_bytes (exchange_capacity() at most) and `location`, where its array is for the ranks of
 * this host. *ret_table: what all said, rank by rank, until the next call; NULL: not wanted. s->locations is what
 * this host's ranks said. 0; CRW_E_ARGUMENT: not all were in this call; or the group is over.
 */
int span_say(struct span *s, uint64_t what, uint64_t location, const void *data, size_t n_bytes,
             const uint8_t **ret_table);

/* n_bytes from root's `from` to everybody's `to` (NULL: not wanted) on the hosts from root's to `last`, down the
 * ring; without saying anything first. root's own `to` is not looked at. */
int span_spread(struct span *s, const void *from, void *to, size_t n_bytes, int root, int last);

/* This rank's room for pieces, SPAN_STAGING bytes; those of the host are in its shared memory. */
enum { SPAN_STAGING = 1024 * 1024 };
int span_stage(struct span *s);
/* Where that rank of this host has its room. */
uint8_t *span_staging_of(const struct span *s, int local);
/* The lane's ring is there. */
int span_need_ring(struct span *s);

static inline bool span_is_alone(const struct span *s) /* the only rank of its host */
{
    return s->shm->world_size == 1;
}
