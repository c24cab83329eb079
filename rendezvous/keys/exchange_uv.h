#pragma once

/*
 * Connections of agents that ask for the secret of their job by a credential (proto/key_exchange.h): one request, one reply,
 * the end. struct server_exchange holds all knowledge of credentials.
 *
 * Ways to fail: other bytes, a late request, a late answer, more than EXCHANGES_MAX connections, or more than
 * EXCHANGES_EACH_MAX of one address. The server closes the connection, and the agent dials again.
 */

#include <stddef.h>

#include "proto/key_exchange.h"

struct exchange_conn;
struct server;
struct server_config;

/* Answers a request, from the loop, and ends the connection. Not for a cancelled request. */
void exchange_conn_reply(struct exchange_conn *c, enum key_exchange_code code, const char *credential,
                         size_t n);

/* Adds the service to a server with rounds whose security has an exchange. 0 or -ENOMEM. Internal to the server. */
int exchange_shell_add(struct server *s, const struct server_config *config);
