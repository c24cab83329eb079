#include "launcher/util/thread_os.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

int masked_thread_start(pthread_t *ret, void *(*thread_main)(void *data), void *data)
{
    sigset_t all, before;

    (void)sigfillset(&all); /* cannot fail, nor can the masks be wrong */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(ret, NULL, thread_main, data);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

struct thread_call {
    void (*run)(void *data);
    void *data;
};

/* One thread at most waits for a further call. */
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle_called = PTHREAD_COND_INITIALIZER;
static bool has_idle;
static struct thread_call idle_call; /* for the thread that waits; run is NULL when there is none */

/* False: another thread waits already. */
static bool await_call(struct thread_call *ret)
{
    (void)pthread_mutex_lock(&idle_lock);
    bool waits = !has_idle && !idle_call.run;
    has_idle = has_idle || waits;
    while (waits && !idle_call.run)
        (void)pthread_cond_wait(&idle_called, &idle_lock);
    if (waits) {
        *ret = idle_call;
        idle_call = (struct thread_call){0};
    }
    (void)pthread_mutex_unlock(&idle_lock);
    return waits;
}

static bool give_to_idle(const struct thread_call *call)
{
    (void)pthread_mutex_lock(&idle_lock);
    bool was_idle = has_idle;
    if (was_idle) {
        idle_call = *call;
        has_idle = false;
        (void)pthread_cond_signal(&idle_called);
    }
    (void)pthread_mutex_unlock(&idle_lock);
    return was_idle;
}

static void *run_thread_calls(void *data)
{
    struct thread_call call = *(struct thread_call *)data;

    free(data);
    do
        call.run(call.data);
    while (await_call(&call));
    return NULL;
}

int call_in_thread(void (*run)(void *data), void *data)
{
    const struct thread_call call = {.run = run, .data = data};
    pthread_t thread;

    if (give_to_idle(&call))
        return 0;
    struct thread_call *first = malloc(sizeof(*first));
    if (!first)
        return -ENOMEM;
    *first = call;
    int r = masked_thread_start(&thread, run_thread_calls, first);
    if (r)
        free(first);
    else
        (void)pthread_detach(thread);
    return r;
}
