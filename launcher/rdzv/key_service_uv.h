#pragma once

/*
 * The node that serves the rendezvous gives agents of its user the secret of the job: the host's side of
 * proto/key_exchange.h. munge is called from a thread.
 */

#include <uv.h>

#include "rendezvous/server/server_security.h"

struct job_keys;
struct key_service;

/* For a server with this job's rounds. The keys outlive it. */
struct key_service *key_service_create(uv_loop_t *loop, const struct job_keys *keys);

/* For server_security.exchange. */
const struct server_exchange *key_service_exchange(const struct key_service *s);

/* After the server has stopped. NULL is fine. */
void key_service_stop(struct key_service *s);
