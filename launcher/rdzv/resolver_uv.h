#pragma once

/*
 * The addresses of a name, asked for until there are some. The system's resolver blocks, and for half a minute
 * when its servers are silent, so it is asked in threads of its own: anew every half second, whatever became of
 * the question before. A name that appears is so found within that time, though older questions hang; and nobody
 * waits for those at the end.
 */

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum { RESOLVER_ADDRESSES_MAX = 8 };

struct resolver_addresses {
    size_t n;
    union resolver_address {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } items[RESOLVER_ADDRESSES_MAX];
};

struct resolver;

struct resolver_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only, as is the rest */
    uint16_t port;
    /* Once; then it asks no more. It may be stopped from within, or from on_trouble. */
    void (*on_found)(void *data, const struct resolver_addresses *found);
    /* A question was answered with an error, or could not be asked; NULL is fine. why: a part of a sentence. */
    void (*on_trouble)(void *data, const char *why);
    void *data;
};

/* An address needs no asking: true, and in *ret. False: *ret is unchanged. */
bool resolver_numeric(const char *host, uint16_t port, struct resolver_addresses *ret);

/* 0 or -errno. Never calls back from within. */
int resolver_start(struct resolver **ret, const struct resolver_config *config);

/* Why there is no address yet. */
const char *resolver_why(const struct resolver *l);

/* Nothing is called back any more; it frees itself. NULL is fine. */
void resolver_stop(struct resolver *l);
