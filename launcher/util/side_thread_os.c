#include "launcher/util/side_thread_os.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/cond_os.h"
#include "base/lock_os.h"
#include "base/thread_os.h"
#include "base/time.h"

static const int hung_max[] = {[SIDE_LOGS] = 16, [SIDE_CONSOLE] = 1, [SIDE_OTHER] = 256};

/* Shared by the thread and the caller; the later of both frees the work. */
struct side_work {
    struct side_order order;
    pthread_mutex_t lock; /* of the next three members */
    pthread_cond_t returned;
    bool has_returned, is_left;
};

static _Atomic int n_left[SIDE_KINDS];

static void free_side_work(struct side_work *w)
{
    if (w->order.data && w->order.drop)
        w->order.drop(w->order.data);
    (void)pthread_cond_destroy(&w->returned);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- the thread ---- */

static void run_side_work(struct side_work *w)
{
    _Atomic int *n = &n_left[w->order.kind];

    w->order.run(w->order.data);
    (void)pthread_mutex_lock(&w->lock);
    bool is_left = w->is_left;
    w->has_returned = true;
    (void)pthread_cond_signal(&w->returned);
    if (!is_left && w->order.wake)
        w->order.wake(w->order.waker);
    (void)pthread_mutex_unlock(&w->lock); /* the call is the caller's from here on, unless left */
    if (!is_left)
        return;
    free_side_work(w);
    --*n;
}

/*
 * At most a single thread waits for a further call: a start of a job makes several short calls in a row, and a new thread
 * costs more than a call.
 */
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle_called = PTHREAD_COND_INITIALIZER;
static bool has_idle;
static struct side_work *idle_work; /* for the waiting thread; NULL: no work */

/* NULL: another thread waits already. */
static struct side_work *await_work(void)
{
    hold_lock(&idle_lock);
    bool waits = !has_idle && !idle_work;
    has_idle = has_idle || waits;
    while (waits && !idle_work)
        (void)pthread_cond_wait(&idle_called, &idle_lock);
    return waits ? steal_ptr(idle_work) : NULL;
}

static bool give_to_idle(struct side_work *w)
{
    hold_lock(&idle_lock);
    bool was_idle = has_idle;
    if (was_idle) {
        idle_work = w;
        has_idle = false;
        (void)pthread_cond_signal(&idle_called);
    }
    return was_idle;
}

static void *side_main(void *data)
{
    for (struct side_work *w = data; w; w = await_work())
        run_side_work(w);
    return NULL;
}

/* ---- the caller ---- */

int side_work_start(struct side_work **ret, const struct side_order *order)
{
    pthread_t thread;

    if (n_left[order->kind] >= hung_max[order->kind])
        return -EBUSY;
    struct side_work *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->order = *order;
    (void)pthread_mutex_init(&w->lock, NULL); /* does not fail on Linux */
    cond_init(&w->returned);
    bool was_idle = give_to_idle(w);
    int r = was_idle ? 0 : thread_start(&thread, side_main, w);
    if (r) {
        w->order.data = NULL; /* the caller keeps data */
        free_side_work(w);
        return r;
    }
    if (!was_idle)
        (void)pthread_detach(thread);
    *ret = w;
    return 0;
}

bool side_work_wait(struct side_work *w, unsigned timeout_ms)
{
    uint64_t until_ns = now_ns() + timeout_ms * UINT64_C(1000000);

    hold_lock(&w->lock);
    for (int r = 0; !w->has_returned && r == 0;)
        r = cond_wait_until(&w->returned, &w->lock, until_ns);
    return w->has_returned;
}

void *side_work_take(struct side_work *w)
{
    (void)pthread_mutex_lock(&w->lock);
    bool has_returned = w->has_returned;
    w->is_left = !has_returned;
    n_left[w->order.kind] += !has_returned; /* before the thread can see is_left */
    (void)pthread_mutex_unlock(&w->lock);
    if (!has_returned)
        return NULL;
    void *data = steal_ptr(w->order.data);
    free_side_work(w);
    return data;
}

int side_work_call(const struct side_order *order, unsigned timeout_ms)
{
    struct side_work *w;
    int r = side_work_start(&w, order);

    if (r == -EBUSY)
        return r;
    if (r) {
        order->run(order->data);
        return 0;
    }
    (void)side_work_wait(w, timeout_ms);
    return side_work_take(w) ? 0 : -ETIMEDOUT;
}

bool side_thread_is_hung(enum side_kind kind)
{
    return n_left[kind] > 0;
}

bool side_thread_is_any_hung(void)
{
    for (int i = 0; i < SIDE_KINDS; i++)
        if (n_left[i] > 0)
            return true;
    return false;
}

bool side_thread_wait(enum side_kind kind, unsigned timeout_ms)
{
    for (unsigned i = 0; i < timeout_ms && n_left[kind] > 0; i++)
        sleep_ns(1000000); /* a signal ends the pause early: the loop asks again */
    return n_left[kind] > 0;
}
