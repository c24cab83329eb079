/* Metrics of the job for Prometheus: facts of the group machine at the moment of the scrape. */

#include "launcher/agent/agent_metrics_uv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/ctl/job_status.h"
#include "launcher/output/output_pump_os.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "launcher/util/log_os.h"
#include "rendezvous/store/metrics_text.h"
#include "rendezvous/server/metrics_uv.h"
#include "rendezvous/store/store_stats.h"
#include "base/err.h"
#include "base/time.h"

struct agent_metrics {
    const struct agent_host *host;
    struct metrics *server;                 /* NULL: not opened */
    struct store_stats stats;               /* of all worker stores */
    uint64_t n_restarts[GROUP_CAUSE_COUNT]; /* charged so far, by cause */
};

static void count_restarts(void *self, const struct agent_step *step)
{
    struct agent_metrics *m = self;
    int n = m->host->group->restarts - step->restarts;

    if (n > 0) /* a failure and the replacement in one step: the cause is not kept */
        m->n_restarts[step->cause == GROUP_CAUSE_NONE ? GROUP_CAUSE_WORKER : step->cause] += (uint64_t)n;
}

static void write_restarts(const struct agent_metrics *a, struct metrics_text *m)
{

    metrics_family(m, "crun_restarts", METRIC_COUNTER, "Restarts that this node took part in, by cause.");
    for (unsigned c = GROUP_CAUSE_WORKER; c < GROUP_CAUSE_COUNT; c++)
        metrics_sample(m, "crun_restarts", "_total",
                       (const struct metric_label[]){{"cause", group_cause_name(c)}, {NULL, NULL}},
                       (double)a->n_restarts[c]);
}

static void write_states(const struct node_status *n, struct metrics_text *m)
{
    static const char *const states[] = {"starting", "running", "stopping", "succeeded", "failed"};

    metrics_family(m, "crun_workers", METRIC_GAUGE, "Workers of this node by state.");
    for (size_t s = 0; s < ARRAY_SIZE(states); s++) {
        const struct metric_label labels[] = {{"state", states[s]}, {NULL, NULL}};
        size_t n_workers = 0;

        for (size_t i = 0; i < n->n_workers; i++)
            n_workers += strcmp(n->workers[i].state, states[s]) == 0;
        metrics_sample(m, "crun_workers", "", labels, (double)n_workers);
    }
}

enum worker_value { LAST_STEP, HANG_SUSPECTED, STRAGGLER, WAITS };

static bool has_value(const struct worker_status *w, enum worker_value kind)
{
    return w->rank >= 0 && (kind != LAST_STEP || w->last_step >= 0) && /* equal labels without ranks */
           (kind != WAITS || w->waits_percent >= 0);
}

/* One sample for each worker with a value. */
static void write_workers(const struct node_status *n, struct metrics_text *m, const char *name,
                          const char *help, enum worker_value kind)
{
    char rank[16];

    metrics_family(m, name, METRIC_GAUGE, help);
    for (size_t i = 0; i < n->n_workers; i++) {
        const struct worker_status *w = &n->workers[i];
        double value = kind == LAST_STEP        ? (double)w->step_ms / 1000
                       : kind == WAITS          ? w->waits_percent / 100.0
                       : kind == HANG_SUSPECTED ? w->hang
                                                : w->straggler;

        (void)snprintf(rank, sizeof(rank), "%d", (int)w->rank); /* fits */
        if (has_value(w, kind))
            metrics_sample(m, name, "", (const struct metric_label[]){{"rank", rank}, {NULL, NULL}}, value);
    }
}

static void write_node(const struct node_status *n, struct metrics_text *m)
{
    write_states(n, m);
    write_workers(n, m, "crun_last_step_timestamp_seconds", "When a worker reported its last step.",
                  LAST_STEP);
    write_workers(n, m, "crun_hang_suspected", "1: the worker makes no progress.", HANG_SUSPECTED);
    write_workers(n, m, "crun_straggler", "1: the worker holds the others of this node up.", STRAGGLER);
    write_workers(n, m, "crun_worker_waits_ratio",
                  "Share of the last minute that the worker waited for others.", WAITS);
}

static void compose_job_metrics(void *data, struct metrics_text *m)
{
    const struct agent_metrics *a = data;
    const struct worker_group *g = a->host->group;
    bool has_started = g->started_ns > 0 && (g->state == GROUP_RUNNING || g->state == GROUP_REPLACING);
    struct job_status s = {0};

    if (a->host->describe(a->host->data, &s) == 0)
        write_node(&s.nodes[0], m);
    else
        m->failed = true;
    job_status_finish(&s);
    write_restarts(a, m);
    metrics_one(m, "crun_generation", METRIC_GAUGE, "The present or last generation.", g->generation);
    metrics_one(m, "crun_generation_seconds", METRIC_GAUGE, "How long it has been running; 0: it is not.",
                has_started ? (double)(now_ns() - g->started_ns) / 1e9 : 0);
    metrics_one(m, "crun_output_bytes", METRIC_COUNTER, "Output of workers that was taken for the console.",
                (double)output_pump_bytes());
    store_stats_write(&a->stats, m);
    if (a->host->membership)
        membership_write_metrics(a->host->membership, m);
}

static void stop_metrics(void *self)
{
    struct agent_metrics *m = self;

    metrics_destroy(m->server);
}

void agent_metrics_open(struct agent_observer *ret, const struct agent_host *host)
{
    const char *address = host->job->metrics_addr;
    static struct agent_metrics metrics; /* a process has one agent */
    struct agent_metrics *m = &metrics;
    const struct metrics_host server_host = {.loop = host->loop, .compose = compose_job_metrics, .data = m};
    char why[METRICS_ERROR_SIZE];
    uint16_t port;

    if (!address)
        return;
    m->host = host;
    *ret = (struct agent_observer){.self = m, .after = count_restarts, .stop = stop_metrics};
    worker_store_measure(&m->stats);
    if (metrics_create(&m->server, &server_host, address, &port, why) == 0)
        log_line("metrics on port %u", port);
    else
        log_line("%s; the job runs without metrics", why);
}
