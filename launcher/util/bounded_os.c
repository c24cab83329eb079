#include "launcher/util/bounded_os.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "launcher/util/thread_os.h"
#include "base/time.h"

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
    pthread_condattr_t attributes;

    if (!b)
        return NULL;
    b->run = run;
    b->drop = drop;
    b->data = data;
    (void)pthread_mutex_init(&b->lock, NULL); /* these do not fail on Linux */
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&b->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return b;
}

/* False: the thread is left behind. */
static bool wait_until_returned(struct bounded *b, unsigned timeout_ms)
{
    uint64_t until_ns = now_ns() + timeout_ms * UINT64_C(1000000);
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};

    (void)pthread_mutex_lock(&b->lock);
    for (int r = 0; !b->has_returned && r == 0;)
        r = pthread_cond_timedwait(&b->changed, &b->lock, &until);
    bool has_returned = b->has_returned;
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
    if (!wait_until_returned(b, timeout_ms)) {
        (void)pthread_detach(thread);
        return -ETIMEDOUT;
    }
    (void)pthread_join(thread, NULL);
    free_bounded(b);
    return 0;
}

bool bounded_is_hung(void)
{
    return is_hung;
}
