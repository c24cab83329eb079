#include "launcher/watch/watch_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "launcher/util/side_thread_uv.h"
#include "launcher/watch/progress.h"
#include "launcher/watch/watch_task_os.h"
#include "base/time.h"

struct watch {
    struct watch_host host;
    struct progress progress;
    struct watch_worker *workers;
    uint32_t generation;
    bool was_at_work;
    struct stack_requests requests;
    uv_timer_t timer;
    struct side_call *call; /* has the task; NULL: the loop has it */
    bool has_worked, is_closed;
    struct watch_task *task; /* NULL: left to a hanging thread */
};

/* ---- the loop ---- */

static void on_task_done(void *owner, void *task);

static void run_task(void *task)
{
    watch_task_run(task);
}

static void drop_task(void *task)
{
    watch_task_finish(task); /* removes files not reported before the end of the job */
    free(task);
}

static bool order(struct watch *w)
{
    const struct side_task task = {
        .run = run_task, .drop = drop_task, .done = on_task_done, .data = w->task, .owner = w};

    if (side_thread_submit(&w->call, w->host.loop, &task) != 0)
        return false;
    w->has_worked = true;
    return true;
}

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
    w->task->work = w->requests.wants ? WATCH_STACKS : WATCH_LOOK;
    w->task->with_places = places;
    w->task->timeout_ns = w->host.timeout_ns;
    w->task->rank_base = w->host.rank_base(w->host.data);
    for (int i = 0; i < w->host.n_workers; i++) {
        w->task->pids[i] = w->workers[i].pid;
        w->task->have_succeeded[i] = w->workers[i].has_succeeded;
    }
    if (w->requests.wants)
        watch_task_set_folder(w->task, w->host.folder(w->host.data));
    (void)order(w); /* without a thread the next tick tries again */
}

static void on_tick(uv_timer_t *timer)
{
    struct watch *w = timer->data;
    bool is_at_work = refresh(w);

    if (!w->call && (w->requests.wants || (is_at_work && w->host.timeout_ns)))
        order_task(w, progress_wants_places(&w->progress, now_ns()));
    uint64_t ms = progress_interval_ns(&w->progress) / 1000000;
    (void)uv_timer_start(timer, on_tick, ms ? ms : 1, 0); /* fails only without a callback */
}

static void finish_stacks(struct watch *w)
{
    enum watch_reason reason = w->requests.reason;

    (void)stack_requests_finish(&w->requests); /* on_done() begins again */
    w->host.on_files(w->host.data, reason, w->task->first_worker);
}

static void deliver_stacks(struct watch *w)
{
    const struct watch_stacks stacks = {.reason = w->requests.reason,
                                        .silence_ns = progress_silence_ns(&w->progress, now_ns()),
                                        .text = w->task->text,
                                        .folder = w->task->folder_made ? w->task->folder : NULL,
                                        .worker = w->task->first_worker,
                                        .stands_out = w->task->stands_out,
                                        .host = w->task->host,
                                        .ranks = w->task->ranks,
                                        .n_ranks = w->task->n_ranks};

    w->task->is_delivered = true;
    stack_requests_deliver(&w->requests);
    w->host.on_stacks(w->host.data, &stacks);
    w->task->work = WATCH_NATIVE;
    if (!w->is_closed && !order(w))
        finish_stacks(w); /* without native stacks */
}

static void take_samples(struct watch *w)
{
    uint32_t generation = w->generation;

    if (!refresh(w) || w->generation != generation)
        return; /* the samples are of ended workers */
    enum progress_verdict verdict =
        progress_step(&w->progress, now_ns(), w->task->samples, w->host.n_store_changes(w->host.data));
    if (verdict == PROGRESS_HANGS)
        w->host.on_hang(w->host.data);
    else if (verdict == PROGRESS_RESUMES)
        w->host.on_resume(w->host.data);
}

static void on_task_done(void *owner, void *task)
{
    struct watch *w = owner;

    w->call = NULL;
    if (w->task->work == WATCH_STACKS)
        deliver_stacks(w);
    else if (w->task->work == WATCH_NATIVE)
        finish_stacks(w);
    else
        take_samples(w);
    if (w->requests.wants && !w->call && !w->is_closed)
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

static void free_watch(struct watch *w)
{
    if (w->task)
        drop_task(w->task);
    progress_finish(&w->progress);
    free(w->workers);
    free(w);
}

int watch_create(struct watch **ret, const struct watch_host *host)
{
    struct watch *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->host = *host;
    w->workers = calloc((size_t)host->n_workers, sizeof(*w->workers));
    w->task = calloc(1, sizeof(*w->task));
    int r = w->workers && w->task ? progress_init(&w->progress, host->timeout_ns, host->n_workers) : -ENOMEM;
    if (!r)
        r = watch_task_init(w->task, host->environment, host->python, host->n_workers, host->state_fds);
    if (r) {
        free_watch(w);
        return r;
    }
    (void)uv_timer_init(host->loop, &w->timer); /* cannot fail */
    w->timer.data = w;
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
    stack_tools_cancel(&w->task->tools); /* else the thread would wait for the tools in vain */
    if (w->call)
        w->task = side_thread_cancel(w->call);
    uv_close((uv_handle_t *)&w->timer, NULL);
}

bool watch_has_worked(const struct watch *w)
{
    return w && w->has_worked;
}

void watch_destroy(struct watch *w)
{
    if (w)
        free_watch(w);
}
