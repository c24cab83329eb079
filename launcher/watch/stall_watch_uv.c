#include "launcher/watch/stall_watch_uv.h"

#include <errno.h>
#include <stdlib.h>

#include "base/time.h"
#include "launcher/util/side_thread_uv.h"
#include "launcher/watch/stall_task_os.h"
#include "launcher/watch/waits.h"

enum {
    LOOK_MS = 1000,
    LOOKS_PER_DESCRIPTION = 2,
    DESCRIPTIONS_PER_STACKS = 30, /* in a long stall */
};

struct stall_watch {
    struct stall_watch_host host;
    struct waits waits;
    struct watch_worker *workers;
    uint32_t generation;
    bool was_at_work;
    bool is_asked;
    int n_unusual;      /* at the last description */
    int n_looks;        /* since the last description */
    int n_descriptions; /* of this stall */
    uv_timer_t timer;
    struct side_call *call; /* has the task; NULL: the loop has it */
    bool is_closed;
    struct stall_task *task; /* NULL: left to a hanging thread */
};

static void run_task(void *task)
{
    stall_task_run(task);
}

static void drop_task(void *task)
{
    stall_task_finish(task);
    free(task);
}

static void forget(struct stall_watch *w)
{
    waits_begin(&w->waits);
    w->n_descriptions = w->n_looks = 0;
    w->is_asked = false;
}

static bool refresh(struct stall_watch *w)
{
    bool is_at_work = false;
    uint32_t generation = w->host.describe(w->host.describe_data, w->workers, &is_at_work);

    if (!is_at_work || !w->was_at_work || generation != w->generation)
        forget(w);
    w->generation = generation;
    w->was_at_work = is_at_work;
    return is_at_work;
}

/* Whether the next look has a description; a stall that has ended has one more. */
static bool is_description_due(struct stall_watch *w, uint64_t at_ns)
{
    bool any = waits_count_unusual(&w->waits, at_ns) > 0;

    return w->is_asked || (any != (w->n_unusual > 0)) || (any && w->n_looks >= LOOKS_PER_DESCRIPTION);
}

static void on_done(void *owner, void *task);

static void order(struct stall_watch *w)
{
    const struct side_task task = {
        .run = run_task, .drop = drop_task, .done = on_done, .data = w->task, .owner = w};
    struct stall_task *t = w->task;
    uint64_t at_ns = now_ns();

    t->describes = is_description_due(w, at_ns);
    t->takes_stacks = t->describes && w->n_descriptions % DESCRIPTIONS_PER_STACKS == 0;
    t->rank_base = w->host.rank_base(w->host.describe_data);
    for (int i = 0; i < w->host.n_workers; i++) {
        t->pids[i] = w->workers[i].pid;
        t->have_succeeded[i] = w->workers[i].has_succeeded;
        t->waits_ns[i] = waits_length_ns(&w->waits, i, at_ns);
        t->limits_ns[i] = waits_limit_ns(&w->waits, i);
    }
    (void)side_thread_submit(&w->call, w->host.loop, &task); /* without a thread the next tick tries again */
}

static void on_tick(uv_timer_t *timer)
{
    struct stall_watch *w = timer->data;

    if (refresh(w) && !w->call)
        order(w);
}

static void deliver(struct stall_watch *w)
{
    int n_unusual = waits_count_unusual(&w->waits, now_ns());

    w->n_descriptions = n_unusual || w->is_asked ? w->n_descriptions + 1 : 0;
    w->n_unusual = n_unusual;
    w->n_looks = 0;
    w->is_asked = false;
    w->host.on_ranks(w->host.data, w->task->ranks, w->task->n_ranks, n_unusual);
}

static void on_done(void *owner, void *task)
{
    struct stall_watch *w = owner;
    uint32_t generation = w->generation;

    w->call = NULL;
    if (!refresh(w) || w->generation != generation)
        return; /* the samples are of ended workers */
    waits_step(&w->waits, now_ns(), w->task->samples);
    w->n_looks++;
    if (w->task->describes)
        deliver(w);
}

void stall_watch_ask(struct stall_watch *w)
{
    if (w)
        w->is_asked = true;
}

static void free_watch(struct stall_watch *w)
{
    if (w->task)
        drop_task(w->task);
    waits_finish(&w->waits);
    free(w->workers);
    free(w);
}

int stall_watch_create(struct stall_watch **ret, const struct stall_watch_host *host)
{
    struct stall_watch *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->host = *host;
    w->workers = calloc((size_t)host->n_workers, sizeof(*w->workers));
    w->task = calloc(1, sizeof(*w->task));
    int r = w->workers && w->task ? waits_init(&w->waits, host->n_workers) : -ENOMEM;
    if (!r)
        r = stall_task_init(w->task, host->environment, host->python, host->n_workers, host->state_fds);
    if (r) {
        free_watch(w);
        return r;
    }
    (void)uv_timer_init(host->loop, &w->timer); /* cannot fail */
    w->timer.data = w;
    (void)uv_timer_start(&w->timer, on_tick, LOOK_MS, LOOK_MS); /* fails only without a callback */
    *ret = w;
    return 0;
}

void stall_watch_close(struct stall_watch *w)
{
    if (!w || w->is_closed)
        return;
    w->is_closed = true;
    stack_tools_cancel(&w->task->tools); /* else the thread would wait for the tools in vain */
    if (w->call)
        w->task = side_thread_cancel(w->call);
    uv_close((uv_handle_t *)&w->timer, NULL);
}

void stall_watch_destroy(struct stall_watch *w)
{
    if (w)
        free_watch(w);
}
