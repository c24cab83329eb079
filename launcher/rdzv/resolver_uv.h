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

enum { LOOKUP_ADDRESSES_MAX = 8 };

struct lookup_addresses {
    size_t n;
    union lookup_address {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } items[LOOKUP_ADDRESSES_MAX];
};

struct lookup;

struct lookup_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only, as is the rest */
    uint16_t port;
    /* Once; then it asks no more. It may be stopped from within, or from on_trouble. */
    void (*on_found)(void *data, const struct lookup_addresses *found);
    /* A question was answered with an error, or could not be asked; NULL is fine. why: a part of a sentence. */
    void (*on_trouble)(void *data, const char *why);
    void *data;
};

/* An address needs no asking: true, and in *ret. False: *ret is unchanged. */
bool lookup_numeric(const char *host, uint16_t port, struct lookup_addresses *ret);

/* 0 or -errno. Never calls back from within. */
int lookup_start(struct lookup **ret, const struct lookup_config *config);

/* Why there is no address yet. */
const char *lookup_why(const struct lookup *l);

/* Nothing is called back any more; it frees itself. NULL is fine. */
void lookup_stop(struct lookup *l);
