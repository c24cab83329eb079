#include "launcher/util/bounded_os.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "launcher/util/thread_os.h"
#include "base/cond_os.h"
#include "base/time.h"

enum { SIGNAL_INTERVAL_MS = 50, SIGNAL_PATIENCE_MS = 1000, SILENT_MS = 5000, THEN_MS = 50 };

/* Shared by both threads; the one that is later frees it. */
struct bounded {
    void (*run)(void *data);
    void (*then)(void *data); /* or NULL */
    void (*drop)(void *data); /* NULL: data outlives the thread */
    void *data;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_returned;       /* run() has */
    bool has_ended, is_left; /* and then(); `changed` is of has_ended alone */
};

static _Atomic bool is_hung;
static struct bounded *in_then; /* of bounded_call_or_signal(), which has returned before it */

static void free_bounded(struct bounded *b)
{
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

static void run_bounded(void *data)
{
    struct bounded *b = data;

    b->run(b->data);
    (void)pthread_mutex_lock(&b->lock);
    b->has_returned = true;
    if (b->then) {
        (void)pthread_mutex_unlock(&b->lock);
        b->then(b->data);
        (void)pthread_mutex_lock(&b->lock);
    }
    b->has_ended = true;
    bool is_left = b->is_left;
    (void)pthread_cond_signal(&b->changed);
    (void)pthread_mutex_unlock(
        &b->lock); /* from here on it is of the thread that waits, unless that has left */
    if (!is_left)
        return;
    if (b->drop) {
        b->drop(b->data);
        is_hung = false;
    }
    free_bounded(b);
}

static struct bounded *new_bounded(void (*run)(void *data), void (*drop)(void *data), void *data)
{
    struct bounded *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->run = run;
    b->drop = drop;
    b->data = data;
    (void)pthread_mutex_init(&b->lock, NULL); /* does not fail on Linux */
    cond_init(&b->changed);
    return b;
}

/* Whether it has ended after that time. The caller holds the lock. */
static bool wait_until_ended(struct bounded *b, unsigned timeout_ms)
{
    uint64_t until_ns = now_ns() + timeout_ms * UINT64_C(1000000);

    for (int r = 0; !b->has_ended && r == 0;)
        r = cond_wait_until(&b->changed, &b->lock, until_ns);
    return b->has_ended;
}

/* Frees it. False: the thread is left behind, and does that. */
static bool wait_or_leave(struct bounded *b, unsigned timeout_ms)
{
    (void)pthread_mutex_lock(&b->lock);
    bool has_ended = wait_until_ended(b, timeout_ms);
    b->is_left = !has_ended;
    if (!has_ended)
        is_hung = true; /* before the thread can see that it was left */
    (void)pthread_mutex_unlock(&b->lock);
    if (has_ended)
        free_bounded(b);
    return has_ended;
}

int bounded_call(void (*run)(void *data), void (*drop)(void *data), void *data, unsigned timeout_ms)
{
    if (is_hung)
        return -EBUSY;
    struct bounded *b = new_bounded(run, drop, data);
    if (b && call_in_thread(run_bounded, b) == 0)
        return wait_or_leave(b, timeout_ms) ? 0 : -ETIMEDOUT;
    if (b)
        free_bounded(b);
    run(data);
    return 0;
}

static bool is_one_pending(const sigset_t *signals)
{
    sigset_t pending;

    (void)sigpending(&pending); /* cannot fail */
    for (int s = 1; s < SIGRTMIN; s++)
        if (sigismember(&pending, s) == 1 && sigismember(signals, s) == 1)
            return true;
    return false;
}

/* Frees it, or leaves that to the thread. */
static int wait_for_return_or_signal(struct bounded *b, void (*on_silence)(const void *data),
                                     const sigset_t *signals)
{
    (void)pthread_mutex_lock(&b->lock);
    for (unsigned waited_ms = 0, pending_ms = 0, then_ms = 0;
         !b->has_ended && pending_ms < SIGNAL_PATIENCE_MS && then_ms < THEN_MS;
         waited_ms += SIGNAL_INTERVAL_MS) {
        bool had_returned = b->has_returned;
        (void)wait_until_ended(b, SIGNAL_INTERVAL_MS);
        pending_ms += is_one_pending(signals) ? SIGNAL_INTERVAL_MS : 0;
        then_ms += had_returned ? SIGNAL_INTERVAL_MS : 0;
        if (!b->has_returned && waited_ms == SILENT_MS)
            on_silence(b->data);
    }
    bool has_ended = b->has_ended, has_returned = b->has_returned;
    b->is_left = !has_returned;
    (void)pthread_mutex_unlock(&b->lock);
    if (has_ended)
        free_bounded(b);
    else if (has_returned)
        in_then = b;
    return has_returned ? 0 : -EINTR;
}

int bounded_call_or_signal(const struct bounded_steps *steps, void *data, const sigset_t *signals)
{
    struct bounded *b = new_bounded(steps->run, NULL, data);

    if (b)
        b->then = steps->then;
    if (b && call_in_thread(run_bounded, b) == 0)
        return wait_for_return_or_signal(b, steps->on_silence, signals);
    if (b)
        free_bounded(b);
    steps->run(data);
    if (steps->then)
        steps->then(data);
    return 0;
}

void bounded_wait_for_then(unsigned timeout_ms)
{
    if (in_then)
        (void)wait_or_leave(in_then, timeout_ms); /* bounded_is_hung() */
    in_then = NULL;
}

bool bounded_is_hung(void)
{
    return is_hung;
}
