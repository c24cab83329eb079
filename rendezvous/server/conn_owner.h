#pragma once

/*
 * Whose connection it is, where quotas count: a user of this machine, or the network that it comes from. Found once, when the connection
 * is accepted (listener_uv.c), and handed on with its socket. No I/O.
 */

#include <stdbool.h>
#include <stdint.h>

struct conn_owner {
    uint64_t id; /* never 0; all processes of this machine whose user is not known are one owner */
    bool is_own; /* root, or the user of this process, on this machine */
};

/* A user of this machine. */
struct conn_owner conn_owner_user(uint32_t uid, bool is_own);

/* The user is not known; network: see address_network(). */
struct conn_owner conn_owner_network(uint64_t network);

/* Of conn_owner_user(). */
uint32_t conn_owner_uid(const struct conn_owner *o);

/* For the quota of connections (address_quota.h): 0 for root and for the user of this process. */
uint64_t conn_owner_quota(const struct conn_owner *o);

/* It is on this machine, and may have taken any address of it. */
bool conn_owner_is_local(uint64_t network);
