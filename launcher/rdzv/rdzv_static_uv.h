#pragma once

/*
 * This node's part in a static rendezvous (rdzv_static.h) on a libuv loop: the store, if this is node 0, and the
 * connection to it. The store lives as long as this object: the workers of all nodes use it, through restarts.
 */

#include <uv.h>

struct job;
struct rank_assignment;
struct rdzv_static_uv;

struct rdzv_static_host {
    uv_loop_t *loop;
    const struct job *job;
    char *const *environment;
    void (*on_assigned)(void *data, const struct rank_assignment *assignment); /* all nodes are there */
    void (*on_failed)(void *data);   /* instead; the reason has been logged */
    void (*on_departed)(void *data); /* the end of rdzv_static_uv_leave(), by success, failure or time-out */
    void *data;
};

/* 0, or -errno with a line logged. Callbacks come from the loop. */
int rdzv_static_uv_create(struct rdzv_static_uv **ret, const struct rdzv_static_host *host);

/* The workers of this node are done: waits until those of all nodes are, for 300 s at most, as torchrun does. */
void rdzv_static_uv_leave(struct rdzv_static_uv *s);

/* NULL is fine. */
void rdzv_static_uv_destroy(struct rdzv_static_uv *s);
