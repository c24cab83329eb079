#include "launcher/report/failures_os.h"

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
#include "launcher/output/output_handover_sock.h"
#include "launcher/report/disk_texts_uv.h"
#include "launcher/report/final_error.h"
#include "launcher/report/report_json.h"
#include "launcher/util/log_os.h"
#include "launcher/util/read_disk_os.h"
#include "base/cleanup.h"
#include "base/time.h"

#define IMPORT_NS UINT64_C(10000000000) /* longest time until an import fails */

enum {
    ERROR_FILE_MAX = 1 << 20,
    PROGRAM_HEAD_MAX = 256,
    LAST_LINES = 4,
    LAST_BYTES = 1024,
    LOOP_LIMIT_MS = 250, /* for a file written while the event loop waits */
    END_LIMIT_MS = 5000, /* for a file written after the end of the loop */
};

/* ---- files on a disk: the error file of each worker, and two texts on the cause ---- */

static size_t stderr_text(const struct failures_source *source)
{
    return (size_t)source->report.group->config.n_workers;
}

static size_t program_text(const struct failures_source *source)
{
    return stderr_text(source) + 1;
}

size_t failures_n_texts(int n_workers)
{
    return (size_t)n_workers + 2;
}

static char *worker_file(const struct failures_source *source, int local_rank, const char *name)
{
    return logs_worker_file(source->logs, source->report.group->workers[local_rank].generation, local_rank,
                            name);
}

static bool is_stderr_kept(const struct job *job, int local_rank)
{
    return (job->redirects[local_rank] | job->tees[local_rank]) & JOB_STDERR;
}

void failures_want_texts(const struct failures_source *source, int local_rank)
{
    const struct worker_group *g = source->report.group;
    unsigned generation = g->workers[local_rank].generation;

    disk_texts_want(source->texts, (size_t)local_rank, generation,
                    file_part_create(worker_file(source, local_rank, "error.json"), ERROR_FILE_MAX, false));
    /* A single text for the report: of the worker with the first failure, also while the report waits for texts. */
    bool is_first = !disk_texts_await(source->texts, stderr_text(source)) &&
                    !disk_texts_get(source->texts, stderr_text(source), generation);
    if (g->cause == GROUP_CAUSE_NONE && is_first && is_stderr_kept(source->job, local_rank))
        disk_texts_want(source->texts, stderr_text(source), generation,
                        file_part_create(worker_file(source, local_rank, "stderr.log"), LAST_BYTES, true));
}

void failures_want_program(const struct failures_source *source)
{
    disk_texts_want(source->texts, program_text(source), source->report.group->generation,
                    file_part_create(strdup(source->report.program), PROGRAM_HEAD_MAX, false));
}

static const struct file_part *error_text(const struct failures_source *source, int local_rank)
{
    return disk_texts_get(source->texts, (size_t)local_rank,
                          source->report.group->workers[local_rank].generation);
}

static void read_error_file(const struct failures_source *source, struct report_failure *f)
{
    const struct file_part *part = error_text(source, f->local_rank);
    int64_t time_s = 0;

    if (!part)
        return;
    if (source->job->output_fd)
        (void)snprintf(f->error_name, sizeof(f->error_name), "attempt_%u/%d/error.json",
                       source->report.group->workers[f->local_rank].generation, f->local_rank); /* fits */
    f->error_file = source->job->output_fd ? f->error_name : part->path;
    if (report_json_read(part->bytes, part->n_bytes, &f->text, &time_s) != 0)
        return; /* the file is named, the content cannot be shown */
    f->message = f->text;
    if (time_s > 0)
        f->time_s = time_s;
}

/* ---- the failures ---- */

