#pragma once

/* The worker store as the group uses it: one connection, results of crw.h, messages by crw_fail(). */

#include "proto/client_sock.h"
#include "worker-runtime/crw.h"

#include <stddef.h>
#include <stdint.h>

struct store_conn {
    struct client_sock client;
    const char *host; /* the caller's */
    uint16_t port;
    int timeout_ms;
    int connect_ms; /* how long connecting is tried; as timeout_ms by default */
    bool connected;
};

/* Connects on first use. host must outlive it. */
void store_conn_init(struct store_conn *s, const char *host, uint16_t port, int timeout_ms);
/* While fd is readable no call waits; it returns CRW_E_PEER. */
void store_conn_set_interrupt(struct store_conn *s, int fd);
void store_conn_finish(struct store_conn *s);

/* Set for certain: every later reader finds it. */
int store_conn_set(struct store_conn *s, const char *key, const void *value, size_t n_bytes);
/* Waits until the key exists; timeout_ms < 0: the store's own. *ret_value is malloc'ed and has a NUL behind
 * it. */
int store_conn_get(struct store_conn *s, const char *key, int timeout_ms, void **ret_value,
                   size_t *ret_n_bytes);
int store_conn_add(struct store_conn *s, const char *key, int64_t amount, int64_t *ret_value);
/* A key that is not there is fine. */
int store_conn_delete(struct store_conn *s, const char *key);
/* Does nothing for a while; CRW_E_PEER: was interrupted. */
int store_conn_pause(struct store_conn *s, int pause_ms);
