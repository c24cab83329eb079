#pragma once

/*
 * Inter-host communicator: collectives and messages of a group over several hosts. The ranks of one host
 * meet in the memory that they share (shm_os.h); the hosts use TCP (tcp_sock.h).
 *
 * Every collective begins the same way: a barrier of the ranks of a host; their leaders exchange the
 * signature of the call and, when it is short, the data of all ranks; a second barrier of the host,
 * after which all its ranks have the same answer. Long data then goes through the chain of hosts
 * (chain_reduce_sock.h), each rank of a host carrying a share.
 *
 * Elements are combined in rank order, so the bits are those of one host; when the ranks of a host do
 * not follow each other, long data is combined host by host, in rank order in each.
 *
 * Ways it fails: a rank of this host ends (the failure detector ends the shared memory and makes
 * `interrupt_fd` readable), one of another host does (the detector learns it from the net), a connection
 * closes, a rank does not come in time. The rank that notices it ends its group here and closes its
 * links, which frees the ranks that wait at the other ends.
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

    struct exchange_links links;     /* the leader's; else NULL */
    struct exchange exchange;        /* the leader's */
    struct net_link *before, *after; /* of this rank's rail, round the ring; NULL: it has none */
    /* By host, for pairwise_reduce_sock.h; NULL: not used so far; the nearest are the rail's. Set once they are whole, in
     * before out: a message that fails on another thread cuts them. */
    struct net_link **_Atomic pairs_out, **_Atomic pairs_in;
    struct net_link **out;       /* by rank: messages to it; NULL: none so far */
    uint8_t *own;                /* the leader's: data of its host's ranks */
    uint8_t *table;              /* data of all ranks, on a host with a single rank */
    uint8_t *blocks;             /* the leader's, for transpositions; NULL: not used so far */
    size_t blocks_size;          /* of it */
    uint8_t *ring;               /* the rail's */
    uint8_t *staging;            /* this rank's; NULL: not used so far */
    unsigned n_broadcast_pieces; /* pieces that went through the leader's room so far */
    uint64_t *locations;         /* by number here: where its array is */
    void **views, **targets;     /* scratch */
};

/* keys: by rank of the group, the same for those on one host. Takes a share of net, not shm. 0 or
 * -errno, with a message; then it is zeroed. */
int inter_host_init(struct inter_host *s, struct net *net, uint32_t group, struct shm *shm, const int *keys,
                    int n_keys, int rank, int world_size, const int *world);
/* Makes the links; all ranks at the same time. Results of crw.h. interrupt_fd: of the failure
 * detector. */
int inter_host_connect(struct inter_host *s, int interrupt_fd);
/* The control connections of the world; before the links. */
int inter_host_connect_controls(struct inter_host *s, int interrupt_fd);
/* Zeroed is fine. */
void inter_host_finish(struct inter_host *s);
/* Frees the threads that wait: the shared memory was ended. For struct detected_group. */
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

/* ---- between the files of it ---- */

/* Shuts down all links of the group (a failed group's byte streams are out of step) and returns r
 * unchanged; the message is already set. */
int inter_host_break(struct inter_host *s, int r);
/* Turns a result of tcp_sock.h into one of crw.h and ends the group; link: the one that failed; NULL: none. */
int inter_host_fail(struct inter_host *s, int r, const struct net_link *link);
/* shm_phase_barrier(); 0, CRW_E_ARGUMENT, or the group has failed. */
int inter_host_local_barrier(struct inter_host *s, const struct shm_slot *slot);

/*
 * Collective: shares n_bytes (exchange_capacity() at most) of every rank and `location`, where its array
 * is for the ranks of this host. *ret_table: the data of all ranks, in rank order, until the next call;
 * NULL: not wanted. s->locations: of this host's ranks. 0; CRW_E_ARGUMENT: not all were in this call; or
 * the group has failed.
 */
int inter_host_agree(struct inter_host *s, uint64_t signature, uint64_t location, const void *data,
                     size_t n_bytes, const uint8_t **ret_table);

/* What inter_host_agree_on() takes, with more of it. */
struct inter_host_call {
    uint64_t signature, location;
    const void *data;
    size_t n_bytes; /* SHM_BOUNCE at most with combine, else what the exchange carries */
    int root;       /* the only rank whose data goes into the table; -1: that of all ranks */
    /* Not NULL: the exchange carries no data. Instead the leaders make the table (EXCHANGE_MAX bytes of room) of the data of
     * their ranks, when all are in this call. Results of exchange_sock.h. */
    int (*combine)(struct inter_host *s, const struct inter_host_call *call, uint8_t *table);
    const void *detail; /* for combine */
    int parity;         /* set for combine */
};
int inter_host_agree_on(struct inter_host *s, struct inter_host_call *call, const uint8_t **ret_table);
/* In combine: where the data of a rank of this host is. */
const uint8_t *inter_host_data_of(const struct inter_host *s, const struct inter_host_call *call, int local);

/* ---- short_reduce_sock.c ---- */

struct inter_host_sum {
    const void *data;
    size_t count;
    enum crw_dtype dtype;
    enum crw_op op;
};
/* Whether short_reduce() is the way for it. The same on all ranks. */
bool short_reduce_fits(const struct inter_host *s, size_t n_bytes);
/* Collective. *ret_table: all of the result, until the next call. Results of inter_host_agree(). */
int short_reduce(struct inter_host *s, uint64_t signature, const struct inter_host_sum *sum,
                 const uint8_t **ret_table);

/* ---- inter_host_sock.c ---- */

/* Chain broadcast of n_bytes from root's `from` into the `to` of the other ranks (NULL: not wanted)
 * on the hosts from root's to `last`, down the ring, without an agreement first. root's own `to` is
 * not used. */
int inter_host_chain_broadcast(struct inter_host *s, const void *from, void *to, size_t n_bytes, int root,
                               int last);

/* The bytes of a rail's slice that are in a piece; share: of a rail in every piece but the last. */
struct topology_slice inter_host_range(struct topology_slice slice, size_t share, size_t number);

/* This rank's room for pieces, INTER_HOST_STAGING bytes; those of the host are in its shared memory. */
enum { INTER_HOST_STAGING = 1024 * 1024 };
int inter_host_stage(struct inter_host *s);
/* Where that rank of this host has its room. */
uint8_t *inter_host_staging_of(const struct inter_host *s, int local);
/* Connects the ranks of all hosts with each other, where each host has one. All ranks at the same time. 0, or the group
 * has failed. */
int inter_host_need_pairs(struct inter_host *s);
/* Allocates the rail's ring. 0 or -ENOMEM. */
int inter_host_need_ring(struct inter_host *s);

static inline int inter_host_own_rank(const struct inter_host *s) /* in the group */
{
    return shm_name_of(s->shm, s->shm->rank);
}

static inline bool inter_host_is_alone(const struct inter_host *s) /* the only rank of its host */
{
    return s->shm->world_size == 1;
}
