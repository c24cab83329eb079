#pragma once

/*
 * Whether a server can be reached, and with `tls` whether it accepts this node's key: a fenced worker store then accepts the workers
 * of this address. Connects, closes the connection, and tries again until that has succeeded or the time is up.
 *
 * Without a key the probe begins a second after probe_start(), as most generations do not last longer or need no answer, and has
 * failed 4 s after that call. With a key it begins at once, since workers that connect before wait meanwhile, and has 20 s.
 */

#include <stdint.h>
#include <uv.h>

struct probe;
struct tls_context;

struct probe_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only */
    uint16_t port;
    struct tls_context *tls; /* with the store's key; outlives the connection. NULL: none */
    /* At most once. probe_stop() may be called from within. why: a part of a sentence. */
    void (*on_failed)(void *data, const char *why);
    void *data;
};

/* 0 or -errno. */
int probe_start(struct probe **ret, const struct probe_config *config);

/* No callback comes after this call; frees itself. NULL is fine. */
void probe_stop(struct probe *p);
