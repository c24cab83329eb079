#pragma once

/*
 * The services of a server (server_service.h) and their order: a store and, as configured, a fence in front of the store,
 * the rounds, the keys of jobs, and an exchange of keys.
 */

#include "rendezvous/agents/server_rounds.h"
#include "rendezvous/server/server_uv.h"

struct server_part {
    const char *name;
    /* Adds the service, if configured. 0 or -errno. */
    int (*add)(struct server *s, const struct server_config *config);
};

enum { SERVER_PARTS = 5 };

/* In their order. */
extern const struct server_part server_parts[SERVER_PARTS];

/* The server lives on the loop, and keeps the loop alive while listening. Returns 0 or -errno. */
int server_create(struct server **ret, uv_loop_t *loop, const struct server_config *config);

/* The same with another order. */
int server_compose(struct server **ret, uv_loop_t *loop, const struct server_config *config,
                   const struct server_part parts[SERVER_PARTS]);
