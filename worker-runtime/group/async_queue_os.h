#pragma once

/*
 * Queues of calls that run beside the program.
 *
 * A queue is a thread that runs calls one after the other, in the order in which they were added; the
 * first call starts it. All collectives of a group use one queue, since all ranks have to make them in
 * the same order. Messages have a queue for each peer and direction: they may overtake each other.
 */

#include "proto/worker_memory.h"
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
    int peer;                         /* root, sender, receiver */
    enum worker_collective_kind kind; /* WORKER_COLLECTIVE_NONE: a message */
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
/* Waits for the calls in it. Works that were not waited for yet must be so before. */
void async_queue_finish(struct async_queue *queue);

/* Adds the call. */
int async_queue_start(struct async_queue *queue, const struct queued_call *call, struct crw_work **ret_work);

void async_queue_wait_until_empty(struct async_queue *queue);

/* Makes sure that the next call on this thread runs after those in the queue. */
static inline void async_queue_drain(struct async_queue *queue)
{
    if (atomic_load_explicit(&queue->n_waiting, memory_order_acquire) > 0)
        async_queue_wait_until_empty(queue);
}
