#pragma once

/*
 * This node's part in a static rendezvous (rdzv_static.h) on a loop: the store, if this is node 0, and the
 * connection to it. The store lives as long as this: the workers of all nodes use it, through restarts.
 */

#include <uv.h>

struct job;
struct session_place;
struct static_uv;

struct static_host {
    uv_loop_t *loop;
    const struct job *job;
    char *const *environment;
    void (*on_placed)(void *data, const struct session_place *place); /* all nodes are there */
    void (*on_failed)(void *data);                                    /* instead; a sentence has been said */
    void (*on_left)(void *data); /* the end of static_uv_leave(), however it came */
    void *data;
};

/* 0, or -errno with a sentence said. Calls back from within the loop. */
int static_uv_create(struct static_uv **ret, const struct static_host *host);

/* The workers here are done: waits until those of all nodes are, for torchrun's 300 s at most. */
void static_uv_leave(struct static_uv *s);

/* Frees itself when its handles are closed. NULL is fine. */
void static_uv_destroy(struct static_uv *s);
