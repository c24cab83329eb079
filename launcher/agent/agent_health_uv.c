/*
 * When the health check runs and what follows from it. A job of several nodes: before this node reports that it is
 * ready, so that no other node waits for workers that will not come; an unfit node stays in the job and repeats the check
 * when the rendezvous needs it. Else: between the decision to start and the start; an unfit node ends the job.
 */

#include <stdio.h>
#include <string.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/agent/health_check_uv.h"
#include "launcher/cli/job.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/util/log_os.h"
#include "base/time.h"

#define SECOND_NS UINT64_C(1000000000)

enum { CHECK_PAUSE_MIN_S = 5, CHECK_PAUSE_MAX_S = 60 };

static void pass_on_fit(struct agent *a)
{
    a->check_pause_ns = 0;
    if (a->config->job->meeting == JOB_ROUNDS)
        agent_report_ready(a);
    else if (agent_make_files(a) != 0)
        agent_dispatch_kind(a, GROUP_START_FAILED);
}

static void on_check_end(void *data, const char *why)
{
    struct agent *a = data;
    const uint64_t longest_ns = CHECK_PAUSE_MAX_S * SECOND_NS;

    a->check = NULL;
    if (!why) {
        pass_on_fit(a);
        return;
    }
    if (a->config->job->meeting == JOB_ROUNDS) {
        a->check_pause_ns = a->check_pause_ns ? 2 * a->check_pause_ns : CHECK_PAUSE_MIN_S * SECOND_NS;
        if (a->check_pause_ns > longest_ns)
            a->check_pause_ns = longest_ns;
        a->check_after_ns = now_ns() + a->check_pause_ns;
        log_line("the health check of this node failed (%s); the job goes on without it where it can", why);
        membership_unfit(a->membership, why);
        return;
    }
    (void)snprintf(a->outcome.reason, sizeof(a->outcome.reason), "the health check failed: %s",
                   why); /* cut when it is long */
    log_line("the health check of this node failed (%s); no worker is started here", why);
    agent_dispatch_kind(a, GROUP_START_FAILED);
}

static void on_no_check(uv_timer_t *timer)
{
    on_check_end(timer->data, "it could not be started");
}

/* With several nodes the one that it had, before the first generation the one that it asks for. */
static int group_rank_of_check(const struct agent *a)
{
    if (a->config->job->meeting == JOB_ROUNDS && a->generation == NULL)
        return a->config->job->node_rank;
    return (int)a->assignment.group_rank;
}

void agent_begin_check(struct agent *a)
{
    const struct job *job = a->config->job;
    const struct health_check_config config = {.loop = &a->loop,
                                               .command = job->health_check,
                                               .timeout_s = job->health_check_timeout_s,
                                               .environment = a->config->environment,
                                               .group_rank = group_rank_of_check(a),
                                               .logs = &a->logs,
                                               .on_end = on_check_end,
                                               .data = a};

    agent_stop_check(a);
    int r = health_check_start(&a->check, &config);
    if (r == 0)
        return;
    log_line("cannot start the health check: %s", strerror(-r));
    (void)uv_timer_start(&a->check_again, on_no_check, 0, 0); /* fails only without a callback */
}

static void on_check_again(uv_timer_t *timer)
{
    agent_begin_check(timer->data);
}

void agent_check_again(struct agent *a)
{
    uint64_t now = now_ns();

    if (a->check || uv_is_active((const uv_handle_t *)&a->check_again))
        return;
    uint64_t ms = a->check_after_ns > now ? (a->check_after_ns - now) / 1000000 : 0;
    uv_update_time(&a->loop);
    (void)uv_timer_start(&a->check_again, on_check_again, ms, 0); /* as above */
}

void agent_stop_check(struct agent *a)
{
    (void)uv_timer_stop(&a->check_again); /* cannot fail on a timer that exists */
    health_check_stop(a->check);
    a->check = NULL;
}
