#pragma once

/*
 * Collectives and messages of a group over several hosts. The ranks of one host meet in the memory that they
 * share (shm_os.h); the hosts speak over TCP (tcp_sock.h).
 *
 * Every collective begins the same way: the ranks of a host meet; their leaders exchange which call this is
 * and, when it is short, the data of all ranks; the ranks of a host meet again and all have the same answer. What
 * is long then goes through the chain of hosts (chain_reduce_sock.h), each rank of a host carrying a share.
 *
 * Elements are combined in rank order, so the bits are those of one host; when the ranks of a host do not
 * follow each other, long data is combined host by host, in rank order in each.
 *
 * Ways to die: a rank of this host ends (the watch ends the shared memory and makes `interrupt_fd` readable), one of
 * another host does (the watch hears it from the net), a connection closes, nobody comes in time. Whoever
 * sees it ends its group here and closes its links, which frees those who wait at the other ends.
 */

#include "worker-runtime/net/exchange_sock.h"
#include "worker-runtime/shm/topology.h"
#include "worker-runtime/shm/shm_os.h"
#include "worker-runtime/net/net_sock.h"

struct inter_host {
    struct topology topology;
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
    unsigned n_broadcast_pieces; /* pieces that went through the leader's room so far */
    uint64_t *locations;         /* by number here: where its array is */
    void **views, **targets;     /* scratch */
};

/* keys: by rank of the group, the same for those on one host. Takes a share of net, not shm. 0 or -errno, with a
 * sentence; then it is zeroed. */
int inter_host_init(struct inter_host *s, struct net *net, uint32_t group, struct shm *shm, const int *keys,
                    int n_keys, int rank, int world_size, const int *world);
/* Makes the links; all ranks at the same time. Results of crw.h. interrupt_fd: of the watch. */
int inter_host_connect(struct inter_host *s, int interrupt_fd);
/* The control connections of the world; before the links. */
int inter_host_connect_controls(struct inter_host *s, int interrupt_fd);
/* Zeroed is fine. */
void inter_host_finish(struct inter_host *s);
/* Frees whoever waits: the shared memory was ended. For struct watched. */
void inter_host_interrupt(void *span);

int inter_host_all_reduce(struct inter_host *s, void *data, size_t count, enum crw_dtype dtype,
                          enum crw_op op);
int inter_host_reduce(struct inter_host *s, void *data, size_t count, enum crw_dtype dtype, enum crw_op op,
                      int root);
int inter_host_reduce_scatter(struct inter_host *s, const void *data, void *result, size_t count,
                              enum crw_dtype dtype, enum crw_op op);
int inter_host_broadcast(struct inter_host *s, void *data, size_t n_bytes, int root);
int inter_host_all_gather(struct inter_host *s, const void *data, size_t n_bytes, void *all);
int inter_host_gather(struct inter_host *s, const void *data, size_t n_bytes, void *all, int root);
int inter_host_scatter(struct inter_host *s, const void *all, size_t n_bytes, void *data, int root);
int inter_host_barrier(struct inter_host *s);
int inter_host_alloc(struct inter_host *s, size_t n_bytes, void **ret_data);

/* To and from ranks of other hosts. */
int inter_host_send(struct inter_host *s, const void *data, size_t n_bytes, int to);
int inter_host_receive(struct inter_host *s, void *data, size_t n_bytes, int from);

/* ------------------------------------------------------------------ between the files of it */

/* Nobody reads the wire of a group that is over. Forwards r: the sentence is there. */
int inter_host_break(struct inter_host *s, int r);
/* A result of tcp_sock.h becomes one of crw.h and the end of the group; fd: whose. */
int inter_host_fail(struct inter_host *s, int r, int fd);
/* shm_phase_barrier(); 0, CRW_E_ARGUMENT, or the group is over. */
int inter_host_local_barrier(struct inter_host *s, const struct shm_slot *slot);

/*
 * Everybody says n_bytes (exchange_capacity() at most) and `location`, where its array is for the ranks of
 * this host. *ret_table: what all said, rank by rank, until the next call; NULL: not wanted. s->locations is what
 * this host's ranks said. 0; CRW_E_ARGUMENT: not all were in this call; or the group is over.
 */
int inter_host_agree(struct inter_host *s, uint64_t signature, uint64_t location, const void *data,
                     size_t n_bytes, const uint8_t **ret_table);

/* n_bytes from root's `from` to everybody's `to` (NULL: not wanted) on the hosts from root's to `last`, down the
 * ring; without saying anything first. root's own `to` is not looked at. */
int inter_host_chain_broadcast(struct inter_host *s, const void *from, void *to, size_t n_bytes, int root,
                               int last);

/* This rank's room for pieces, INTER_HOST_STAGING bytes; those of the host are in its shared memory. */
enum { INTER_HOST_STAGING = 1024 * 1024 };
int inter_host_stage(struct inter_host *s);
/* Where that rank of this host has its room. */
uint8_t *inter_host_staging_of(const struct inter_host *s, int local);
/* The lane's ring is there. */
int inter_host_need_ring(struct inter_host *s);

static inline bool inter_host_is_alone(const struct inter_host *s) /* the only rank of its host */
{
    return s->shm->world_size == 1;
}
