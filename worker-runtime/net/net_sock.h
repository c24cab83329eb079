#pragma once

/*
 * A rank's place in the network: where others reach it, whom it is connected to, and the thread that takes
 * what comes in. One for the world; the groups of some of its ranks share it.
 *
 *   control   a few connections to ranks of other hosts, made at the start, for news alone: who ended is told
 *             along them until every rank has heard it. The end of one is news itself.
 *   data      links of a group, both ends used by whoever makes a collective; the thread only accepts them.
 *   messages  one way from rank to rank, made when first sent on. The thread receives them, so that a sender
 *             need not wait for a receiver that is busy.
 */

#include "worker-runtime/shm/failure_detector_os.h"
#include "worker-runtime/net/net_frame.h"
#include "worker-runtime/net/tcp_sock.h"

enum { NET_MESSAGE_ROOM = 512 * 1024 }; /* bytes of messages that wait for a receiver */

struct net;
struct net_inbox;

/* Listens on that address. The watch learns what the network tells, and tells it what it sees; it must outlive
 * the net. 0 or -errno, with a sentence. */
int net_create(const char *address, int rank, int world_size, struct failure_detector *detector,
               struct net **ret);
struct net *net_share(struct net *n);
/* The last user says goodbye. NULL is fine. */
void net_destroy(struct net *n);

const struct net_peer *net_self(const struct net *n);

/* Starts the thread. peers: of all ranks, copied; token: NET_TOKEN bytes that only this job's ranks know. 0 or -errno,
 * with a sentence. */
int net_start(struct net *n, const struct net_peer *peers, const uint8_t *token);

/* Numbers for groups: the next one that this rank has not used. */
uint32_t net_next_group(const struct net *n);
/* From now on the next one is behind this one. */
void net_use_group(struct net *n, uint32_t group);

/* A group of which this rank is a member, before messages can be sent in it. 0 or -ENOMEM. */
int net_add_group(struct net *n, uint32_t group);

/* Connects to a rank of the world; hello->from, to and token are filled in. 0 or a result of crw.h, with a sentence. */
int net_connect(struct net *n, const struct net_wait *wait, struct net_hello hello, int to, int *ret_fd);
/* The connection that another rank made to us, waiting for it. The same results. */
int net_claim(struct net *n, const struct net_wait *wait, struct net_hello hello, int from, int *ret_fd);

/* A control connection to rank, made by us; takes it over. Those made to us count by themselves. */
int net_add_control(struct net *n, int rank, int fd);
/* Waits until others have made that many to us. */
int net_await_controls(struct net *n, const struct net_wait *wait, int n_controls);

/* Whoever waits here for messages looks whether its group is over. */
void net_wake(struct net *n);

/*
 * Takes n_bytes (data NULL: to nowhere) that rank sent to us in a group; one taker at a time. is_over: asked after the
 * bytes that are there were looked at; whoever makes it true makes the interrupt readable and calls net_wake(). 0;
 * NET_E_LOST (it closed), NET_E_INTERRUPTED (is_over), NET_E_TIMEOUT.
 */
int net_take(struct net *n, const struct net_wait *wait, uint32_t group, int from, void *data, size_t n_bytes,
             bool (*is_over)(void *data), void *over_data);
/* This rank leaves the group: forgets what came for it and was not claimed or taken, and notifies the ranks that wait for
 * this one. */
void net_forget_group(struct net *n, uint32_t group);
