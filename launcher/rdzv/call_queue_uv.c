/*
 * `struct call_queue` belongs to the loop, `struct call_queue_shared` to it and its thread, by references. The thread holds the
 * lock but for run(); it ends when no call waits, and the next push starts another.
 */

#include "launcher/rdzv/call_queue_uv.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "launcher/util/thread_os.h"

struct call_queue_shared {
    pthread_mutex_t lock; /* protects the following members */
    unsigned n_references;
    bool stopped, has_thread;
    struct list waiting, finished;
    uv_async_t *async; /* valid until stopped is set */
};

struct call_queue {
    struct call_queue_shared *shared;
    uv_async_t async;
    bool stopped;
};

static void drop_calls(struct list *calls)
{
    while (!list_is_empty(calls)) {
        struct blocking_call *c = list_entry(calls->next, struct blocking_call, link);

        list_unlink(&c->link);
        c->drop(c);
    }
}

/* The caller holds the lock, which is released. */
static void drop_queue_reference(struct call_queue_shared *d)
{
    bool last = --d->n_references == 0;

    (void)pthread_mutex_unlock(&d->lock); /* locking an initialised mutex cannot fail */
    if (!last)
        return;
    drop_calls(&d->waiting);
    drop_calls(&d->finished);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

/* The main function of the thread, which owns a reference. */
static void *run_calls(void *data)
{
    struct call_queue_shared *d = data;

    (void)pthread_mutex_lock(&d->lock);
    while (!d->stopped && !list_is_empty(&d->waiting)) {
        struct blocking_call *c = list_entry(d->waiting.next, struct blocking_call, link);

        list_unlink(&c->link);
        c->is_waiting = false;
        (void)pthread_mutex_unlock(&d->lock);
        c->run(c);
        (void)pthread_mutex_lock(&d->lock);
        list_append(&d->finished, &c->link);
        if (!d->stopped)
            (void)uv_async_send(d->async); /* cannot fail on a handle that is open */
    }
    d->has_thread = false;
    drop_queue_reference(d);
    return NULL;
}

/* The caller holds the lock. 0 or -errno. */
static int start_call_thread(struct call_queue_shared *d)
{
    pthread_t thread;

    d->n_references++;
    int r = masked_thread_start(&thread, run_calls, d);
    if (r < 0) {
        d->n_references--;
        return r;
    }
    (void)pthread_detach(thread); /* a thread that was never joined */
    d->has_thread = true;
    return 0;
}

int call_queue_push(struct call_queue *q, struct blocking_call *c)
{
    struct call_queue_shared *d = q->shared;
    int r = 0;

    (void)pthread_mutex_lock(&d->lock);
    list_append(&d->waiting, &c->link);
    c->is_waiting = true;
    if (!d->has_thread)
        r = start_call_thread(d);
    if (r < 0) {
        list_unlink(&c->link);
        c->is_waiting = false;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return r;
}

bool call_queue_cancel(struct call_queue *q, struct blocking_call *c)
{
    struct call_queue_shared *d = q->shared;

    (void)pthread_mutex_lock(&d->lock);
    bool was_waiting = c->is_waiting;
    if (was_waiting)
        list_unlink(&c->link);
    c->is_waiting = false;
    (void)pthread_mutex_unlock(&d->lock);
    return was_waiting;
}

static void on_calls_finished(uv_async_t *async)
{
    struct call_queue *q = async->data;
    struct call_queue_shared *d = q->shared;

    while (!q->stopped) { /* done() may stop the queue, or push */
        struct blocking_call *c = NULL;

        (void)pthread_mutex_lock(&d->lock);
        if (!list_is_empty(&d->finished)) {
            c = list_entry(d->finished.next, struct blocking_call, link);
            list_unlink(&c->link);
        }
        (void)pthread_mutex_unlock(&d->lock);
        if (!c)
            return;
        c->done(c);
    }
}

int call_queue_create(struct call_queue **ret, uv_loop_t *loop)
{
    struct call_queue *q = calloc(1, sizeof(*q));
    struct call_queue_shared *d = q ? calloc(1, sizeof(*d)) : NULL;
    int r = d ? uv_async_init(loop, &q->async, on_calls_finished) : -ENOMEM;

    if (r < 0) {
        free(d);
        free(q);
        return r;
    }
    (void)pthread_mutex_init(&d->lock, NULL); /* does not fail on Linux */
    list_init(&d->waiting);
    list_init(&d->finished);
    d->n_references = 1;
    d->async = &q->async;
    q->shared = d;
    q->async.data = q;
    *ret = q;
    return 0;
}

static void on_call_queue_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void call_queue_stop(struct call_queue *q)
{
    if (!q || q->stopped)
        return;
    q->stopped = true;
    (void)pthread_mutex_lock(&q->shared->lock);
    q->shared->stopped = true;
    drop_queue_reference(q->shared);
    uv_close((uv_handle_t *)&q->async, on_call_queue_closed);
}
