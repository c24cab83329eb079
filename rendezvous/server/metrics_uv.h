#pragma once

/*
 * Serves metrics over HTTP: GET /metrics. libmicrohttpd has a thread of its own for connections; the text is composed on the
 * loop when it is asked for, so that no state is shared and nothing is done while nothing scrapes.
 *
 *   scraper -- GET --> thread of libmicrohttpd -- async --> loop: compose()
 *                      waits, METRICS_WAIT_MS    <-- text --
 *
 * Ways it fails: no library, an address that cannot be had (both when it begins); a loop that does not answer in time (503);
 * clients that are slow, silent or many (limits of the library's: METRICS_CONNECTIONS, METRICS_TIMEOUT_S).
 */

#include <stdint.h>
#include <uv.h>

struct metrics;
struct metrics_text;

enum { METRICS_WAIT_MS = 2000, METRICS_CONNECTIONS = 16, METRICS_TIMEOUT_S = 10, METRICS_ERROR_SIZE = 256 };

struct metrics_host {
    uv_loop_t *loop;
    void (*compose)(void *data, struct metrics_text *m); /* without metrics_end() */
    void *data;
};

/* address: as address_parse_listener() reads it. *ret_port: where it listens. 0, or -errno and a sentence. Does not keep the
 * loop alive. */
int metrics_create(struct metrics **ret, const struct metrics_host *host, const char *address,
                   uint16_t *ret_port, char why[METRICS_ERROR_SIZE]);

/* Ends the thread, which waits for nothing then; frees itself when libuv has closed its handle. NULL is fine. */
void metrics_destroy(struct metrics *m);
