#pragma once

/*
 * The store at which the workers of a generation meet, opened where workers that connect to `host` arrive.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct server;

bool is_numeric_address(const char *host);

/*
 * host: an address, or a name, which is not looked up: then every address of this node answers, but for
 * localhost. NULL: every address. port 0: a free one. The port is held until server_stop(). 0 or -errno.
 */
int worker_store_open(struct server **ret, uv_loop_t *loop, const char *host, uint16_t port,
                      uint16_t *ret_port);

/*
 * TORCH_DISABLE_SHARE_RDZV_TCP_STORE: a port for the store that the first worker opens. It is bound to the descriptor,
 * but nobody listens: so nobody else is given it, and a server that allows reuse of addresses, as all do, can still
 * open it. 0 or -errno.
 */
int worker_store_hold(int *ret_fd, uint16_t *ret_port);
