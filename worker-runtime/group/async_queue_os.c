#include "worker-runtime/group/async_queue_os.h"

/*
 * The thread holds the lock except while it runs a call. A work stays first in the list until it is done, so
 * an empty list means that nothing runs, and it belongs to who waits for it from then on.
 *
 * Ways to die: none of its own. A failed peer ends the call that runs, as it would without a lane, and all
 * that follow, each with its own result and sentence.
 */

#include "worker-runtime/base/error.h"
#include "worker-runtime/base/thread_os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct crw_work {
    struct lane *lane;
    struct crw_work *next;
    struct queued_call call;
    bool done;
    int result;
    char *sentence; /* of a failure; NULL when there was no memory for it */
};

/* ------------------------------------------------------------------ the thread */

static void take_off(struct lane *lane, struct crw_work *work)
{
    lane->first = work->next;
    if (!lane->first)
        lane->last = &lane->first;
    work->done = true;
    atomic_fetch_sub_explicit(&lane->n_waiting, 1, memory_order_release);
    pthread_cond_broadcast(&lane->changed);
}

static void *run_lane(void *data)
{
    struct lane *lane = data;

    pthread_mutex_lock(&lane->lock);
    while (lane->first || !lane->closing) {
        struct crw_work *work = lane->first;

        if (!work) {
            pthread_cond_wait(&lane->changed, &lane->lock);
            continue;
        }
        pthread_mutex_unlock(&lane->lock);
        work->result = work->call.run(lane->group, &work->call);
        if (work->result != 0)
            work->sentence = strdup(crw_error_message());
        pthread_mutex_lock(&lane->lock);
        take_off(lane, work);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

/* ------------------------------------------------------------------ the caller's side */

void lane_init(struct lane *lane, struct crw_group *group)
{
    *lane = (struct lane){.group = group};
    lane->last = &lane->first;
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->changed, NULL);
}

void lane_finish(struct lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    lane->closing = true;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->lock);
    if (lane->running)
        pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->lock);
}

static void append(struct lane *lane, struct crw_work *work)
{
    pthread_mutex_lock(&lane->lock);
    *lane->last = work;
    lane->last = &work->next;
    atomic_fetch_add(&lane->n_waiting, 1);
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->lock);
}

int lane_start(struct lane *lane, const struct queued_call *call, struct crw_work **ret_work)
{
    struct crw_work *work;
    int r;

    if (!lane->running) {
        r = thread_start(&lane->thread, run_lane, lane);
        if (r < 0)
            return crw_fail_errno(r, "cannot start a thread for collectives");
        lane->running = true;
    }
    work = malloc(sizeof(*work));
    if (!work)
        return crw_fail_errno(-ENOMEM, "cannot start a collective");
    *work = (struct crw_work){.lane = lane, .call = *call};
    append(lane, work);
    *ret_work = work;
    return 0;
}

void lane_wait_until_empty(struct lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    while (lane->first)
        pthread_cond_wait(&lane->changed, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
}

bool crw_work_test(struct crw_work *work)
{
    bool done;

    pthread_mutex_lock(&work->lane->lock);
    done = work->done;
    pthread_mutex_unlock(&work->lane->lock);
    return done;
}

int crw_work_wait(struct crw_work *work)
{
    struct lane *lane = work->lane;
    int result;

    pthread_mutex_lock(&lane->lock);
    while (!work->done)
        pthread_cond_wait(&lane->changed, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
    result = work->result;
    if (result != 0)
        crw_fail(result, "%s", work->sentence ? work->sentence : "a collective failed");
    free(work->sentence);
    free(work);
    return result;
}
