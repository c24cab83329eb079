#pragma once

/*
 * Which services a server has (server_service.h), and in which order: a store, and as its configuration wants them a fence in front of
 * it, the rounds, the keys of jobs, and an exchange of keys.
 */

#include <stddef.h>

#include "rendezvous/agents/server_rounds.h"
#include "rendezvous/server/server_uv.h"

struct server_part {
    const char *name;
    /* Adds the service, if the configuration wants it. 0 or -errno. */
    int (*add)(struct server *s, const struct server_config *config);
};

enum { SERVER_PARTS = 5 };

/* In their order. */
extern const struct server_part server_parts[SERVER_PARTS];

/* The server lives on the loop and keeps it alive while it listens. Returns 0 or -errno. */
int server_create(struct server **ret, uv_loop_t *loop, const struct server_config *config);

/* The same with these parts in that order. */
int server_compose(struct server **ret, uv_loop_t *loop, const struct server_config *config,
                   const struct server_part *const *parts, size_t n);
