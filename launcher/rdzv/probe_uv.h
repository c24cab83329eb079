#pragma once

/*
 * Whether a server can be reached: connects, and closes the connection. Begins a second after probe_start(), as most
 * generations do not last longer or need no answer, and reports a failure within 4 s.
 */

#include <stdint.h>
#include <uv.h>

struct probe;

struct probe_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only */
    uint16_t port;
    /* At most once. probe_stop() may be called from within. why: a part of a sentence. */
    void (*on_unreachable)(void *data, const char *why);
    void *data;
};

/* 0 or -errno. */
int probe_start(struct probe **ret, const struct probe_config *config);

/* No callback comes after this call; frees itself. NULL is fine. */
void probe_stop(struct probe *p);
