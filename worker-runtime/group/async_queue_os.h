#pragma once

/*
 * Calls that go on beside the program, and the lanes on which they do.
 *
 * A lane is a thread that takes calls one after the other, in the order in which they were put there; it is
 * started by the first one. All collectives of a group go on one lane, since all ranks have to make them in
 * the same order. Messages have a lane for each peer and direction: they may overtake each other.
 */

#include "worker-runtime/crw.h"

#include <pthread.h>
#include <stdatomic.h>

/* One call of a collective: the function and what it is about. */
struct queued_call {
    int (*run)(struct crw_group *group, const struct queued_call *call);
    const void *in;
    void *out;
    size_t n; /* elements or bytes, as the function has it */
    enum crw_dtype dtype;
    enum crw_op op;
    int peer; /* root, sender, receiver */
};

struct async_queue {
    struct crw_group *group;
    atomic_int n_waiting;   /* calls not yet done; the only field that is looked at without the lock */
    pthread_mutex_t lock;   /* for all below */
    pthread_cond_t changed; /* something to do, something done, or closing */
    struct crw_work *first, **last;
    pthread_t thread;
    bool running, closing;
};

void async_queue_init(struct async_queue *queue, struct crw_group *group);
/* Waits for what is there. Works that are not waited for yet must be so before. */
void async_queue_finish(struct async_queue *queue);

/* Puts the call there. *ret_work is for crw_work_wait(). 0 or -errno. */
int async_queue_start(struct async_queue *queue, const struct queued_call *call, struct crw_work **ret_work);

void async_queue_wait_until_empty(struct async_queue *queue);

/* Makes sure that what comes next on this thread comes after what is on the lane. */
static inline void async_queue_drain(struct async_queue *queue)
{
    if (atomic_load_explicit(&queue->n_waiting, memory_order_acquire) > 0)
        async_queue_wait_until_empty(queue);
}
