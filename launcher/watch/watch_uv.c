#include "launcher/watch/watch_uv.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "launcher/util/thread_os.h"
#include "launcher/watch/progress.h"
#include "launcher/watch/watch_task_os.h"
#include "base/time.h"

enum { JOIN_S = 2 }; /* a tool that is killed may need a part of it */

struct watch {
    struct watch_host host;
    struct progress progress;
    struct watch_worker *workers;
    uint32_t generation;
    bool was_at_work;
    struct stack_requests requests;
    uv_timer_t timer;
    uv_async_t done;
    pthread_t thread;
    bool has_thread;
    bool is_busy; /* the thread has the task */
    bool is_closed;
    bool is_delivered;    /* the stacks that were taken last: their folder has been named */
    pthread_mutex_t lock; /* of the two below */
    pthread_cond_t changed;
    bool is_ordered, is_ending;
    struct watch_task task; /* the thread's while is_busy */
};

/* ---- the thread ---- */

static void *watch_main(void *data)
{
    struct watch *w = data;

    for (;;) {
        (void)pthread_mutex_lock(&w->lock); /* none of these can fail on a lock that exists */
        while (!w->is_ordered && !w->is_ending)
            (void)pthread_cond_wait(&w->changed, &w->lock);
        bool is_ending = w->is_ending;
        w->is_ordered = false;
        (void)pthread_mutex_unlock(&w->lock);
        if (is_ending)
            return NULL;
        watch_task_run(&w->task);
        (void)pthread_mutex_lock(&w->lock);
        if (!w->is_ending)
            (void)uv_async_send(&w->done); /* fails only for a handle that is closing */
        (void)pthread_mutex_unlock(&w->lock);
    }
}

