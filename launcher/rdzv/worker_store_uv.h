#pragma once

/* The store of the workers of a generation, listening where connections of workers to `host` arrive. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/cli/job.h"

struct server;
struct job_keys;
struct store_stats;

struct worker_store_options {
    /* An address to listen on; "localhost": loopback; another name, which is not resolved, or NULL: every address of this node. */
    const char *host;
    /* No other address than host is listened on, and with host NULL none before worker_store_listen_for(). */
    bool is_narrow;
    uint16_t port; /* 0: a free one */
    /* A store on loopback accepts clients of crun's own user and of root alone, unless JOB_SECURITY_OPEN. */
    enum job_security security;
    struct job_keys
        *keys; /* of its workers' nodes, which have to prove the store's key first; NULL: none has to */
};

/* Of any server inside crun: listens on 127.0.0.1, and on ::1 with the same port where the machine has IPv6. As server_listen_tcp(). */
int listen_on_loopback(struct server *server, uint16_t port, uint16_t *ret_port);

/* The port is held until server_stop(). 0 or -errno. */
int worker_store_open(struct server **ret, uv_loop_t *loop, const struct worker_store_options *options,
                      uint16_t *ret_port);

/* The store is the one at master_addr, a numeric address or a name, of a generation: it listens there too, if that is an address of
 * this machine and it does not yet. 0 or -errno. */
int worker_store_listen_for(struct server *server, const char *master_addr, uint16_t port);

/* Stores that are opened from now on count their requests there; it outlives them. NULL: nothing is counted. */
void worker_store_measure(struct store_stats *stats);
struct store_stats *worker_store_measured(void);

/*
 * TORCH_DISABLE_SHARE_RDZV_TCP_STORE: a port for the store that the first worker opens. The descriptor is bound to it
 * but does not listen: the kernel gives it to no other socket by itself, and a server that sets SO_REUSEADDR, as all do,
 * can still listen on it. 0 or -errno.
 */
int worker_store_hold(int *ret_fd, uint16_t *ret_port);
