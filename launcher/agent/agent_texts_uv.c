/*
 * What the agent shows of the files of failed workers. They are read from the end of each worker on, and the loop goes on meanwhile.
 *
 * The report of the first failure waits for the text of that worker, so briefly that no disk that is slow delays what the other nodes
 * learn. A text that comes later is sent behind it. The end of the generation waits for all texts: before that the report on it
 * cannot be printed.
 */

#include <errno.h>

#include "launcher/agent/agent_impl_uv.h"
#include "launcher/cli/job.h"
#include "launcher/report/disk_texts_uv.h"
#include "launcher/supervise/guardian_os.h"

enum { FIRST_TEXT_MS = 50, ALL_TEXTS_MS = 250 };

struct failures_source agent_failures_source(const struct agent *a)
{
    return (struct failures_source){.group = &a->group,
                                    .job = a->config->job,
                                    .environment = a->config->environment,
                                    .program = a->config->file,
                                    .logs = &a->logs,
                                    .texts = a->texts,
                                    .rank_base = (int)a->assignment.rank_base,
                                    .oom_kills = -1,
                                    .sender = a->sender,
                                    .gave_up = a->gave_up,
                                    .line_worker = a->line_worker,
                                    .line_cause = a->line_cause,
                                    .final_why = a->final_why};
}

static bool is_known_worker(const struct agent *a, const struct guardian_report *report)
{
    return report->worker >= 0 && report->worker < a->config->job->n_workers;
}

void agent_want_texts(struct agent *a, const struct guardian_report *report)
{
    const struct failures_source source = agent_failures_source(a);
    bool is_file_missing = report->value == ENOENT || report->value == EACCES;

    if (report->kind == GUARDIAN_EXITED && report->value != 0 && is_known_worker(a, report))
        failures_want_texts(&source, report->worker);
    if (report->kind == GUARDIAN_EXEC_FAILED && is_file_missing)
        failures_want_program(&source);
}

/* Before another node learns of it, or before a replacement whose report comes at once. */
static bool is_first_failure(const struct agent *a, const struct guardian_report *report)
{
    const struct job *job = a->config->job;

    return report->kind == GUARDIAN_EXITED && report->value != 0 && is_known_worker(a, report) &&
           (job->meeting == JOB_ROUNDS || job->replace) && a->group.cause == GROUP_CAUSE_NONE;
}

unsigned agent_text_patience(const struct agent *a, const struct guardian_report *report)
{
    if (report->kind == GUARDIAN_EMPTY)
        return disk_texts_await_any(a->texts) ? ALL_TEXTS_MS : 0;
    return is_first_failure(a, report) && disk_texts_await(a->texts, (size_t)report->worker) ? FIRST_TEXT_MS
                                                                                             : 0;
}

/* The other nodes know of that failure without its text: it was reported before. */
static bool is_late_text(const struct agent *a, size_t i)
{
    return a->membership && a->group.cause == GROUP_CAUSE_WORKER && (size_t)a->group.cause_worker == i &&
           disk_texts_get(a->texts, i, a->group.workers[i].generation);
}

static void on_text_read(void *data, size_t i)
{
    struct agent *a = data;

    if (is_late_text(a, i))
        agent_report_failed(a, (int)i);
    agent_check_held(a);
}

int agent_open_texts(struct agent *a)
{
    return disk_texts_create(&a->texts,
                             &(struct disk_texts_host){.loop = &a->loop,
                                                       .n = failures_n_texts(a->config->job->n_workers),
                                                       .on_read = on_text_read,
                                                       .data = a});
}