static void order(struct watch *w)
{
    if (!w->has_thread && masked_thread_start(&w->thread, watch_main, w) != 0)
        return; /* no process left: the next tick tries again */
    w->has_thread = w->is_busy = true;
    (void)pthread_mutex_lock(&w->lock);
    w->is_ordered = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

/* ---- the loop ---- */

static bool refresh(struct watch *w)
{
    bool is_at_work = false;
    uint32_t generation = w->host.describe(w->host.data, w->workers, &is_at_work);

    if (is_at_work && (!w->was_at_work || generation != w->generation))
        progress_begin(&w->progress, now_ns());
    w->generation = generation;
    w->was_at_work = is_at_work;
    return is_at_work;
}

static void order_task(struct watch *w, bool places)
{
    w->task.work = w->requests.wants ? WATCH_STACKS : WATCH_LOOK;
    w->task.with_places = places;
    w->task.timeout_ns = w->host.timeout_ns;
    w->task.rank_base = w->host.rank_base(w->host.data);
    for (int i = 0; i < w->host.n_workers; i++) {
        w->task.pids[i] = w->workers[i].pid;
        w->task.have_succeeded[i] = w->workers[i].has_succeeded;
    }
    if (w->requests.wants) {
        w->is_delivered = false;
        watch_task_set_folder(&w->task, w->host.folder(w->host.data));
    }
    order(w);
}

static void on_tick(uv_timer_t *timer)
{
    struct watch *w = timer->data;
    bool is_at_work = refresh(w);

    if (!w->is_busy && (w->requests.wants || (is_at_work && w->host.timeout_ns)))
        order_task(w, progress_wants_places(&w->progress, now_ns()));
    uint64_t ms = progress_interval_ns(&w->progress) / 1000000;
    (void)uv_timer_start(timer, on_tick, ms ? ms : 1, 0); /* fails only without a callback */
}

static void deliver_stacks(struct watch *w)
{
    const struct watch_stacks stacks = {.reason = w->requests.reason,
                                        .silence_ns = progress_silence_ns(&w->progress, now_ns()),
                                        .text = w->task.text,
                                        .folder = w->task.folder_made ? w->task.folder : NULL,
                                        .worker = w->task.first_worker,
                                        .stands_out = w->task.stands_out,
                                        .host = w->task.host,
                                        .ranks = w->task.ranks,
                                        .n_ranks = w->task.n_ranks};

    w->is_delivered = true;
    stack_requests_deliver(&w->requests);
    w->host.on_stacks(w->host.data, &stacks);
    w->task.work = WATCH_NATIVE;
    order(w);
}

static void finish_stacks(struct watch *w)
{
    enum watch_reason reason = w->requests.reason;

    (void)stack_requests_finish(&w->requests); /* on_done() begins again */
    w->host.on_files(w->host.data, reason, w->task.first_worker);
}

static void take_samples(struct watch *w)
{
    uint32_t generation = w->generation;

    if (!refresh(w) || w->generation != generation)
        return; /* the samples are of workers that have ended */
    enum progress_verdict verdict =
        progress_step(&w->progress, now_ns(), w->task.samples, w->host.n_store_changes(w->host.data));
    if (verdict == PROGRESS_HANGS)
        w->host.on_hang(w->host.data);
    else if (verdict == PROGRESS_RESUMES)
        w->host.on_resume(w->host.data);
}

static void on_done(uv_async_t *done)
{
    struct watch *w = done->data;

    if (w->is_closed || !w->is_busy)
        return;
    w->is_busy = false;
    if (w->task.work == WATCH_STACKS)
        deliver_stacks(w);
    else if (w->task.work == WATCH_NATIVE)
        finish_stacks(w);
    else
        take_samples(w);
    if (w->requests.wants && !w->is_busy && !w->is_closed)
        (void)uv_timer_start(&w->timer, on_tick, 0, 0); /* fails only without a callback */
}

bool watch_take_stacks(struct watch *w, enum watch_reason reason)
{
    enum stack_request_result result =
        w && !w->is_closed ? stack_requests_add(&w->requests, reason) : STACK_REQUEST_REFUSED;

    if (result == STACK_REQUEST_BEGIN)
        (void)uv_timer_start(&w->timer, on_tick, 0, 0); /* fails only without a callback */
    return result != STACK_REQUEST_REFUSED;
}

/* ---- life ---- */

int watch_create(struct watch **ret, const struct watch_host *host)
{
    struct watch *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->host = *host;
    w->workers = calloc((size_t)host->n_workers, sizeof(*w->workers));
    int r = w->workers ? progress_init(&w->progress, host->timeout_ns, host->n_workers) : -ENOMEM;
    if (!r)
        r = watch_task_init(&w->task, host->environment, host->python, host->n_workers, host->state_fds);
    if (!r)
        r = uv_async_init(host->loop, &w->done, on_done);
    if (r) {
        watch_task_finish(&w->task);
        progress_finish(&w->progress);
        free(w->workers);
        free(w);
        return r;
    }
    (void)pthread_mutex_init(&w->lock, NULL); /* neither fails with default attributes */
    (void)pthread_cond_init(&w->changed, NULL);
    (void)uv_timer_init(host->loop, &w->timer); /* cannot fail */
    w->timer.data = w->done.data = w;
    if (host->timeout_ns)
        on_tick(&w->timer);
    *ret = w;
    return 0;
}

void watch_close(struct watch *w)
{
    if (!w || w->is_closed)
        return;
    w->is_closed = true;
    /* From here on the thread sends nothing: libuv ends the process when the loop of an async handle is closed. */
    (void)pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    stack_tools_cancel(&w->task.tools); /* else watch_destroy() would wait for them in vain */
    uv_close((uv_handle_t *)&w->timer, NULL);
    uv_close((uv_handle_t *)&w->done, NULL);
}

bool watch_has_worked(const struct watch *w)
{
    return w && w->has_thread;
}

/* Whether the thread has ended. */
static bool end_thread(struct watch *w)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const uint64_t end_ns = now_ns() + JOIN_S * UINT64_C(1000000000);

    while (w->has_thread && pthread_tryjoin_np(w->thread, NULL) != 0) {
        if (now_ns() >= end_ns)
            return false;
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

bool watch_destroy(struct watch *w)
{
    if (!w)
        return true;
    if (!end_thread(w))
        return false;
    if (!w->is_delivered)
        watch_task_remove_files(&w->task); /* the job has ended before they could be reported */
    watch_task_finish(&w->task);
    progress_finish(&w->progress);
    free(w->workers);
    free(w);
    return true;
}
