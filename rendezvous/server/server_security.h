#pragma once

/*
 * Which agents and clients a server lets in.
 */

#include <stdbool.h>
#include <stddef.h>

#include "proto/secret_key.h"

struct tls_context;
struct exchange_conn;

/* How agents get the secret of their job by a credential (exchange_uv.h). */
struct server_exchange {
    /* Takes a request; exchange_conn_reply() follows from the loop, not during this call, unless cancel() comes first. 0 or
     * -errno. */
    int (*begin)(void *data, struct exchange_conn *c, const char *credential, size_t n);
    void (*cancel)(void *data, struct exchange_conn *c);
    void *data;
};

/* Jobs for which find_key has a key are closed: their agents have to prove it. Other jobs are open, unless `require`. */
struct server_security {
    secret_key_find *find_key; /* called on the server's loop: may not block; NULL: no job has a key */
    void *data;
    bool require;
    /* In place of find_key: agents, and nodes of a fenced store, have to present a certificate, for any job. The server becomes
     * another owner. */
    struct tls_context *certified;
    /*
     * A server on loopback: only clients of this process's user, or of root, are accepted. Where the kernel cannot list
     * the owners of sockets, all are, and one line of the log reports that; none is with `require`.
     */
    bool own_user;
    /* The caller admits clients by own_user, or has admitted those of server_adopt(). Agents and stores of nodes prove nothing. */
    bool is_private;
    /* Clients of the store are accepted only from addresses from which an agent has proved the store's key. */
    bool fence;
    const struct server_exchange *exchange; /* NULL: none; outlives the server. With rounds only. */
};
