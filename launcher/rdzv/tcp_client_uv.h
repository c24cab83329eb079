#pragma once

/*
 * One outgoing TCP connection on a libuv loop: a name is looked up until it has addresses, these are tried in turn, and what is sent on it is sent in order. It ends once: by on_lost, or by tcp_client_close().
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "launcher/rdzv/resolver_uv.h"

struct tcp_client;

struct tcp_client_config {
    uv_loop_t *loop;
    const char *host; /* address or name; needed for the call only */
    uint16_t port;
    const struct resolver_addresses *addresses; /* instead of both, where they are known already; the same */
    unsigned turn; /* with which of several addresses to begin, modulo their number */
    void (*on_connected)(void *data);
    void (*on_bytes)(void *data, const uint8_t *bytes, size_t n);
    void (*on_lost)(void *data,
                    const char *why); /* the link is closed by itself; why: a part of a sentence */
    void *data;
};

/* 0 or -errno. Never calls back from within. */
int tcp_client_dial(struct tcp_client **ret, const struct tcp_client_config *config);

/* The address of our end as we see it, numeric; "" while there is none. */
void tcp_client_own_address(const struct tcp_client *l, char *ret, size_t size);

/* While a name is looked up: why it has no address yet; else "". */
const char *tcp_client_trouble(const struct tcp_client *l);

/* Copies what cannot be sent at once. A failure is told by on_lost. */
void tcp_client_send(struct tcp_client *l, const void *bytes, size_t n);

/* Whom it has reached, as uv_tcp_getpeername(); -ENOTCONN: nobody yet. */
int tcp_client_peer(const struct tcp_client *l, struct sockaddr_storage *ret, int *size);

/* See tcp_liveness_slack_ns(); UINT64_MAX also if what we said was acknowledged by the peer's kernel less than that long ago: its
 * process may be unable to read it yet, for a lost packet. */
uint64_t tcp_client_slack_ns(const struct tcp_client *l, uint32_t within_ms);

/* Nothing is called back any more. What was sent is still delivered, for a second at most. NULL is fine. */
void tcp_client_close(struct tcp_client *l);
