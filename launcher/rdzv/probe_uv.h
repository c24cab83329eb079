#pragma once

/*
 * Whether somebody can be reached: connects, and goes away again. Begins a second after it was asked for, as most
 * need no answer, and says within 4 s that it is not so.
 */

#include <stdint.h>
#include <uv.h>

struct probe;

struct probe_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only */
    uint16_t port;
    /* Once, if at all. It may be stopped from within. why: a part of a sentence. */
    void (*on_unreachable)(void *data, const char *why);
    void *data;
};

/* 0 or -errno. */
int probe_start(struct probe **ret, const struct probe_config *config);

/* Nothing is called back any more; it frees itself. NULL is fine. */
void probe_stop(struct probe *p);
