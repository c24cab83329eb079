#include "launcher/util/bounded_os.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "launcher/util/thread_os.h"
#include "base/cond_os.h"
#include "base/time.h"

enum { SIGNAL_INTERVAL_MS = 50, SIGNAL_PATIENCE_MS = 1000, SILENT_MS = 5000 };

/* Shared by both threads; the one that is later frees it. */
struct bounded {
    void (*run)(void *data);
    void (*drop)(void *data);
    void *data;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_returned, is_left;
};

static _Atomic bool is_hung;

static void free_bounded(struct bounded *b)
{
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

static void *bounded_main(void *data)
{
    struct bounded *b = data;

    b->run(b->data);
    (void)pthread_mutex_lock(&b->lock);
    b->has_returned = true;
    bool is_left = b->is_left;
    (void)pthread_cond_signal(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
    if (!is_left)
        return NULL;
    b->drop(b->data);
    free_bounded(b);
    is_hung = false;
    return NULL;
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

/* Whether it has returned after that time. The caller holds the lock. */
static bool wait_until_returned(struct bounded *b, unsigned timeout_ms)
{
    uint64_t until_ns = now_ns() + timeout_ms * UINT64_C(1000000);

    for (int r = 0; !b->has_returned && r == 0;)
        r = cond_wait_until(&b->changed, &b->lock, until_ns);
    return b->has_returned;
}

/* False: the thread is left behind. */
static bool wait_or_leave(struct bounded *b, unsigned timeout_ms)
{
    (void)pthread_mutex_lock(&b->lock);
    bool has_returned = wait_until_returned(b, timeout_ms);
    b->is_left = !has_returned;
    if (!has_returned)
        is_hung = true; /* before the thread can see that it was left */
    (void)pthread_mutex_unlock(&b->lock);
    return has_returned;
}

int bounded_call(void (*run)(void *data), void (*drop)(void *data), void *data, unsigned timeout_ms)
{
    pthread_t thread;

    if (is_hung)
        return -EBUSY;
    struct bounded *b = new_bounded(run, drop, data);
    if (!b || masked_thread_start(&thread, bounded_main, b) != 0) {
        if (b)
            free_bounded(b);
        run(data);
        return 0;
    }
    if (!wait_or_leave(b, timeout_ms)) {
        (void)pthread_detach(thread);
        return -ETIMEDOUT;
    }
    (void)pthread_join(thread, NULL);
    free_bounded(b);
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

static int wait_for_return_or_signal(struct bounded *b, void (*on_silence)(const void *data),
                                     const sigset_t *signals)
{
    bool has_returned = false;

    (void)pthread_mutex_lock(&b->lock);
    for (unsigned waited_ms = 0, pending_ms = 0; !has_returned && pending_ms < SIGNAL_PATIENCE_MS;
         waited_ms += SIGNAL_INTERVAL_MS) {
        has_returned = wait_until_returned(b, SIGNAL_INTERVAL_MS);
        pending_ms += is_one_pending(signals) ? SIGNAL_INTERVAL_MS : 0;
        if (!has_returned && waited_ms == SILENT_MS)
            on_silence(b->data);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return has_returned ? 0 : -EINTR;
}

int bounded_call_or_signal(void (*run)(void *data), void (*on_silence)(const void *data), void *data,
                           const sigset_t *signals)
{
    struct bounded *b = new_bounded(run, NULL, data);
    pthread_t thread;

    if (!b || masked_thread_start(&thread, bounded_main, b) != 0) {
        if (b)
            free_bounded(b);
        run(data);
        return 0;
    }
    int r = wait_for_return_or_signal(b, on_silence, signals);
    if (r)
        return r;
    (void)pthread_join(thread, NULL);
    free_bounded(b);
    return 0;
}

bool bounded_is_hung(void)
{
    return is_hung;
}
