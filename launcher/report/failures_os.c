#include "launcher/report/failures_os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/supervise/worker_group.h"
#include "launcher/cli/job.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/output/logs_os.h"
#include "launcher/report/final_error.h"
#include "launcher/report/report.h"
#include "launcher/report/report_json.h"
#include "launcher/util/log_os.h"
#include "launcher/util/read_disk_os.h"
#include "base/cleanup.h"
#include "base/time.h"

#define IMPORT_NS UINT64_C(10000000000) /* an import that fails does so within that time */

enum {
    ERROR_FILE_MAX = 1 << 20,
    LAST_LINES = 4,
    LAST_BYTES = 1024,
    LOOP_LIMIT_MS = 250, /* for a file that is written while the event loop waits */
    END_LIMIT_MS = 5000, /* for one that is written when the loop has ended */
};

/* What report_failure borrows. */
struct strings {
    char *path, *message, *bytes;
    size_t n_bytes;
};

static void read_error_file(const struct failures_source *source, struct report_failure *f, struct strings *s)
{
    int64_t time_s = 0;

    s->path = logs_worker_file(source->logs, source->group->workers[f->local_rank].generation, f->local_rank,
                               "error.json");
    if (!s->path)
        return;
    s->bytes = read_disk_start(s->path, ERROR_FILE_MAX, &s->n_bytes);
    if (!s->bytes)
        return;
    f->error_file = s->path;
    if (report_json_read(s->bytes, s->n_bytes, &s->message, &time_s) != 0)
        return; /* the file is named, what is in it cannot be shown */
    f->message = s->message;
    if (time_s > 0)
        f->time_s = time_s;
}

static void describe_failure(const struct failures_source *source, int local_rank, struct report_failure *f,
                             struct strings *s)
{
    const struct group_worker *w = &source->group->workers[local_rank];
    struct tm local;

    *f = (struct report_failure){
        .local_rank = local_rank,
        .rank = source->rank_base + local_rank,
        .pid = w->pid,
        .exit_code = group_worker_code(w),
        .core_dumped = WIFSIGNALED(w->status) && WCOREDUMP(w->status),
        .stopped = w->stopped,
        .ended_ns = w->ended_ns,
        .time_s = wall_clock_ns(w->ended_ns) / 1000000000,
        .max_rss_kib = w->max_rss_kib,
    };
    read_error_file(source, f, s);
    if (local_rank == source->line_worker)
        f->message = source->line_cause;
    time_t t = (time_t)f->time_s;
    if (!localtime_r(&t, &local) ||
        strftime(f->time_text, sizeof(f->time_text), "%Y-%m-%d_%H:%M:%S", &local) == 0)
        (void)snprintf(f->time_text, sizeof(f->time_text), "%lld", (long long)t);
}

static bool is_stderr_shown(const struct job *job, int local_rank)
{
    return job->tees[local_rank] & JOB_STDERR && (!job->listed || job->listed[local_rank]);
}

/* The end of the worker's stderr.log: whole lines, at most LAST_LINES of them. Malloc'ed or NULL. */
static char *last_stderr_lines(const struct failures_source *source, int local_rank)
{
    const struct job *job = source->job;
    _cleanup_free_ char *path = NULL;
    char *bytes;
    size_t n;

    if (!((job->redirects[local_rank] | job->tees[local_rank]) & JOB_STDERR))
        return NULL;
    path = logs_worker_file(source->logs, source->group->workers[local_rank].generation, local_rank,
                            "stderr.log");
    if (!path)
        return NULL;
    bytes = read_disk_end(path, LAST_BYTES, &n);
    if (!bytes)
        return NULL;
    while (n > 0 && bytes[n - 1] == '\n')
        n--;
    bytes[n] = '\0';
    size_t from = n;
    for (int lines = 0; from > 0; from--)
        if (bytes[from - 1] == '\n' && ++lines == LAST_LINES)
            break;
    memmove(bytes, bytes + from, n - from + 1);
    return bytes;
}

/* In the order in which they ended. */
static size_t collect_failures(const struct failures_source *source, struct report_failure *failures,
                               struct strings *strings)
{
    const struct worker_group *g = source->group;
    size_t n = 0;

