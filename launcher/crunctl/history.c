#include "launcher/crunctl/history.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "launcher/ctl/job_status.h"
#include "launcher/crunctl/status_text.h"
#include "launcher/crunctl/text_page.h"

/* The run of a line: the last run of the same job, host and identity without an end. */
static struct history_run *open_run(struct history *h, const struct history_line *line)
{
    for (size_t i = h->n_runs; i > 0; i--) {
        struct history_run *run = &h->runs[i - 1];

        if (strcmp(run->start.job, line->job) == 0 && strcmp(run->start.host, line->host) == 0 &&
            strcmp(run->start.run, line->run) == 0)
            return run->result[0] ? NULL : run;
    }
    return NULL;
}

static struct history_run *begin_run(struct history *h, const struct history_line *line)
{
    if (!array_resize(h->runs, h->n_runs + 1))
        return NULL;
    struct history_run *run = &h->runs[h->n_runs++];
    *run = (struct history_run){.start = *line};
    return run;
}

static void end_last_generation(struct history_run *run, const struct history_line *line)
{
    struct history_generation *g = &run->generations[run->n_generations - 1];

    if (g->ended_s == 0)
        g->ended_s = line->time_s;
    if (line->reason[0])
        memcpy(g->reason, line->reason, sizeof(g->reason));
}

static int take_start(struct history *h, const struct history_line *line)
{
    struct history_run *run = open_run(h, line);

    if (!run || run->start.crun_pid != line->crun_pid)
        run = begin_run(h, line);
    if (!run)
        return -ENOMEM;
    if (run->n_generations == HISTORY_GENERATIONS_MAX)
        return 0;
    if (run->n_generations > 0 && run->generations[run->n_generations - 1].ended_s == 0)
        run->generations[run->n_generations - 1].ended_s = line->time_s;
    if (!array_resize(run->generations, run->n_generations + 1))
        return -ENOMEM;
    run->generations[run->n_generations++] = (struct history_generation){.number = line->generation,
                                                                         .started_s = line->time_s,
                                                                         .restarts = line->restarts,
                                                                         .n_nodes = line->group_world_size,
                                                                         .n_workers = line->world_size};
    return 0;
}

static void note_signal(struct history_run *run, const struct history_line *line)
{
    struct history_generation *g = &run->generations[run->n_generations - 1];

    if (!g->reason[0])
        (void)snprintf(g->reason, sizeof(g->reason), "stopped by %s", line->signal); /* fits */
}

static void note_mark(struct history_run *run, const struct history_line *line)
{
    struct history_generation *g = &run->generations[run->n_generations - 1];

    g->n_marks += g->n_marks < INT32_MAX;
    g->mark_rank = line->mark_rank;
    memcpy(g->mark, line->mark, sizeof(g->mark));
}

static void end_run(struct history_run *run, const struct history_line *line)
{
    if (run->n_generations > 0)
        end_last_generation(run, line);
    else
        memcpy(run->reason, line->reason, sizeof(run->reason));
    run->ended_s = line->time_s;
    run->exit_code = line->exit_code;
    (void)snprintf(run->result, sizeof(run->result), "%s",
                   line->result[0] ? line->result : "ended"); /* fits */
}

/* The nodes did not come, or the lines of the generations are no longer there. The identity has the time of the start and the
 * process number. */
static int take_end_alone(struct history *h, const struct history_line *line)
{
    struct history_line start = *line;
    long long started_ns, pid;

    if (sscanf(line->run, "%lld-%lld", &started_ns, &pid) != 2)
        return 0;
    start.time_s = started_ns / 1000000000;
    start.crun_pid = pid;
    struct history_run *run = begin_run(h, &start);
    if (!run)
        return -ENOMEM;
    end_run(run, line);
    return 0;
}

