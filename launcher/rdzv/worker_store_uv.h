#pragma once

/* The store of the workers of a generation, listening where connections of workers to `host` arrive. */

#include <stdint.h>
#include <uv.h>

struct server;
struct job_keys;
struct store_stats;

/*
 * host: an address to listen on; "localhost": loopback; another name, which is not resolved, or NULL: every address of
 * this node. port 0: a free one. The port is held until server_stop(). keys: those of its workers' nodes, which have to
 * prove the store's key first; NULL: clients come from anywhere. 0 or -errno.
 */
int worker_store_open(struct server **ret, uv_loop_t *loop, const char *host, uint16_t port,
                      struct job_keys *keys, uint16_t *ret_port);

/* Stores that are opened from now on count their requests there; it outlives them. NULL: nothing is counted. */
void worker_store_measure(struct store_stats *stats);

/*
 * TORCH_DISABLE_SHARE_RDZV_TCP_STORE: a port for the store that the first worker opens. The descriptor is bound to it
 * but does not listen: the kernel gives it to no other socket by itself, and a server that sets SO_REUSEADDR, as all do,
 * can still listen on it. 0 or -errno.
 */
int worker_store_hold(int *ret_fd, uint16_t *ret_port);
