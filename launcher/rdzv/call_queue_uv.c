#include "launcher/rdzv/call_queue_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "launcher/util/side_thread_uv.h"

struct call_queue {
    uv_loop_t *loop;
    struct list waiting;
    struct side_call *call; /* of the one that runs; NULL: none */
};

static void run_call(void *data)
{
    struct blocking_call *c = data;

    c->run(c);
}

static void drop_call(void *data)
{
    struct blocking_call *c = data;

    c->drop(c);
}

static void on_call_done(void *owner, void *data);

/* Of the first that waits. Without a thread it waits for the next push. */
static int begin_call(struct call_queue *q)
{
    if (q->call || list_is_empty(&q->waiting))
        return 0;
    struct blocking_call *c = list_entry(q->waiting.next, struct blocking_call, link);
    const struct side_task task = {
        .kind = SIDE_OTHER, .run = run_call, .drop = drop_call, .done = on_call_done, .data = c, .owner = q};
    int r = side_thread_submit(&q->call, q->loop, &task);

    if (r)
        return r;
    list_unlink(&c->link);
    c->is_waiting = false;
    return 0;
}

static void on_call_done(void *owner, void *data)
{
    struct call_queue *q = owner;
    struct blocking_call *c = data;

    q->call = NULL;
    (void)begin_call(q);
    c->done(c); /* may stop the queue, or push */
}

int call_queue_push(struct call_queue *q, struct blocking_call *c)
{
    list_append(&q->waiting, &c->link);
    c->is_waiting = true;
    int r = begin_call(q);
    if (r)
        (void)call_queue_cancel(q, c);
    return r;
}

bool call_queue_cancel(struct call_queue *q, struct blocking_call *c)
{
    bool was_waiting = c->is_waiting;

    if (was_waiting)
        list_unlink(&c->link);
    c->is_waiting = false;
    return was_waiting;
}

int call_queue_create(struct call_queue **ret, uv_loop_t *loop)
{
    struct call_queue *q = calloc(1, sizeof(*q));

    if (!q)
        return -ENOMEM;
    q->loop = loop;
    list_init(&q->waiting);
    *ret = q;
    return 0;
}

void call_queue_stop(struct call_queue *q)
{
    if (!q)
        return;
    struct blocking_call *c = side_thread_cancel(q->call);
    if (c)
        c->drop(c);
    while (!list_is_empty(&q->waiting)) {
        c = list_entry(q->waiting.next, struct blocking_call, link);
        list_unlink(&c->link);
        c->drop(c);
    }
    free(q);
}
