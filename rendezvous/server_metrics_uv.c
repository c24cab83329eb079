/* What a server has to report about itself, for metrics. */

#include <stdio.h>

#include "rendezvous/metrics_text.h"
#include "rendezvous/rounds_uv.h"
#include "rendezvous/server_impl_uv.h"

enum { NS_PER_S = 1000000000 };

static void write_job_states(const struct rounds *r, struct metrics_text *m)
{
    size_t n_jobs[ROUNDS_JOB_STATE_COUNT] = {0};

    list_for_each(i, &r->jobs)
    {
        const struct rounds_job *job = list_entry(i, struct rounds_job, in_rounds);

        n_jobs[job->state] += !job->replaced;
    }
    metrics_family(m, "crun_jobs", METRIC_GAUGE, "Jobs of the rendezvous by state.");
    for (unsigned s = 0; s < ROUNDS_JOB_STATE_COUNT; s++)
        metrics_sample(m, "crun_jobs", "",
                       (const struct metric_label[]){{"state", rounds_job_state_name(s)}, {NULL, NULL}},
                       (double)n_jobs[s]);
}

/* Of the node of the job that has been silent for longest, since its last frame. */
static double silence_of_job(const struct rounds_job *job, uint64_t now_ns)
{
    uint64_t silent_ns = 0;

    list_for_each(i, &job->nodes)
    {
        const struct rounds_node *n = list_entry(i, struct rounds_node, in_job);

        if (n->heard_ns < now_ns && now_ns - n->heard_ns > silent_ns)
            silent_ns = now_ns - n->heard_ns;
    }
    return (double)silent_ns / NS_PER_S;
}

enum job_metric { JOB_NODES, JOB_GENERATION, JOB_RESTARTS, JOB_SILENCE, JOB_METRIC_COUNT };

static double value_of_job(const struct rounds_job *job, enum job_metric which, uint64_t now_ns)
{
    switch (which) {
    case JOB_NODES:
        return rounds_job_n_nodes(job);
    case JOB_GENERATION:
        return (double)job->generation;
    case JOB_RESTARTS:
        return job->restarts;
    default:
        return silence_of_job(job, now_ns);
    }
}

/* One series for each job and metric: --max-jobs bounds them. */
static void write_jobs(const struct rounds *r, struct metrics_text *m)
{
    static const struct {
        const char *name, *help;
    } families[JOB_METRIC_COUNT] = {
        [JOB_NODES] = {"crun_job_nodes", "Nodes that a job has now."},
        [JOB_GENERATION] = {"crun_job_generation", "Its present or last generation, -1 before the first."},
        [JOB_RESTARTS] = {"crun_job_restarts", "Restarts that were charged to its budget."},
        [JOB_SILENCE] = {"crun_job_silence_seconds",
                         "Since the last frame of its node that was silent longest."},
    };
    uint64_t now_ns = uv_hrtime();

    for (enum job_metric f = 0; f < JOB_METRIC_COUNT; f++) {
        metrics_family(m, families[f].name, METRIC_GAUGE, families[f].help);
        list_for_each(i, &r->jobs)
        {
            const struct rounds_job *job = list_entry(i, struct rounds_job, in_rounds);
            const struct metric_label labels[] = {{"job_id", job->id}, {NULL, NULL}};

            if (!job->replaced)
                metrics_sample(m, families[f].name, "", labels, value_of_job(job, f, now_ns));
        }
    }
}

void server_write_metrics(const struct server *s, struct metrics_text *m)
{
    size_t n_sessions = 0;

    metrics_one(m, "crun_connections", METRIC_GAUGE, "Open connections, those of agents included.",
                s->n_peers);
    if (!s->rounds)
        return;
    list_for_each(i, &s->rounds->agents) n_sessions++;
    metrics_one(m, "crun_sessions", METRIC_GAUGE, "Connections of agents.", (double)n_sessions);
    metrics_one(m, "crun_nodes", METRIC_GAUGE, "Nodes of all jobs.", (double)s->rounds->core.n_nodes);
    write_job_states(&s->rounds->core, m);
    write_jobs(&s->rounds->core, m);
}
