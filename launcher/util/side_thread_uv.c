#include "launcher/util/side_thread_uv.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "launcher/util/thread_os.h"
#include "base/cleanup.h"

enum { HUNG_MAX = 16 };

/* Shared by the thread and the loop; the later of both frees the work. */
struct side_work {
    struct side_task task;
    pthread_mutex_t lock; /* of the next three members */
    bool has_returned, is_left;
    uv_async_t *async; /* valid until is_left is set */
};

struct side_call {
    uv_async_t async;
    uv_timer_t deadline;
    int n_open;             /* handles that libuv has not closed */
    struct side_work *work; /* NULL: over */
};

static _Atomic int n_left;

static void free_side_work(struct side_work *w)
{
    if (w->task.data)
        w->task.drop(w->task.data);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

static void run_side_work(void *data)
{
    struct side_work *w = data;

    w->task.run(w->task.data);
    (void)pthread_mutex_lock(&w->lock);
    bool is_left = w->is_left;
    w->has_returned = true;
    if (!is_left)
        (void)uv_async_send(w->async); /* cannot fail on a handle that is open */
    (void)pthread_mutex_unlock(&w->lock);
    if (!is_left)
        return; /* the work is the loop's */
    free_side_work(w);
    n_left--;
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

/* The work where run() has returned; NULL: the thread frees it. */
static struct side_work *end_side_call(struct side_call *c)
{
    struct side_work *w = steal_ptr(c->work);

    (void)pthread_mutex_lock(&w->lock);
    bool has_returned = w->has_returned;
    w->is_left = !has_returned;
    n_left += !has_returned;
    (void)pthread_mutex_unlock(&w->lock);
    close_side_handles(c);
    return has_returned ? w : NULL;
}

/* Data where run() has returned, else NULL. */
static void *take_side_data(struct side_call *c)
{
    struct side_work *w = end_side_call(c);
    void *data = w ? steal_ptr(w->task.data) : NULL;

    if (w)
        free_side_work(w);
    return data;
}

static void finish_side_call(struct side_call *c)
{
    if (!c->work)
        return; /* closing */
    const struct side_task task = c->work->task;
    task.done(task.owner, take_side_data(c));
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
    struct side_work *w = calloc(1, sizeof(*w));
    int r = n_left >= HUNG_MAX ? -EBUSY : c && w ? uv_async_init(loop, &c->async, on_side_return) : -ENOMEM;

    if (r) {
        task->drop(task->data);
        free(c);
        free(w);
        return r;
    }
    *w = (struct side_work){.task = *task, .async = &c->async};
    (void)pthread_mutex_init(&w->lock, NULL); /* does not fail on Linux */
    (void)uv_timer_init(loop, &c->deadline);  /* cannot fail */
    c->async.data = c->deadline.data = c;
    c->n_open = 2;
    r = call_in_thread(run_side_work, w);
    if (r) {
        free_side_work(w);
        close_side_handles(c);
        return r;
    }
    c->work = w;
    if (task->limit_ms) /* fails only without a callback */
        (void)uv_timer_start(&c->deadline, on_side_deadline, task->limit_ms, 0);
    *ret = c;
    return 0;
}

void *side_thread_cancel(struct side_call *c)
{
    return c ? take_side_data(c) : NULL;
}

bool side_thread_is_hung(void)
{
    return n_left > 0;
}

bool side_thread_wait(unsigned timeout_ms)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (unsigned i = 0; i < timeout_ms && n_left > 0; i++)
        (void)nanosleep(&pause, NULL); /* a signal ends a pause early */
    return n_left > 0;
}