    for (int order = 0; order < g->n_ended; order++)
        for (int i = 0; i < g->config.n_workers; i++) {
            const struct group_worker *w = &g->workers[i];
            if (w->state != GROUP_WORKER_ENDED || w->order != order || w->status == 0)
                continue;
            describe_failure(source, i, &failures[n], &strings[n]);
            n++;
        }
    return n;
}

static const char *own_error_file(char *const *environment)
{
    const char *path = envp_get(environment, "TORCHELASTIC_ERROR_FILE");

    return path && *path ? path : NULL;
}

static void write_own_error_file(const char *path, const char *text, unsigned limit_ms)
{
    int r = text ? write_disk_file(path, text, limit_ms) : 0;

    if (r)
        log_line("cannot write the error file %s: %s", path, strerror(-r));
}

/* torchrun's nesting: a launcher that was itself started with an error file copies the root cause there. */
static void copy_error_file(const struct failures_source *source, const struct strings *s, int exit_code)
{
    const char *path = own_error_file(source->environment);
    _cleanup_free_ char *text =
        path && s->bytes ? report_json_with_code(s->bytes, s->n_bytes, exit_code) : NULL;

    write_own_error_file(path, text, LOOP_LIMIT_MS);
}

void failures_record_own(char *const *environment, int signal, const char *text)
{
    const char *path = own_error_file(environment);
    char message[LOG_LINE_SIZE];

    if (!path)
        return;
    log_copy_last(message);
    if (signal) /* the words of torchrun */
        (void)snprintf(message, sizeof(message), "SignalException: Process %d got signal: %d", getpid(),
                       signal);
    else if (text)
        (void)snprintf(message, sizeof(message), "%s", text); /* may be cut */
    _cleanup_free_ char *file = report_json_of_launcher(message, time(NULL));
    write_own_error_file(path, file, END_LIMIT_MS);
}

/* ENOENT and EACCES of an exec mean the file itself or what its first line names. Malloc'ed; NULL: the file. */
static char *bad_interpreter(const struct failures_source *source)
{
    const struct worker_group *g = source->group;
    size_t n;

    if (g->cause != GROUP_CAUSE_EXEC || access(source->program, X_OK) < 0)
        return NULL;
    int error = g->workers[g->cause_worker].status;
    char *head = error == ENOENT || error == EACCES ? read_disk_start(source->program, 256, &n) : NULL;
    if (!head)
        return NULL;
    head[n] = '\0';
    if (strncmp(head, "#!", 2) != 0) {
        free(head);
        return NULL;
    }
    const char *name = head + 2 + strspn(head + 2, " \t");
    size_t length = strcspn(name, " \t\n");
    memmove(head, name, length);
    head[length] = '\0';
    return head;
}

/* "rank 1 (pid 4711): exit code 3: ValueError: boom". */
static void set_reason(const struct failures_source *source, const struct report_failure *f, char *out,
                       size_t out_size)
{
    const struct worker_group *g = source->group;
    char end[96];

    *out = '\0';
    if (g->cause == GROUP_CAUSE_EXEC)
        (void)snprintf(out, out_size, "%s: %s", source->program,
                       strerror(g->workers[g->cause_worker].status));
    if (g->cause == GROUP_CAUSE_GUARDIAN)
        (void)snprintf(out, out_size, "the guardian was killed from outside");
    if (g->cause == GROUP_CAUSE_START)
        (void)snprintf(out, out_size, "the workers could not be started%s%s", g->start_error ? ": " : "",
                       g->start_error ? strerror(g->start_error) : "");
    if (g->cause != GROUP_CAUSE_WORKER || !f)
        return;
    report_describe_end(f, end, sizeof(end));
    const char *last =
        f->message ? strrchr(f->message, '\n') : NULL; /* the last line of a traceback is the exception */
    last = last && last[1] ? last + 1 : f->message;
    (void)snprintf(out, out_size, "rank %d (pid %d): %s%s%.*s", f->rank, f->pid, end, last ? ": " : "",
                   last ? (int)strcspn(last, "\n") : 0, last ? last : ""); /* cut when it is long */
}

/* The most frequent mistake with a launcher that is not part of a virtual environment: the Python of another one. Its
 * traceback may be where crun does not read it, so an early end without an error file counts, too. */
