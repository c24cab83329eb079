/*
 * The thread holds the lock except while it runs a call. A work stays first in the list until it is
 * done, so an empty list means that nothing runs; from then on the work belongs to the thread that waits
 * for it.
 *
 * Ways it fails: none of its own. A failed peer ends the call that runs, as it would without a queue,
 * and all that follow, each with its own result and message.
 */

#include "worker-runtime/group/async_queue_os.h"

#include "base/lock_os.h"
#include "base/thread_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct crw_work {
    struct async_queue *queue;
    struct crw_work *next;
    struct queued_call call;
    bool done;
    int result;
    char *sentence; /* of a failure; NULL when there was no memory for it */
};

/* ---- the thread ---- */

static void queue_take_off(struct async_queue *queue, struct crw_work *work)
{
    queue->first = work->next;
    if (!queue->first)
        queue->last = &queue->first;
    work->done = true;
    atomic_fetch_sub_explicit(&queue->n_waiting, 1, memory_order_release);
    pthread_cond_broadcast(&queue->changed);
}

static void *async_queue_run(void *data)
{
    struct async_queue *queue = data;

    hold_lock(&queue->lock);
    while (queue->first || !queue->closing) {
        struct crw_work *work = queue->first;

        if (!work) {
            pthread_cond_wait(&queue->changed, &queue->lock);
            continue;
        }
        pthread_mutex_unlock(&queue->lock);
        work->result = group_run_call(queue->group, &work->call);
        if (work->result != 0)
            work->sentence = strdup(crw_error_message());
        pthread_mutex_lock(&queue->lock);
        queue_take_off(queue, work);
    }
    return NULL;
}

/* ---- the caller's side ---- */

void async_queue_init(struct async_queue *queue, struct crw_group *group)
{
    *queue = (struct async_queue){.group = group};
    queue->last = &queue->first;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
}

void async_queue_finish(struct async_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->closing = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    if (queue->running)
        pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
}

static void queue_append(struct async_queue *queue, struct crw_work *work)
{
    hold_lock(&queue->lock);
    *queue->last = work;
    queue->last = &work->next;
    atomic_fetch_add(&queue->n_waiting, 1);
    pthread_cond_broadcast(&queue->changed);
}

int async_queue_start(struct async_queue *queue, const struct queued_call *call, struct crw_work **ret_work)
{
    struct crw_work *work;
    int r;

    if (!ret_work)
        return crw_fail(CRW_E_ARGUMENT, "a started call needs a place for its work, not NULL");
    if (!queue->running) {
        r = thread_start(&queue->thread, async_queue_run, queue);
        if (r < 0)
            return crw_fail_errno(r, "cannot start a thread for collectives");
        queue->running = true;
    }
    work = malloc(sizeof(*work));
    if (!work)
        return crw_fail_errno(-ENOMEM, "cannot start a collective");
    *work = (struct crw_work){.queue = queue, .call = *call};
    queue_append(queue, work);
    *ret_work = work;
    return 0;
}

void async_queue_wait_until_empty(struct async_queue *queue)
{
    hold_lock(&queue->lock);
    while (queue->first)
        pthread_cond_wait(&queue->changed, &queue->lock);
}

bool crw_work_test(struct crw_work *work)
{
    NEED(work, true);
    hold_lock(&work->queue->lock);
    return work->done;
}

int crw_work_wait(struct crw_work *work)
{
    NEED(work, CRW_E_ARGUMENT);
    struct async_queue *queue = work->queue;

    pthread_mutex_lock(&queue->lock);
    while (!work->done)
        pthread_cond_wait(&queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
    int result = work->result;
    if (result)
        crw_fail(result, "%s", work->sentence ? work->sentence : "a collective failed");
    free(work->sentence);
    free(work);
    return result;
}
