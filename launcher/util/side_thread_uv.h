#pragma once

/*
 * Calls that may hang, made in a thread beside the loop (side_thread_os.h). The loop never waits: a call has a deadline, or
 * can be cancelled, and a later result is dropped.
 */

#include <uv.h>

#include "launcher/util/side_thread_os.h"

struct side_call;

struct side_task {
    enum side_kind kind;
    void (*run)(void *data);               /* in the thread */
    void (*drop)(void *data);              /* in the thread or on the loop: frees an unwanted result */
    void (*done)(void *owner, void *data); /* on the loop; takes over data; NULL: too late */
    void *data, *owner;
    unsigned limit_ms; /* 0: no deadline */
};

/* 0: done() follows, once, unless the call is cancelled. -errno, as side_work_start(): the caller keeps task->data. */
int side_thread_submit(struct side_call **ret, uv_loop_t *loop, const struct side_task *task);

/* A call whose done() has not been called. Returns data where run() has returned, for the caller; NULL: drop() follows. NULL is fine. */
void *side_thread_cancel(struct side_call *c);
