#pragma once

/*
 * The socket over which crunctl asks crun: one request in a line, answered with one JSON object, then the end. Requests of
 * other users than crun's own and root are not read. Pull only: nothing is sent that was not asked for, and crun pays
 * nothing while no client is there.
 *
 *   status   job_status_json.h
 *   nodes    what the rendezvous that this crun serves knows of the job's nodes, as frames (rendezvous/session/look_json.h); nothing
 *            where it is served elsewhere
 *   stacks   job_stacks_json.h; some seconds later
 */

#include <stdbool.h>
#include <uv.h>

struct buf;
struct control;
struct named_file;

struct control_host {
    uv_loop_t *loop;
    char *const *environment;
    const char *job;
    char *(*status)(void *data);               /* malloc'ed JSON, or NULL without memory */
    int (*nodes)(void *data, struct buf *out); /* 0 or -errno */
    /* Begins to take them; control_send_stacks() follows. False: not possible. */
    bool (*take_stacks)(void *data);
    void *data;
};

/* To all clients that have asked for them. json: NULL without memory. */
void control_send_stacks(struct control *c, const char *json);

/* 0 or -errno; a job runs without the socket as well. Its folder is made for the user alone. */
int control_create(struct control **ret, const struct control_host *host);

/* The socket, which the guardian removes when crun is killed. NULL for NULL. */
const struct named_file *control_file(const struct control *c);

/* Removes the socket and closes every connection. NULL is fine. */
void control_destroy(struct control *c);
