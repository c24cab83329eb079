#pragma once

/*
 * Calls that may wait for a disk for ever, made in a thread beside the loop. The loop never waits: a call has a deadline, or
 * can be cancelled, and a later result is dropped.
 */

#include <stdbool.h>
#include <uv.h>

struct side_call;

struct side_task {
    void (*run)(void *data);               /* in the thread */
    void (*drop)(void *data);              /* in the thread or on the loop: frees an unwanted result */
    void (*done)(void *owner, void *data); /* on the loop; takes over data; NULL: too late */
    void *data, *owner;
    unsigned limit_ms; /* 0: no deadline */
};

/* Takes over task->data. 0: done() follows, once, unless the call is cancelled. -errno: data is dropped; -EBUSY: HUNG_MAX calls hang. */
int side_thread_submit(struct side_call **ret, uv_loop_t *loop, const struct side_task *task);

/* A call whose done() has not been called. Returns data where run() has returned, for the caller; NULL: drop() follows. NULL is fine. */
void *side_thread_cancel(struct side_call *c);

/* Whether a thread still runs whose call was late or cancelled. The process has to end by _exit() then. */
bool side_thread_is_hung(void);

/* The same after waiting for these threads, so long at most. */
bool side_thread_wait(unsigned timeout_ms);
