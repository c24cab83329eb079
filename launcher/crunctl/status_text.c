#include "launcher/crunctl/status_text.h"

#include <stdio.h>
#include <string.h>

#include "launcher/crunctl/text_page.h"
#include "launcher/ctl/job_status.h"
#include "launcher/util/signal_name.h"

void status_format_duration(int64_t seconds, char out[32])
{
    long long s = seconds < 0 ? 0 : seconds, d = s / 86400, h = s / 3600 % 24, m = s / 60 % 60;

    if (d > 0)
        (void)snprintf(out, 32, "%lld d %lld:%02lld:%02lld", d, h, m, s % 60);
    else if (h > 0)
        (void)snprintf(out, 32, "%lld:%02lld:%02lld", h, m, s % 60);
    else if (m > 0)
        (void)snprintf(out, 32, "%lld:%02lld", m, s % 60);
    else
        (void)snprintf(out, 32, "%lld s", s);
}

void status_format_memory(int64_t kib, char out[24])
{
    if (kib >= 10 << 20)
        (void)snprintf(out, 24, "%lld GiB", (long long)(kib >> 20));
    else if (kib >= 1 << 20)
        (void)snprintf(out, 24, "%.1f GiB", (double)kib / (1 << 20));
    else
        (void)snprintf(out, 24, "%lld MiB", (long long)(kib >> 10));
}

void status_format_end(const struct worker_status *w, char out[64])
{
    char name[SIGNAL_NAME_SIZE];

    if (strcmp(w->state, "failed") != 0)
        (void)snprintf(out, 64, "%s", w->state);
    else if (w->exit_code < 0)
        (void)snprintf(out, 64, "failed (%s)", signal_name(-w->exit_code, name) ? name : "signal");
    else
        (void)snprintf(out, 64, "failed (exit code %d)", (int)w->exit_code);
}

static void add_job_line(struct text_page *p, const struct job_status *j, int64_t now_s)
{
    char up[32];

    if (j->crun_pid == 0) { /* the rendezvous knows no more */
        text_page_add(p, STYLE_PLAIN, "%s: %s, generation %lld, %d/%d restarts, %d node%s", j->job, j->state,
                      (long long)j->generation, (int)j->restarts, (int)j->max_restarts, (int)j->n_nodes,
                      j->n_nodes == 1 ? "" : "s");
        return;
    }
    status_format_duration(now_s - j->started_s, up);
    text_page_add(p, STYLE_PLAIN,
                  "%s: %s, %s for %s, generation %lld, %d/%d restarts, %d node%s, crun %lld%s%s", j->job,
                  j->program, j->state, up, (long long)j->generation, (int)j->restarts, (int)j->max_restarts,
                  (int)j->n_nodes, j->n_nodes == 1 ? "" : "s", (long long)j->crun_pid,
                  j->containment[0] ? ", contained by its " : "", j->containment);
}

/* A node that is left out; or one with an agent that reports no workers: it has none now, is of an older release, or does not answer. */
static void add_node_line(struct text_page *p, const struct node_status *n)
{
    if (strcmp(n->state, "unfit") == 0)
        text_page_add(p, STYLE_PLAIN, "  %6s  %-12.12s %8s  unfit: its health check failed", "-", n->host,
                      "-");
    else if (n->n_workers == 0)
        text_page_add(p, STYLE_PLAIN, "  %6s  %-12.12s %8s  %s, reports no workers", "-", n->host, "-",
                      n->state);
}

void status_format_rank(int32_t rank, char out[16])
{
    (void)snprintf(out, 16, rank < 0 ? "-" : "%d", (int)rank);
}

static void add_worker_line(struct text_page *p, const struct node_status *n, const struct worker_status *w,
                            int64_t now_s)
{
    char rank[16], end[64], up[32] = "-", cpu[24] = "-", memory[24] = "-", step[24] = "-";

    status_format_rank(w->rank, rank);
    status_format_end(w, end);
    if (w->started_s > 0 && w->has_usage)
        status_format_duration(now_s - w->started_s, up);
    if (w->cpu_percent >= 0)
        (void)snprintf(cpu, sizeof(cpu), "%d%%", (int)w->cpu_percent);
    if (w->has_usage)
        status_format_memory(w->rss_kib, memory);
    if (w->last_step >= 0)
        (void)snprintf(step, sizeof(step), "%lld", (long long)w->last_step);
    text_page_add(p, STYLE_PLAIN, "  %6s  %-12.12s %8lld  %-22s %6s %9s %12s %10s%s", rank, n->host,
                  (long long)w->pid, end, cpu, memory, up, step,
                  w->hang        ? "  HANG"
                  : w->awaited   ? "  AWAITED"
                  : w->straggler ? "  SLOW"
                                 : "");
}

char *status_text(const struct job_status *jobs, size_t n_jobs, int width, int64_t now_s)
{
    struct text_page p = {.width = width, .n_left = SIZE_MAX};

    for (size_t i = 0; i < n_jobs; i++) {
        add_job_line(&p, &jobs[i], now_s);
        text_page_add(&p, STYLE_PLAIN, "  %6s  %-12s %8s  %-22s %6s %9s %12s %10s", "RANK", "HOST", "PID",
                      "STATE", "CPU", "MEMORY", "UP", "STEP");
        for (size_t n = 0; n < jobs[i].n_nodes_known; n++)
            add_node_line(&p, &jobs[i].nodes[n]);
        for (size_t n = 0; n < jobs[i].n_nodes_known; n++)
            for (size_t w = 0; strcmp(jobs[i].nodes[n].state, "unfit") != 0 && w < jobs[i].nodes[n].n_workers;
                 w++)
                add_worker_line(&p, &jobs[i].nodes[n], &jobs[i].nodes[n].workers[w], now_s);
    }
    if (n_jobs == 0)
        text_page_add(&p, STYLE_PLAIN, "no job of yours runs on this node");
    return strbuf_steal(&p.out);
}
