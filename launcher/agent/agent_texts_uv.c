/*
 * What the agent shows of the files of failed workers. They are read from the end of each worker on, and the loop goes on meanwhile.
 *
 * The report of the first failure waits for the text of that worker, so briefly that no disk that is slow delays what the other nodes
 * learn. A text that comes later is sent behind it. The end of the generation waits for all texts: before that the report on it
 * cannot be printed.
 */

#include "launcher/agent/agent_texts_uv.h"

#include <errno.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/agent_uv.h"
#include "launcher/cli/job.h"
#include "launcher/report/disk_texts_uv.h"
#include "launcher/report/failures_os.h"
#include "launcher/supervise/guardian_os.h"

enum { FIRST_TEXT_MS = 50, ALL_TEXTS_MS = 250 };

static bool is_failure_of_worker(const struct job *job, const struct guardian_report *report)
{
    return report->kind == GUARDIAN_EXITED && report->value != 0 && report->worker >= 0 &&
           report->worker < job->n_workers;
}

void agent_texts_want(const struct failures_source *source, const struct guardian_report *report)
{
    bool is_file_missing = report->value == ENOENT || report->value == EACCES;

    if (is_failure_of_worker(source->job, report))
        failures_want_texts(source, report->worker);
    if (report->kind == GUARDIAN_EXEC_FAILED && is_file_missing)
        failures_want_program(source);
}

/* Before another node learns of it, or before a replacement whose report comes at once. */
static bool is_first_failure(const struct agent_host *host, const struct guardian_report *report)
{
    const struct job *job = host->config->job;

    return is_failure_of_worker(job, report) && (job->meeting == JOB_ROUNDS || job->replace) &&
           host->group->cause == GROUP_CAUSE_NONE;
}

unsigned agent_texts_patience(const struct agent_host *host, const struct disk_texts *texts,
                              const struct guardian_report *report)
{
    if (report->kind == GUARDIAN_EMPTY)
        return disk_texts_await_any(texts) ? ALL_TEXTS_MS : 0;
    return is_first_failure(host, report) && disk_texts_await(texts, (size_t)report->worker) ? FIRST_TEXT_MS
                                                                                             : 0;
}

bool agent_texts_is_late(const struct agent_host *host, const struct disk_texts *texts, size_t i)
{
    const struct worker_group *g = host->group;

    return host->membership && g->cause == GROUP_CAUSE_WORKER && (size_t)g->cause_worker == i &&
           disk_texts_get(texts, i, g->workers[i].generation);
}