static void describe_failure(const struct failures_source *source, int local_rank, struct report_failure *f)
{
    const struct group_worker *w = &source->report.group->workers[local_rank];
    struct tm local;

    *f = (struct report_failure){
        .local_rank = local_rank,
        .rank = source->report.rank_base + local_rank,
        .pid = w->pid,
        .exit_code = group_worker_code(w),
        .core_dumped = WIFSIGNALED(w->status) && WCOREDUMP(w->status),
        .stopped = w->stopped,
        .ended_ns = w->ended_ns,
        .time_s = wall_clock_ns(w->ended_ns) / 1000000000,
        .max_rss_kib = w->max_rss_kib,
    };
    read_error_file(source, f);
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

/* The end of stderr.log, if the worker failed first: whole lines, at most LAST_LINES. Malloc'ed or NULL. */
static char *last_stderr_lines(const struct failures_source *source, int local_rank)
{
    const struct file_part *part = disk_texts_get(source->texts, stderr_text(source),
                                                  source->report.group->workers[local_rank].generation);
    _cleanup_free_ char *path = worker_file(source, local_rank, "stderr.log");

    if (!part || !path || strcmp(part->path, path) != 0)
        return NULL;
    size_t n = part->n_bytes;
    while (n > 0 && part->bytes[n - 1] == '\n')
        n--;
    size_t from = n;
    for (int lines = 0; from > 0; from--)
        if (part->bytes[from - 1] == '\n' && ++lines == LAST_LINES)
            break;
    return strndup(part->bytes + from, n - from);
}

/* In the order of the ends. */
static size_t collect_failures(const struct failures_source *source, struct report_failure *failures)
{
    const struct worker_group *g = source->report.group;
    size_t n = 0;

    for (int order = 0; order < g->n_ended; order++)
        for (int i = 0; i < g->config.n_workers; i++) {
            const struct group_worker *w = &g->workers[i];
            if (w->state != GROUP_WORKER_ENDED || w->order != order || w->status == 0)
                continue;
            describe_failure(source, i, &failures[n++]);
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
static void copy_error_file(const struct failures_source *source, const struct report_failure *root)
{
    const char *path = own_error_file(source->environment);
    const struct file_part *part = error_text(source, root->local_rank);
    _cleanup_free_ char *text =
        path && part ? report_json_with_code(part->bytes, part->n_bytes, root->exit_code) : NULL;

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

/* ENOENT and EACCES of an exec mean the file itself or the program in the file's first line. Malloc'ed; NULL: the file. */
static char *bad_interpreter(const struct failures_source *source)
{
    const struct worker_group *g = source->report.group;
    const struct file_part *part = disk_texts_get(source->texts, program_text(source), g->generation);

    if (g->cause != GROUP_CAUSE_EXEC || !part || !part->is_executable || strncmp(part->bytes, "#!", 2) != 0)
        return NULL;
    const char *name = part->bytes + 2 + strspn(part->bytes + 2, " \t");
    return strndup(name, strcspn(name, " \t\n"));
}

/* "rank 1 (pid 4711): exit code 3: ValueError: boom". */
static void set_reason(const struct failures_source *source, const struct report_failure *f, char *out,
                       size_t out_size)
{
    const struct worker_group *g = source->report.group;
    char end[96];

    *out = '\0';
    if (g->cause == GROUP_CAUSE_EXEC)
        (void)snprintf(out, out_size, "%s: %s", source->report.program,
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
                   last ? (int)strcspn(last, "\n") : 0, last ? last : ""); /* cut when long */
}

/* The most frequent mistake with a launcher that is not part of a virtual environment: the Python of another environment. The
 * traceback may be out of crun's reach, so an early end without an error file counts, too. */
static bool may_be_an_import(const struct failures_source *source, const struct report_failure *root,
                             const char *stderr_lines)
{
    const struct group_worker *w = &source->report.group->workers[root->local_rank];
    const char *text = root->message ? root->message : stderr_lines;
    const char *slash = strrchr(source->report.program, '/');

    if (strncmp(slash ? slash + 1 : source->report.program, "python", strlen("python")) != 0 ||
        root->exit_code != 1 || source->job->program == JOB_PROGRAM_EXECUTABLE)
        return false;
    if (text)
        return strstr(text, "ModuleNotFoundError") || strstr(text, "ImportError");
    return w->ended_ns - w->started_ns < IMPORT_NS;
}

static bool is_final_failure(const struct failures_source *source, const struct report_failure *root,
                             const char *stderr_lines)
{
    const struct worker_group *g = source->report.group;
    const char *text = root && root->message ? root->message : stderr_lines;

    if (g->cause == GROUP_CAUSE_EXEC)
        return group_exec_is_final(g->workers[g->cause_worker].status);
    return g->is_final || (g->cause == GROUP_CAUSE_WORKER && text && final_error_is_in(text));
}

/* The error files go to the place of the logs on another machine. False: a file stays here. */
static bool hand_over_error_files(const struct failures_source *source, const struct report_failure *failures,
                                  size_t n)
{
    bool is_done = true;

    for (size_t i = 0; i < n; i++) {
        const struct report_failure *f = &failures[i];
        const struct file_part *part = error_text(source, f->local_rank);
        const struct output_handover handover = {.version = OUTPUT_HANDOVER_VERSION,
                                                 .rank = (uint32_t)f->rank,
                                                 .local_rank = (uint32_t)f->local_rank,
                                                 .which = OUTPUT_ERROR_FILE,
                                                 .attempt =
                                                     source->report.group->workers[f->local_rank].generation};

        if (part)
            is_done =
                output_handover_file(source->job->output_fd, &handover, part->bytes, part->n_bytes) == 0 &&
                is_done;
    }
    return is_done;
}

/* Of this generation. */
static bool has_files_to_keep(const struct failures_source *source, const struct report_failure *failures,
                              size_t n)
{
    if (source->job->output_fd)
        return !hand_over_error_files(source, failures, n);
    for (size_t i = 0; i < n; i++)
        if (failures[i].error_file)
            return true;
    return job_has_logs(source->job);
}

static void report_failed_generation(const struct failures_source *source, struct report_failure *failures,
                                     struct failures_outcome *outcome)
{
    struct report report = source->report;
    char host[256], core_pattern[128];

    proc_info_core_pattern(core_pattern, sizeof(core_pattern));
    proc_info_host_name(host, sizeof(host));
    report.failures = failures;
    report.n_failures = collect_failures(source, failures);
    report.root = report_find_root(failures, report.n_failures);
    const struct report_failure *root = report.root < 0 ? NULL : &failures[report.root];
    outcome->root_code = root ? root->exit_code : 0;
    set_reason(source, root, outcome->reason, sizeof(outcome->reason));
    outcome->has_files = has_files_to_keep(source, failures, report.n_failures) || outcome->has_files;
    _cleanup_free_ char *stderr_lines = root ? last_stderr_lines(source, root->local_rank) : NULL;
    outcome->is_final = is_final_failure(source, root, stderr_lines);
    _cleanup_free_ char *interpreter = bad_interpreter(source);
    report.host = host;
    report.python = root && may_be_an_import(source, root, stderr_lines) ? report.program : NULL;
    report.interpreter = interpreter;
    report.log_dir = outcome->has_files || source->job->log_dir ? source->logs->run : NULL;
    report.core_pattern = core_pattern;
    report.last_lines = root && !is_stderr_shown(source->job, root->local_rank) ? stderr_lines : NULL;
    _cleanup_free_ char *text = report_compose(&report);
    log_lines(text ? text : "crun: the job has failed, and there is no memory for the report\n");
    if (root && !report.group->will_restart)
        copy_error_file(source, root);
}

void failures_tell(const struct failures_source *source, struct failures_outcome *outcome)
{
    size_t n = (size_t)source->report.group->config.n_workers;
    _cleanup_free_ struct report_failure *failures = calloc(n, sizeof(*failures));
    if (failures)
        report_failed_generation(source, failures, outcome);
    for (size_t i = 0; failures && i < n; i++)
        free(failures[i].text);
}

void failures_read_message(const struct failures_source *source, int local_rank, char *ret, size_t size)
{
    const struct file_part *part = error_text(source, local_rank);
    _cleanup_free_ char *message = NULL;
    int64_t time_s;
    size_t n;

    ret[0] = '\0';
    if (!part || report_json_read(part->bytes, part->n_bytes, &message, &time_s) != 0)
        return;
    const char *line = final_line(message, &n);      /* of a traceback: the exception */
    (void)snprintf(ret, size, "%.*s", (int)n, line); /* truncated when long */
}
