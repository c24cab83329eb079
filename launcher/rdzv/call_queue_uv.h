#pragma once

/*
 * Calls that may block, made one after another as side calls (side_thread_uv.h); their results come back to the loop. One that hangs
 * holds up later calls of its queue, but neither the loop nor the end of crun.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/list.h"

struct call_queue;

/* The first member of a malloc'ed struct of the caller, which the queue owns until done() is called. */
struct blocking_call {
    void (*run)(struct blocking_call *c);  /* in the thread: uses the struct alone */
    void (*done)(struct blocking_call *c); /* on the loop, after run(); frees it */
    void (*drop)(struct blocking_call *c); /* the queue was stopped: frees it. In any thread. */
    struct list link;
    bool is_waiting; /* of the queue: run() has not begun */
};

/* 0 or -errno. */
int call_queue_create(struct call_queue **ret, uv_loop_t *loop);

/* 0, or -errno and the caller keeps it: no thread can be had. */
int call_queue_push(struct call_queue *q, struct blocking_call *c);

/* True: run() has not begun, is not called any more, and the caller owns c. False: done() follows. c was pushed, and done() was not
 * called. */
bool call_queue_cancel(struct call_queue *q, struct blocking_call *c);

/* No done() is called any more. Frees the queue, and calls drop() for what is in it. NULL is fine. */
void call_queue_stop(struct call_queue *q);
