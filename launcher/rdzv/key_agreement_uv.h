#pragma once

/*
 * Gets the secret of this job from the node that serves its rendezvous: the agent's side of proto/key_exchange.h. munge is
 * called from a thread.
 *
 * Happy path: a request is made by munge, the endpoint is dialled, the request sent, a reply comes, munge opens it, it is one
 * to this request by this user.
 *
 * Ways it fails: the endpoint cannot be reached, does not answer, closes, sends other bytes, refuses, or another user serves it; munge
 * does not answer. Each attempt has ATTEMPT_MS; they go on until the join timeout, and the reason is printed meanwhile. A rendezvous
 * that knows nothing of this is never joined in the clear.
 */

#include <stdbool.h>
#include <uv.h>

#include "launcher/rdzv/resolver_uv.h"

struct job_keys;
struct key_agreement;

struct key_agreement_config {
    uv_loop_t *loop;
    const char *endpoint;                       /* as text; outlives it */
    const struct resolver_addresses *addresses; /* of the endpoint; outlives it */
    uint32_t timeout_ms;
    struct job_keys *keys;                       /* replaced by the keys of the secret, before on_end */
    void (*on_end)(void *data, bool has_secret); /* without a secret a sentence was printed */
    void *data;
};

/* Callbacks come from the loop; key_agreement_stop() is for them to call. */
struct key_agreement *key_agreement_start(const struct key_agreement_config *config);

/* No callback comes any more. NULL is fine. */
void key_agreement_stop(struct key_agreement *a);