int history_add(struct history *h, const struct history_line *line)
{
    struct history_run *run;

    if (line->kind == EVENT_START)
        return take_start(h, line);
    run = open_run(h, line);
    if (!run && line->kind == EVENT_END)
        return take_end_alone(h, line);
    if (!run || run->n_generations == 0)
        return 0;
    if (line->kind == EVENT_STOP)
        note_signal(run, line);
    else if (line->kind == EVENT_MARK)
        note_mark(run, line);
    else if (line->kind == EVENT_END)
        end_run(run, line);
    else if (line->kind == EVENT_PEER || line->kind == EVENT_RESTART)
        end_last_generation(run, line);
    return 0;
}

void history_select(struct history *h, const char *job)
{
    enum job_match best = JOB_MATCH_BEGINNING;
    size_t n = 0;

    for (size_t i = 0; i < h->n_runs; i++)
        if (job_status_match(h->runs[i].start.job, job) > best)
            best = JOB_MATCH_WHOLE;
    for (size_t i = 0; i < h->n_runs; i++) {
        if (job_status_match(h->runs[i].start.job, job) >= best)
            h->runs[n++] = h->runs[i];
        else
            free(h->runs[i].generations);
    }
    h->n_runs = n;
}

/* ---- text ---- */

static void add_generation_line(struct text_page *p, const struct history_generation *g, const char *open,
                                void (*format_time)(int64_t seconds, char out[32]))
{
    char started[32], lasted[32];

    format_time(g->started_s, started);
    (void)snprintf(lasted, sizeof(lasted), "%s", open); /* fits */
    if (g->ended_s > 0)
        status_format_duration(g->ended_s - g->started_s, lasted);
    text_page_add(p, STYLE_PLAIN, "%10lld  %-19s %12s %5d %7d %8d  %s", (long long)g->number, started, lasted,
                  (int)g->n_nodes, (int)g->n_workers, (int)g->restarts, g->reason[0] ? g->reason : "-");
    if (g->n_marks > 0)
        text_page_add(p, STYLE_PLAIN, "%10s  lines marked: %d, the last one by rank %d: %s", "",
                      (int)g->n_marks, (int)g->mark_rank, g->mark);
}

char *history_text(const struct history_run *run, int width,
                   void (*format_time)(int64_t seconds, char out[32]))
{
    static const char *const lives[] = {[HISTORY_LIFE_UNKNOWN] = "has not ended, or crun was killed",
                                        [HISTORY_LIFE_RUNS] = "runs",
                                        [HISTORY_LIFE_KILLED] = "crun was killed"};
    struct text_page p = {.n_left = SIZE_MAX};
    char took[32];

    status_format_duration(run->ended_s - run->start.time_s, took);
    if (run->result[0])
        text_page_add(&p, STYLE_PLAIN, "%s on %s: %s, %s with exit code %d after %s%s%s", run->start.job,
                      run->start.host, run->start.program, run->result, (int)run->exit_code, took,
                      run->reason[0] ? ": " : "", run->reason);
    else
        text_page_add(&p, STYLE_PLAIN, "%s on %s: %s, %s", run->start.job, run->start.host,
                      run->start.program, lives[run->life]);
    if (run->n_generations > 0)
        text_page_add(&p, STYLE_PLAIN, "%10s  %-19s %12s %5s %7s %8s  %s", "GENERATION", "STARTED", "LASTED",
                      "NODES", "WORKERS", "RESTARTS", "ENDED BECAUSE");
    p.width = width; /* the lines above are whole on a narrow terminal, too */
    for (size_t i = 0; i < run->n_generations; i++)
        add_generation_line(&p, &run->generations[i], run->life == HISTORY_LIFE_RUNS ? "runs" : "-",
                            format_time);
    return strbuf_steal(&p.out);
}

void history_finish(struct history *h)
{
    for (size_t i = 0; i < h->n_runs; i++)
        free(h->runs[i].generations);
    free(h->runs);
    *h = (struct history){0};
}
