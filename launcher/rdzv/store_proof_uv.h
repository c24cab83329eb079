#pragma once

/*
 * Proves to a fenced worker store that this node belongs to the job, so that the store accepts the workers of this address.
 * Tries again until it succeeds or 20 s have passed; workers that connect before wait meanwhile.
 */

#include <stdint.h>
#include <uv.h>

struct store_proof;
struct tls_context;

struct store_proof_config {
    uv_loop_t *loop;
    const char *host; /* needed for the call only */
    uint16_t port;
    struct tls_context *tls; /* with the store's key; outlives the connection */
    /* At most once; store_proof_stop() may be called from within. why: a part of a sentence. */
    void (*on_failed)(void *data, const char *why);
    void *data;
};

/* 0 or -errno. */
int store_proof_start(struct store_proof **ret, const struct store_proof_config *config);

/* No callback comes after this call; frees itself. NULL is fine. */
void store_proof_stop(struct store_proof *p);
