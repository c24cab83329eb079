/*
 * When the health check runs, and its consequences. A job of several nodes: before this node reports that it is
 * ready, so that no other node waits for workers that will not come. An unfit node stays in the job and repeats the check
 * when the rendezvous needs the node. Else: between the decision to start and the start; an unfit node ends the job.
 */

#include "launcher/agent/agent_health_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/health_check_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/util/log_os.h"
#include "base/time.h"

#define SECOND_NS UINT64_C(1000000000)

enum { CHECK_PAUSE_MIN_S = 5, CHECK_PAUSE_MAX_S = 60 };

struct agent_health {
    const struct agent_host *host;
    void (*on_fit)(void *data);
    void (*on_unfit)(void *data, const char *why);
    struct health_check *check; /* while a check runs; or NULL */
    uint64_t after_ns;          /* earliest begin of a repeated check */
    uint64_t pause_ns;          /* 0: the node is fit, or was not checked */
    uv_timer_t again;
};

/* The node stays in the job, and the check is repeated when the rendezvous needs the node. */
static void report_unfit(struct agent_health *h, const char *why)
{
    uint64_t longest_ns = CHECK_PAUSE_MAX_S * SECOND_NS;

    h->pause_ns = h->pause_ns ? 2 * h->pause_ns : CHECK_PAUSE_MIN_S * SECOND_NS;
    if (h->pause_ns > longest_ns)
        h->pause_ns = longest_ns;
    h->after_ns = now_ns() + h->pause_ns;
    log_line("the health check of this node failed (%s); the job goes on without it where it can", why);
    membership_unfit(h->host->membership, why);
}

static void on_check_end(void *data, const char *why)
{
    struct agent_health *h = data;

    h->check = NULL;
    if (why && h->host->job->meeting == JOB_ROUNDS) {
        report_unfit(h, why);
    } else if (why) {
        log_line("the health check of this node failed (%s); no worker is started here", why);
        h->on_unfit(h->host->data, why);
    } else {
        h->pause_ns = 0;
        h->on_fit(h->host->data);
    }
}

static void on_no_check(uv_timer_t *timer)
{
    on_check_end(timer->data, "it could not be started");
}

/* With several nodes the rank of the generation before; before the first generation the rank asked for by --node-rank. */
static int group_rank_of_check(const struct agent_host *host)
{
    if (host->job->meeting == JOB_ROUNDS && host->generation == NULL)
        return host->job->node_rank;
    return (int)host->assignment->group_rank;
}

void agent_health_begin(struct agent_health *h)
{
    const struct job *job = h->host->job;
    const struct health_check_config config = {.loop = h->host->loop,
                                               .command = job->health_check,
                                               .timeout_s = job->health_check_timeout_s,
                                               .environment = h->host->config->environment,
                                               .group_rank = group_rank_of_check(h->host),
                                               .logs = h->host->logs,
                                               .on_end = on_check_end,
                                               .data = h};

    agent_health_end(h);
    int r = health_check_start(&h->check, &config);
    if (r == 0)
        return;
    log_line("cannot start the health check: %s", strerror(-r));
    (void)uv_timer_start(&h->again, on_no_check, 0, 0); /* fails only without a callback */
}

static void on_check_again(uv_timer_t *timer)
{
    agent_health_begin(timer->data);
}

void agent_health_again(struct agent_health *h)
{
    uint64_t now = now_ns();

    if (h->check || uv_is_active((const uv_handle_t *)&h->again))
        return;
    uint64_t ms = h->after_ns > now ? (h->after_ns - now) / 1000000 : 0;
    uv_update_time(h->host->loop);
    (void)uv_timer_start(&h->again, on_check_again, ms, 0); /* as above */
}

bool agent_health_is_checking(const struct agent_health *h)
{
    return h->check;
}

void agent_health_reaped(struct agent_health *h, pid_t pid, int status)
{
    (void)health_check_reaped(h->check, pid, status);
}

void agent_health_end(struct agent_health *h)
{
    (void)uv_timer_stop(&h->again); /* cannot fail on a timer that exists */
    health_check_stop(h->check);
    h->check = NULL;
}

static void describe_health(void *self, struct job_status *ret)
{
    const struct agent_health *h = self;

    if (h->pause_ns > 0)
        text_copy(ret->nodes[0].state, sizeof(ret->nodes[0].state), "unfit");
}

static void stop_health(void *self)
{
    struct agent_health *h = self;

    agent_health_end(h);
    uv_close((uv_handle_t *)&h->again, NULL);
}

int agent_health_create(struct agent_health **ret, struct agent_observer *observer,
                        const struct agent_host *host, void (*on_fit)(void *data),
                        void (*on_unfit)(void *data, const char *why))
{
    struct agent_health *h = calloc(1, sizeof(*h));

    if (!h)
        return -ENOMEM;
    *h = (struct agent_health){.host = host, .on_fit = on_fit, .on_unfit = on_unfit};
    (void)uv_timer_init(host->loop, &h->again); /* cannot fail */
    h->again.data = h;
    *observer =
        (struct agent_observer){.self = h, .describe = describe_health, .stop = stop_health, .destroy = free};
    *ret = h;
    return 0;
}
