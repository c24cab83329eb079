#pragma once

/*
 * A rank's net: the address at which others reach it, its connections, and the thread that receives on them. One for the
 * world; the groups of some of its ranks share it.
 *
 *   control   a few connections to ranks of other hosts, made at the start, for the gossip of failures alone: each rank
 *             passes on the end of a rank once. The end of such a connection is the end of its rank.
 *   data      links of a group, used at both ends by the thread that runs a collective; the net only accepts them. The end of a link
 *             proves no failure: a rank that has finished closes the link with its last bytes still on the way. So it ends a wait,
 *             and the reason comes from the gossip if that arrives.
 *   messages  one way from rank to rank, made when first sent on. The net's thread receives them, so that a sender
 *             need not wait for a receiver that is busy.
 *   presence  from a rank that waits for a message to one that has sent none: ends when that one leaves the group.
 */

#include "worker-runtime/shm/failure_detector_os.h"
#include "worker-runtime/net/net_frame.h"
#include "worker-runtime/net/net_link_sock.h"

enum { NET_MESSAGE_ROOM = 512 * 1024 }; /* bytes of messages that wait for a receiver */

struct net;
struct job_key;

/* Listens on that address. The failure detector gets the ends that the net learns of, and reports
 * those of this host; it must outlive the net. 0 or -errno, with a message. */
int net_create(const char *address, int rank, int world_size, struct failure_detector *detector,
               struct net **ret);
struct net *net_share(struct net *n);
/* The last user announces that this rank leaves, and ends the thread. NULL is fine. */
void net_destroy(struct net *n);

const struct net_peer *net_self(const struct net *n);

/* Starts the thread. peers: of all ranks, copied; token: NET_TOKEN bytes that only this job's ranks
 * know; key: copied. 0 or -errno, with a message. */
int net_start(struct net *n, const struct net_peer *peers, const uint8_t *token, const struct job_key *key);

/* Numbers for groups: the next one that this rank has not used. */
uint32_t net_next_group(const struct net *n);
/* From now on the next one is behind this one. */
void net_use_group(struct net *n, uint32_t group);

/* A group of which this rank is a member, before messages can be sent in it. 0 or -ENOMEM. */
int net_add_group(struct net *n, uint32_t group);

/* Connects to a rank of the world; hello->from, to, token and what proves the key are filled in. 0 or a result of crw.h,
 * with a message. */
int net_connect(struct net *n, const struct net_wait *wait, struct net_hello hello, int to,
                struct net_link **ret);
/* The connection that another rank made to this one, waiting for it. The same results. */
int net_claim(struct net *n, const struct net_wait *wait, struct net_hello hello, int from,
              struct net_link **ret);

/* The message for -EBADMSG (net_link_sock.h) of a connection to rank; CRW_E_PEER. */
int net_fail_changed(int rank);

/* Registers a control connection to rank that this rank made, and takes it over. Those made by others
 * are registered by the thread. */
int net_add_control(struct net *n, int rank, struct net_link *link);
/* Waits until others have made that many to us. */
int net_await_controls(struct net *n, const struct net_wait *wait, int n_controls);

/* Makes the threads that wait here for messages ask is_over(). */
void net_wake(struct net *n);

/*
 * Receives n_bytes (data NULL: discards them) that rank sent to this one in a group; one receiver at a
 * time. is_over: asked when no bytes are left. To wake a waiter: make is_over() return true, make
 * wait->interrupt_fd readable, call net_wake(), in this order. 0; NET_E_LOST (the sender closed or
 * left), NET_E_INTERRUPTED (is_over), NET_E_TIMEOUT, -EBADMSG (net_link_sock.h).
 */
int net_take(struct net *n, const struct net_wait *wait, uint32_t group, int from, void *data, size_t n_bytes,
             bool (*is_over)(void *data), void *over_data);
/* This rank leaves the group: forgets what came for it and was not claimed or taken, and notifies the ranks that wait for
 * this one. */
void net_forget_group(struct net *n, uint32_t group);
