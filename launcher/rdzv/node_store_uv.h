#pragma once

/*
 * The worker store of a node with --worker-store=local: it listens on loopback and forwards over one TLS connection to the rendezvous,
 * which keeps the keys, see node_store_uv.c.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/cli/job.h"
#include "launcher/rdzv/resolver_uv.h"
#include "rendezvous/relay/relay_link.h"

struct node_store;
struct tls_context;

struct node_store_config {
    uv_loop_t *loop;
    const struct resolver_addresses *rendezvous; /* where it is; needed for the call only */
    const struct relay_space *space;             /* which keys; needed for the call only */
    struct tls_context *tls;                     /* of KEY_RELAY. Outlives it. */
    enum job_security security;
    /* Where it is by now; false: it is not known. */
    bool (*find)(void *data, struct resolver_addresses *ret);
    /* The rendezvous cannot be reached, or does not have the keys any more: all clients are closed. why: a part of a sentence. May stop it. */
    void (*on_failed)(void *data, const char *why);
    void *data;
};

/* *ret_port: where it listens, on 127.0.0.1. 0 or -errno. Callbacks come from the loop. */
int node_store_start(struct node_store **ret, const struct node_store_config *config, uint16_t *ret_port);

/* Closes its clients, and frees itself when its handles are closed. NULL is fine. */
void node_store_stop(struct node_store *n);
