#include "launcher/watch/watch_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/progress.h"
#include "launcher/watch/slow.h"
#include "launcher/watch/stall.h"
#include "launcher/watch/waits.h"
#include "launcher/watch/watch_task_os.h"
#include "base/minmax.h"
#include "base/time.h"

enum {
    WAITS_MS = 1000, /* between two samples of waits */
    SLACK_MS = 20,   /* a timer may be early */
    LOOKS_PER_DESCRIPTION = 2,
    LOOKS_PER_SHARES = SLOW_CHECK_NS / 1000000 / WAITS_MS,
};

/* When the ranks are described. */
struct description {
    bool is_asked, wants_stacks, wants_python;
    int n_unusual;      /* at the last description */
    int n_looks;        /* since the last description */
    int n_descriptions; /* of this stall */
    bool was_long;      /* at the last look a rank had waited for half of the least limit */
    uint64_t stacks_ns; /* the last one with new stacks of waiting ranks; 0: none */
};

struct watch {
    struct watch_host host;
    struct progress progress;
    struct waits waits;
    struct description description;
    uint64_t progress_ns, waits_ns; /* times of the last orders of samples */
    struct watch_worker *workers;
    struct watch_job job; /* as of the last refresh() */
    struct stack_requests requests;
    uv_timer_t timer;
    struct side_call *call; /* has the task; NULL: the loop has it */
    bool has_worked, is_closed;
    bool lacks_py_spy, has_hinted; /* watch_log_hint() */
    struct watch_task *task;       /* NULL: left to a hanging thread */
};

/* ---- the loop ---- */

static void on_task_done(void *owner, void *task);

static void drop_task(void *task)
{
    watch_task_finish(task); /* removes files not reported before the end of the job */
    free(task);
}

static bool order(struct watch *w)
{
    const struct side_task task = {
        .run = watch_task_run, .drop = drop_task, .done = on_task_done, .data = w->task, .owner = w};

    if (side_thread_submit(&w->call, w->host.loop, &task) != 0)
        return false;
    w->has_worked = true;
    return true;
}

static bool refresh(struct watch *w)
{
    const struct watch_job was = w->job;

    w->job = w->host.describe(w->host.data, w->workers);
    if (w->job.is_at_work && (!was.is_at_work || w->job.generation != was.generation)) {
        progress_begin(&w->progress, now_ns());
        waits_begin(&w->waits);
        w->description = (struct description){.is_asked = false};
    }
    return w->job.is_at_work;
}

/* A stall that has ended has one more description. */
static bool is_description_due(const struct watch *w, uint64_t at_ns)
{
    const struct description *d = &w->description;
    bool any = waits_count_unusual(&w->waits, at_ns) > 0;

    return d->is_asked || any != (d->n_unusual > 0) || (any && d->n_looks >= LOOKS_PER_DESCRIPTION) ||
           (d->n_looks >= LOOKS_PER_SHARES && waits_any_share(&w->waits, SLOW_LINE_PERCENT));
}

static bool is_due(uint64_t last_ns, uint64_t interval_ns, uint64_t at_ns)
{
    return at_ns - last_ns + SLACK_MS * UINT64_C(1000000) >= interval_ns;
}

static void order_look(struct watch *w, uint64_t at_ns)
{
    struct watch_task *t = w->task;
    struct description *d = &w->description;
    bool any_unusual = waits_count_unusual(&w->waits, at_ns) > 0, is_stall = d->wants_stacks || any_unusual;

    t->with_progress = is_due(w->progress_ns, progress_interval_ns(&w->progress), at_ns);
    t->with_places = progress_wants_places(&w->progress, at_ns);
    bool is_long = waits_any_longer(&w->waits, WAITS_LEAST_NS / 2, at_ns);
    t->lists = is_long && !d->was_long; /* times of a process need a look before the description */
    d->was_long = is_long;
    t->with_waits = is_due(w->waits_ns, WAITS_MS * UINT64_C(1000000), at_ns);
    t->describes = is_description_due(w, at_ns);
    if (t->with_waits && t->describes && (d->wants_stacks || (d->n_descriptions == 0 && any_unusual)))
        d->wants_stacks = stall_may_take_stacks(&d->stacks_ns, at_ns); /* false: the former ones have to do */
    t->takes_stacks = d->wants_stacks || d->wants_python;
    t->may_pause = is_stall;
    t->store_port = is_stall ? w->job.store_port : 0;
    w->progress_ns = t->with_progress ? at_ns : w->progress_ns;
    w->waits_ns = t->with_waits ? at_ns : w->waits_ns;
}