static bool may_be_an_import(const struct failures_source *source, const struct report_failure *root,
                             const char *stderr_lines)
{
    const struct group_worker *w = &source->group->workers[root->local_rank];
    const char *text = root->message ? root->message : stderr_lines;
    const char *slash = strrchr(source->program, '/');

    if (strncmp(slash ? slash + 1 : source->program, "python", strlen("python")) != 0 ||
        root->exit_code != 1 || source->job->program == JOB_PROGRAM_EXECUTABLE)
        return false;
    if (text)
        return strstr(text, "ModuleNotFoundError") || strstr(text, "ImportError");
    return w->ended_ns - w->started_ns < IMPORT_NS;
}

static bool is_final_failure(const struct failures_source *source, const struct report_failure *root,
                             const char *stderr_lines)
{
    const struct worker_group *g = source->group;
    const char *text = root && root->message ? root->message : stderr_lines;

    if (g->cause == GROUP_CAUSE_EXEC)
        return group_exec_is_final(g->workers[g->cause_worker].status);
    return g->is_final || (g->cause == GROUP_CAUSE_WORKER && text && final_error_is_in(text));
}

static void report_failed_generation(const struct failures_source *source, struct report_failure *failures,
                                     struct strings *strings, struct failures_outcome *outcome)
{
    const struct worker_group *g = source->group;
    char host[256], core_pattern[128];

    proc_info_core_pattern(core_pattern, sizeof(core_pattern));
    size_t n = collect_failures(source, failures, strings);
    int root = report_find_root(failures, n);
    proc_info_host_name(host, sizeof(host));
    outcome->root_code = root < 0 ? 0 : failures[root].exit_code;
    set_reason(source, root < 0 ? NULL : &failures[root], outcome->reason, sizeof(outcome->reason));
    outcome->has_files = outcome->has_files || job_has_logs(source->job);
    for (size_t i = 0; i < n; i++)
        outcome->has_files = outcome->has_files || failures[i].error_file;
    _cleanup_free_ char *stderr_lines =
        root < 0 ? NULL : last_stderr_lines(source, failures[root].local_rank);
    outcome->is_final = is_final_failure(source, root < 0 ? NULL : &failures[root], stderr_lines);
    _cleanup_free_ char *interpreter = bad_interpreter(source);
    const struct report report = {
        .group = g,
        .rank_base = source->rank_base,
        .failures = failures,
        .n_failures = n,
        .root = root,
        .title = source->job->program_name,
        .host = host,
        .program = source->program,
        .python =
            root >= 0 && may_be_an_import(source, &failures[root], stderr_lines) ? source->program : NULL,
        .interpreter = interpreter,
        .log_dir = outcome->has_files || source->job->log_dir ? source->logs->run : NULL,
        .oom_kills = source->oom_kills,
        .core_pattern = core_pattern,
        .sender = source->sender,
        .gave_up = source->gave_up,
        .final_why = source->final_why,
        .last_lines =
            root < 0 || is_stderr_shown(source->job, failures[root].local_rank) ? NULL : stderr_lines,
    };
    _cleanup_free_ char *text = report_compose(&report);
    log_lines(text ? text : "crun: the job has failed, and there is no memory for the report\n");
    if (root >= 0 && !g->will_restart)
        copy_error_file(source, &strings[root], failures[root].exit_code);
}

void failures_tell(const struct failures_source *source, struct failures_outcome *outcome)
{
    size_t n = (size_t)source->group->config.n_workers;
    struct report_failure *failures = calloc(n, sizeof(*failures));
    struct strings *strings = calloc(n, sizeof(*strings));

    if (failures && strings)
        report_failed_generation(source, failures, strings, outcome);
    for (size_t i = 0; strings && i < n; i++) {
        free(strings[i].path);
        free(strings[i].message);
        free(strings[i].bytes);
    }
    free(strings);
    free(failures);
}

void failures_read_message(const char *error_file, char *ret, size_t size)
{
    _cleanup_free_ char *bytes = NULL, *message = NULL;
    int64_t time_s;
    size_t n;

    ret[0] = '\0';
    bytes = error_file ? read_disk_start(error_file, ERROR_FILE_MAX, &n) : NULL;
    if (!bytes || report_json_read(bytes, n, &message, &time_s) != 0)
        return;
    const char *end = message + strlen(message);
    while (end > message && end[-1] == '\n')
        end--;
    /* The last line of a traceback is the exception. */
    const char *line = end;
    while (line > message && line[-1] != '\n')
        line--;
    (void)snprintf(ret, size, "%.*s", (int)(end - line), line); /* truncated when it is long */
}
