#pragma once

/*
 * Messages from one rank of a host to another, in the memory that they share. There is a channel from each
 * rank to each other one, made when it is first used; messages arrive in the order in which they were sent.
 * Channels know nothing of each other nor of collectives: one thread may be in each of them at a time.
 *
 * A short message is on its way when shm_p2p_send() returns. A longer one waits for its receiver: two ranks
 * that send long messages to each other before either receives wait for the deadline.
 */

#include "worker-runtime/shm/shm_os.h"

#include <stddef.h>

struct p2p_channel;

struct shm_p2p {
    struct shm *shm;
    struct p2p_channel **out, **in; /* by peer; NULL: not used so far */
};

/* 0 or -ENOMEM. shm must outlive it. */
int shm_p2p_init(struct shm_p2p *p, struct shm *shm);
/* Before shm_finish(). Zeroed is fine. */
void shm_p2p_finish(struct shm_p2p *p);

/* 0; CRW_E_PEER, CRW_E_TIMEOUT: the group has failed; -errno. */
int shm_p2p_send(struct shm_p2p *p, const void *data, size_t n_bytes, int to);
/* The same, and CRW_E_ARGUMENT: the message had another size; it was dropped, and data is undefined. */
int shm_p2p_receive(struct shm_p2p *p, void *data, size_t n_bytes, int from);
