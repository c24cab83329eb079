#pragma once

/*
 * One outgoing TCP connection on a libuv loop. A name is resolved until it has addresses, these are tried in turn, and
 * bytes are sent in order. It ends once: by on_lost, or by tcp_client_close(). With TLS, on_connected comes when both ends
 * have proved the key, and bytes are those inside.
 */

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/rdzv/resolver_uv.h"

struct tcp_client;
struct tls_context;

struct tcp_client_config {
    uv_loop_t *loop;
    const char *host; /* address or name; needed for the call only */
    uint16_t port;
    const struct resolver_addresses
        *addresses; /* instead of host and port, if not NULL; needed for the call only */
    /* With addresses and certificates: the name that the certificate at each address has to have, NULL: the one of `tls`. NULL: that
     * for all. The array is needed for the call only, the names until the connection has ended. */
    const char *const *names;
    unsigned silence_ms;            /* tcp_liveness_limit(); at least 3000, 0: no limit */
    unsigned turn;                  /* index of the first address to try, modulo their number */
    struct tls_context *tls;        /* NULL: in the clear. Outlives the connection. */
    void (*on_reached)(void *data); /* with TLS: the handshake begins. NULL: not wanted */
    void (*on_connected)(void *data);
    void (*on_finished)(void *data); /* with TLS: the peer has sent that nothing follows. NULL: not wanted */
    void (*on_bytes)(void *data, const uint8_t *bytes, size_t n);
    void (*on_lost)(void *data, const char *why); /* it frees itself; why: a part of a sentence */
    void *data;
};

/* 0 or -errno. No callback comes before it returns. */
int tcp_client_dial(struct tcp_client **ret, const struct tcp_client_config *config);

/* The numeric address of the local end of the connection; "" while there is none. */
void tcp_client_own_address(const struct tcp_client *l, char *ret, size_t size);

/* While a name is being resolved: why it has no address yet; else "". */
const char *tcp_client_trouble(const struct tcp_client *l);

/* Copies what cannot be sent at once. A failure is reported by on_lost. */
void tcp_client_send(struct tcp_client *l, const void *bytes, size_t n);

/* The address that the connection was made to; NULL before it is established. It is known even when the peer has reset the
 * connection and the loop has not read that yet. */
const union address_endpoint *tcp_client_peer(const struct tcp_client *l);

/* See tcp_liveness_slack_ns(). UINT64_MAX also if the peer's kernel acknowledged bytes less than within_ms ago: its
 * process may be waiting for a lost packet. */
uint64_t tcp_client_slack_ns(const struct tcp_client *l, uint32_t within_ms);

/* No callback comes after this call. Queued bytes are still delivered, for a second at most. NULL is fine. */
void tcp_client_close(struct tcp_client *l);
