#pragma once

/*
 * Lets clients into a server from the addresses of a job's nodes alone: see fence_uv.c. Internal to the server.
 */

struct server;
struct server_config;

/* Adds the service, if configured; it has to be in front of the store. 0 or -ENOMEM. */
int fence_shell_add(struct server *s, const struct server_config *config);
