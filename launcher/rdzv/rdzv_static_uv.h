#pragma once

/*
 * This node's part in a static rendezvous (rdzv_static.h) on a loop: the store, if this is node 0, and the
 * connection to it. The store lives as long as this: the workers of all nodes use it, through restarts.
 */

#include <uv.h>

struct job;
struct rank_assignment;
struct rdzv_static_uv;

struct rdzv_static_host {
    uv_loop_t *loop;
    const struct job *job;
    char *const *environment;
    void (*on_placed)(void *data, const struct rank_assignment *place); /* all nodes are there */
    void (*on_failed)(void *data); /* instead; a sentence has been said */
    void (*on_left)(void *data);   /* the end of rdzv_static_uv_leave(), however it came */
    void *data;
};

/* 0, or -errno with a sentence said. Calls back from within the loop. */
int rdzv_static_uv_create(struct rdzv_static_uv **ret, const struct rdzv_static_host *host);

/* The workers here are done: waits until those of all nodes are, for torchrun's 300 s at most. */
void rdzv_static_uv_leave(struct rdzv_static_uv *s);

/* Frees itself when its handles are closed. NULL is fine. */
void rdzv_static_uv_destroy(struct rdzv_static_uv *s);
