#pragma once

/*
 * The addresses of a name, resolved again until there are some. The resolver of the system blocks, for half a minute
 * when its servers are silent, so it runs in side threads: a new one every half second, whether the earlier ones have
 * returned or not. A name that appears is found within that time although older queries hang, and no query is waited
 * for at the end.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "proto/address.h"

enum { RESOLVER_ADDRESSES_MAX = 8 };

struct resolver_addresses {
    size_t n;
    union address_endpoint items[RESOLVER_ADDRESSES_MAX];
};

/* The same address and port. */
bool resolver_is_same(const union address_endpoint *a, const union address_endpoint *b);

struct resolver;

struct resolver_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only, as is the rest */
    uint16_t port;
    /* At most once; no query follows. resolver_stop() may be called from within, or from on_trouble. */
    void (*on_found)(void *data, const struct resolver_addresses *found);
    /* A query failed, or could not be started; NULL is fine. why: a part of a sentence. */
    void (*on_trouble)(void *data, const char *why);
    void *data;
};

/* Parses a numeric address; false (and *ret unchanged) for a name. */
bool resolver_numeric(const char *host, uint16_t port, struct resolver_addresses *ret);

/* 0 or -errno. No callback comes before it returns. */
int resolver_start(struct resolver **ret, const struct resolver_config *config);

/* Why there is no address yet. */
const char *resolver_why(const struct resolver *l);

/* No callback comes after this call; frees itself. NULL is fine. */
void resolver_stop(struct resolver *l);