static void order_task(struct watch *w)
{
    w->task->work = w->requests.wants ? WATCH_STACKS : WATCH_LOOK;
    w->task->timeout_ns = w->host.timeout_ns;
    w->task->rank_base = w->job.rank_base;
    for (int i = 0; i < w->host.n_workers; i++) {
        w->task->pids[i] = w->workers[i].pid;
        w->task->have_succeeded[i] = w->workers[i].has_succeeded;
    }
    w->task->attempt = w->job.generation;
    if (w->requests.wants)
        watch_task_set_folder(w->task, w->job.folder);
    else
        order_look(w, now_ns());
    (void)order(w); /* without a thread the next tick tries again */
}

static void on_tick(uv_timer_t *timer)
{
    struct watch *w = timer->data;
    bool is_at_work = refresh(w);

    if (!w->call && (w->requests.wants || (is_at_work && w->host.timeout_ns)))
        order_task(w);
    size_t ms = min_size(progress_interval_ns(&w->progress) / 1000000, WAITS_MS);
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
                                        .nccl = w->task->nccl,
                                        .text = w->task->text,
                                        .folder =
                                            w->task->folder_made ? w->task->folder + w->task->n_hidden : NULL,
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

static void judge_progress(struct watch *w)
{
    enum progress_verdict verdict =
        progress_step(&w->progress, now_ns(), w->task->samples, w->job.n_store_changes);

    if (verdict == PROGRESS_HANGS)
        w->host.on_hang(w->host.data);
    else if (verdict == PROGRESS_RESUMES)
        w->host.on_resume(w->host.data);
}

static void deliver_ranks(struct watch *w)
{
    struct description *d = &w->description;
    int n_unusual = waits_count_unusual(&w->waits, now_ns());

    d->n_descriptions = n_unusual ? d->n_descriptions + 1 : 0;
    d->n_unusual = n_unusual;
    d->n_looks = 0;
    d->is_asked = d->wants_python = false;
    d->wants_stacks &= !w->task->takes_stacks;
    for (size_t i = 0; i < w->task->stall.n_ranks; i++) {
        struct hang_rank *rank = &w->task->stall.ranks[i];
        int worker = rank->rank - w->task->rank_base;

        rank->waits_ms = (uint32_t)(waits_length_ns(&w->waits, worker, w->waits_ns) / 1000000);
        rank->limit_ms = (uint32_t)(waits_limit_ns(&w->waits, worker) / 1000000);
        rank->waits_percent = waits_percent(&w->waits, worker);
        rank->n_waits = (uint32_t)waits_count_begun(&w->waits, worker);
    }
    w->host.on_ranks(w->host.data, w->task->stall.ranks, w->task->stall.n_ranks, n_unusual);
}

static void take_samples(struct watch *w)
{
    uint32_t generation = w->job.generation;

    if (!refresh(w) || w->job.generation != generation)
        return; /* the samples are of ended workers */
    if (w->task->with_progress)
        judge_progress(w);
    if (!w->task->with_waits)
        return;
    waits_step(&w->waits, w->waits_ns, w->task->stall.samples);
    waits_end_look(&w->waits, now_ns());
    w->description.n_looks++;
    if (w->task->describes)
        deliver_ranks(w);
}

static void on_task_done(void *owner, void *task)
{
    struct watch *w = owner;

    w->call = NULL;
    w->lacks_py_spy = w->task->lacks_py_spy;
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

void watch_ask_ranks(struct watch *w, bool with_stacks)
{
    if (!w)
        return;
    w->description.is_asked = true;
    w->description.wants_stacks |= with_stacks;
}

const struct waits *watch_waits(const struct watch *w)
{
    return &w->waits;
}

void watch_ask_python(struct watch *w)
{
    w->description.is_asked = w->description.wants_python = true;
}

/* ---- life ---- */

void watch_destroy(struct watch *w)
{
    if (!w)
        return;
    if (w->task)
        drop_task(w->task);
    progress_finish(&w->progress);
    waits_finish(&w->waits);
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
        r = waits_init(&w->waits, host->n_workers);
    if (!r)
        r = watch_task_init(w->task, host->environment, host->python, host->n_workers, host->state_fds);
    if (r) {
        watch_destroy(w);
        return r;
    }
    w->task->link = host->link;
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

void watch_log_hint(struct watch *w)
{
    if (!w || !w->lacks_py_spy || w->has_hinted)
        return;
    w->has_hinted = true;
    log_line(
        "  no py-spy beside the Python of the workers or on PATH: `pip install py-spy` adds Python frames");
}

bool watch_has_worked(const struct watch *w)
{
    return w && w->has_worked;
}
