#pragma once

/*
 * Connections of agents that ask for the secret of their job by a credential (proto/key_exchange.h): one request, one reply,
 * the end. What the server's process knows of credentials stands behind struct server_exchange.
 *
 * Ways it fails: other bytes, no whole request in time, no answer in time, more than EXCHANGES_MAX at once, or more than
 * EXCHANGES_EACH_MAX of one address: the connection is closed, and the agent dials again.
 */

#include <stdbool.h>
#include <stddef.h>

#include "proto/key_exchange.h"
#include "rendezvous/server/server_security.h"

struct exchange_conn;
struct server;
struct server_config;

/* Answers a request, from the loop, and ends its connection. Not for a request that was cancelled. */
void exchange_conn_reply(struct exchange_conn *c, enum key_exchange_code code, const char *credential,
                         size_t n);

/* Adds the service to a server with rounds whose security has an exchange. 0 or -ENOMEM. Internal to the server. */
int exchange_shell_add(struct server *s, const struct server_config *config);
