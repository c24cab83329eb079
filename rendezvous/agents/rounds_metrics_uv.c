/* What the rounds have to report, for metrics. */

#include <string.h>

#include "base/err.h"
#include "base/time.h"
#include "rendezvous/store/metrics_text.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

enum { NS_PER_S = 1000000000 };

static void write_job_states(const struct rounds *r, struct metrics_text *m)
{
    size_t n_jobs[ROUNDS_JOB_STATE_COUNT] = {0};

    rounds_each_job(job, r) n_jobs[job->state] += !job->replaced;
    metrics_family(m, "crun_jobs", METRIC_GAUGE, "Jobs of the rendezvous by state.");
    for (unsigned s = 0; s < ROUNDS_JOB_STATE_COUNT; s++)
        metrics_sample(m, "crun_jobs", "",
                       (const struct metric_label[]){{"state", rounds_job_state_names[s]}, {NULL, NULL}},
                       (double)n_jobs[s]);
}

/* Of the node of the job that has been silent for longest, since its last frame. */
static double silence_of_job(const struct rounds_job *job, uint64_t now_ns)
{
    uint64_t silent_ns = 0;

    job_each_node(n, job)
    {
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
    uint64_t now_ns = boot_ns();

    for (enum job_metric f = 0; f < JOB_METRIC_COUNT; f++) {
        metrics_family(m, families[f].name, METRIC_GAUGE, families[f].help);
        rounds_each_job(job, r)
        {
            const struct metric_label labels[] = {{"job_id", job->id}, {NULL, NULL}};

            if (!job->replaced)
                metrics_sample(m, families[f].name, "", labels, value_of_job(job, f, now_ns));
        }
    }
}

void rounds_shell_write_metrics(const void *shell, struct metrics_text *m)
{
    const struct rounds_shell *r = shell;
    size_t n_sessions = 0;

    list_for_each(i, &r->agents) n_sessions++;
    metrics_one(m, "crun_sessions", METRIC_GAUGE, "Connections of agents.", (double)n_sessions);
    metrics_one(m, "crun_nodes", METRIC_GAUGE, "Nodes of all jobs.", (double)r->core.n_nodes);
    write_job_states(&r->core, m);
    write_jobs(&r->core, m);
}

/* ---- of the agents of each job ---- */

/* The words of crun for its workers. */
static const char *worker_state_of(enum rounds_node_state state)
{
    static const char *const states[ROUNDS_NODE_STATE_COUNT] = {
        [ROUNDS_NODE_RUNNING] = "running",  [ROUNDS_NODE_DONE] = "succeeded",
        [ROUNDS_NODE_READY] = "starting",   [ROUNDS_NODE_STOPPING] = "stopping",
        [ROUNDS_NODE_JOINING] = "starting", [ROUNDS_NODE_UNFIT] = "unfit",
        [ROUNDS_NODE_LOST] = "lost",
    };

    return states[state];
}

static void write_job_workers(const struct rounds_job *job, struct metrics_text *m)
{
    static const char *const states[] = {"starting", "running", "stopping", "succeeded", "unfit", "lost"};

    for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
        const struct metric_label labels[] = {{"job_id", job->id}, {"state", states[i]}, {NULL, NULL}};
        uint64_t n_workers = 0;

        job_each_node(n, job)
        {
            if (strcmp(worker_state_of(n->state), states[i]) == 0)
                n_workers += n->n_workers;
        }
        metrics_sample(m, "crun_workers", "", labels, (double)n_workers);
    }
}

static void write_job_restarts(const struct rounds_job *job, struct metrics_text *m)
{
    for (unsigned c = SESSION_CAUSE_WORKER; c < SESSION_CAUSE_COUNT; c++) {
        const struct metric_label labels[] = {
            {"job_id", job->id}, {"cause", session_cause_names[c]}, {NULL, NULL}};

        metrics_sample(m, "crun_restarts", "_total", labels, job->n_restarts_by[c]);
    }
}

static void write_job_generations(const struct rounds_job *job, struct metrics_text *m)
{
    metrics_sample(m, "crun_job_generations", "_total",
                   (const struct metric_label[]){{"job_id", job->id}, {NULL, NULL}}, job->n_generations);
}

/* A generation that is older than the daemon has no sample. */
static void write_job_age(const struct rounds_job *job, struct metrics_text *m)
{
    const struct metric_label labels[] = {{"job_id", job->id}, {NULL, NULL}};
    uint64_t now_ns = boot_ns();

    if (job->state != ROUNDS_RUNNING || job->formed_ns > 0)
        metrics_sample(m, "crun_generation_seconds", "", labels,
                       job->state == ROUNDS_RUNNING && now_ns > job->formed_ns
                           ? (double)(now_ns - job->formed_ns) / NS_PER_S
                           : 0);
}

static void write_job_hang(const struct rounds_job *job, struct metrics_text *m)
{
    metrics_sample(m, "crun_hang_suspected", "",
                   (const struct metric_label[]){{"job_id", job->id}, {NULL, NULL}},
                   rounds_job_is_quiet(job));
}

void rounds_shell_write_job_metrics(const struct rounds_shell *r, struct metrics_text *m)
{
    static const struct {
        const char *name, *help;
        enum metric_kind kind;
        void (*write)(const struct rounds_job *job, struct metrics_text *m);
    } families[] = {
        {"crun_workers", "Workers of each job, by what their node reports.", METRIC_GAUGE, write_job_workers},
        {"crun_restarts", "Generations that followed one that a cause had ended.", METRIC_COUNTER,
         write_job_restarts},
        {"crun_job_generations", "Generations that were formed.", METRIC_COUNTER, write_job_generations},
        {"crun_generation_seconds", "How long the generation has been running; 0: none is.", METRIC_GAUGE,
         write_job_age},
        {"crun_hang_suspected", "1: no node of the job reports progress.", METRIC_GAUGE, write_job_hang},
    };

    for (size_t f = 0; f < ARRAY_SIZE(families); f++) {
        metrics_family(m, families[f].name, families[f].kind, families[f].help);
        rounds_each_job(job, &r->core)
        {
            if (!job->replaced)
                families[f].write(job, m);
        }
    }
}
