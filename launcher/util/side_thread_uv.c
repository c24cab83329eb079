#include "launcher/util/side_thread_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"

struct side_call {
    struct side_task task;
    uv_async_t async; /* valid for the thread until the work is taken */
    uv_timer_t deadline;
    int n_open;             /* handles that libuv has not closed */
    struct side_work *work; /* NULL: over */
};

static void wake_loop(void *waker)
{
    (void)uv_async_send(waker); /* cannot fail on a handle that is open */
}

static void on_side_handle_closed(uv_handle_t *handle)
{
    struct side_call *c = handle->data;

    if (--c->n_open == 0)
        free(c);
}

static void close_side_handles(struct side_call *c)
{
    uv_close((uv_handle_t *)&c->async, on_side_handle_closed);
    uv_close((uv_handle_t *)&c->deadline, on_side_handle_closed);
}

void *side_thread_cancel(struct side_call *c)
{
    if (!c)
        return NULL;
    void *data = side_work_take(steal_ptr(c->work));
    close_side_handles(c);
    return data;
}

static void finish_side_call(struct side_call *c)
{
    if (c->work) /* else it is closing */
        c->task.done(c->task.owner, side_thread_cancel(c));
}

static void on_side_return(uv_async_t *async)
{
    finish_side_call(async->data);
}

static void on_side_deadline(uv_timer_t *timer)
{
    finish_side_call(timer->data);
}

int side_thread_submit(struct side_call **ret, uv_loop_t *loop, const struct side_task *task)
{
    struct side_call *c = calloc(1, sizeof(*c));
    int r = c ? uv_async_init(loop, &c->async, on_side_return) : -ENOMEM;

    if (r) {
        free(c);
        return r;
    }
    (void)uv_timer_init(loop, &c->deadline); /* cannot fail */
    c->async.data = c->deadline.data = c;
    c->task = *task;
    c->n_open = 2;
    const struct side_order order = {.kind = task->kind,
                                     .run = task->run,
                                     .drop = task->drop,
                                     .wake = wake_loop,
                                     .data = task->data,
                                     .waker = &c->async};
    r = side_work_start(&c->work, &order);
    if (r) {
        close_side_handles(c);
        return r;
    }
    if (task->limit_ms) /* fails only without a callback */
        (void)uv_timer_start(&c->deadline, on_side_deadline, task->limit_ms, 0);
    *ret = c;
    return 0;
}
