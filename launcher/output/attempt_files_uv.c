/*
 * Failures: a folder or file cannot be made (logged with the remedy; a restart goes on without files), no thread, and a disk that
 * hangs: then the request is pending until its cancellation. Each cancelled request may leave a thread behind; side_thread_submit()
 * bounds their number.
 */

#include "launcher/output/attempt_files_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/job.h"
#include "launcher/output/logs_os.h"
#include "launcher/output/output_stream_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_uv.h"
#include "base/cleanup.h"

enum { ERROR_SIZE = 4608 };

/* The thread's input and result. */
struct attempt_request {
    struct attempt_files_config config;
    struct logs logs; /* a copy */
    bool is_new_run;  /* the thread has made its folders */
    bool is_restart;  /* there have been log files in an earlier attempt */
    int attempt, rank_base;
    bool *selected;
    int result;
    char error[ERROR_SIZE];
    struct attempt_files files;

    /* The loop's alone. */
    struct side_call *call;
    void (*on_ready)(void *data, int r, struct attempt_files *files);
    void *data;
};

/* ---- the thread ---- */

static const struct worker_files no_files = {.stdio = {-1, -1, -1}};

static void free_worker_files(struct worker_files *w)
{
    for (int i = 0; i < 3; i++)
        close_fd(&w->stdio[i]); /* nothing has been written */
    for (int i = 0; i < 2; i++)
        output_stream_free(w->streams[i]);
    *w = no_files;
}

static void free_files(struct attempt_files *files)
{
    for (int i = 0; files->workers && i < files->n_workers; i++)
        free_worker_files(&files->workers[i]);
    free(files->workers);
    free(files->dir);
    *files = (struct attempt_files){0};
}

static int make_folders_of(struct attempt_request *w)
{
    w->is_restart = w->logs.run;
    int r = logs_begin_attempt(&w->logs, w->config.job->worker_run_id, w->attempt, &w->files.dir);
    w->files.is_flat = w->logs.is_flat;
    w->is_new_run = !w->is_restart && (w->logs.run || (w->logs.base && w->logs.is_temporary));
    if (r)
        (void)snprintf(w->error, sizeof(w->error),
                       "cannot create the folders for error files under %.4096s: %s; choose another place "
                       "with --log-dir or TMPDIR",
                       w->logs.run    ? w->logs.run
                       : w->logs.base ? w->logs.base
                                      : "the folder for temporary files",
                       strerror(-r)); /* cut if long */
    return r;
}

static int open_all_files(struct attempt_request *w)
{
    const struct output_place place = {.job = w->config.job,
                                       .environment = w->config.environment,
                                       .attempt_dir = w->files.dir,
                                       .rank_base = w->rank_base,
                                       .attempt = w->attempt,
                                       .error = w->error,
                                       .error_size = sizeof(w->error)};
    int r = 0;

    for (int i = 0; !r && i < w->files.n_workers; i++) {
        struct worker_files *files = &w->files.workers[i];

        for (int which = 0; !r && which < 2 && w->selected[i]; which++)
            r = output_stream_open(&place, i, which, &files->stdio[1 + which], &files->streams[which]);
    }
    return r;
}

/* Whether the job is worth more than its files: a restart is, and a start for which no output in files was asked for. A lack of
 * descriptors or memory stops workers without files, too. */
static bool can_do_without(const struct attempt_request *w, int r)
{
    return r != -EMFILE && r != -ENFILE && r != -ENOMEM && (w->is_restart || w->logs.is_flat);
}

/* Output goes to the console, as with --log-dir=/dev/null. */
static int go_on_without_files(struct attempt_request *w)
{
    size_t n = strlen(w->error);

    (void)snprintf(w->error + n, sizeof(w->error) - n,
                   "; generation %d runs without log and error files (--log-dir=/dev/null asks for none)",
                   w->attempt); /* cut if long */
    for (int i = 0; i < w->files.n_workers; i++)
        free_worker_files(&w->files.workers[i]);
    free(steal_ptr(w->files.dir));
    return open_all_files(w);
}

static void make_files(void *data)
{
    struct attempt_request *w = data;
    int r = make_folders_of(w);

    if (!r)
        r = open_all_files(w);
    w->result = r && can_do_without(w, r) ? go_on_without_files(w) : r;
}

static void free_work(struct attempt_request *w)
{
    free_files(&w->files);
    logs_finish(&w->logs);
    free(w->selected);
    free(w);
}

/* The files are not wanted any more. */
static void drop_work(void *data)
{
    struct attempt_request *w = data;

    if (w->is_new_run)
        logs_remove(&w->logs, true);
    free_work(w);
}

/* ---- the loop ---- */

/* The folders are those of the later attempts as well. */
static void keep_folders(struct attempt_request *w)
{
    struct logs *logs = w->config.logs;
    int held = logs->held;

    if (!logs->run || (w->logs.run && strcmp(logs->run, w->logs.run) == 0)) {
        logs->held = w->logs.held;
        w->logs.held = held; /* is closed with w */
    }
    if (!logs->base)
        logs->base = steal_ptr(w->logs.base);
    if (!logs->run)
        logs->run = steal_ptr(w->logs.run);
}

static void log_failure(const struct attempt_request *w, int r)
{
    if (*w->error)
        log_line("%s", w->error);
    else
        log_line("cannot prepare the output of the workers: %s%s", strerror(-r), log_remedy(r));
}

static void on_made(void *owner, void *data)
{
    struct attempt_request *w = data;
    int r = w->result;

    keep_folders(w);
    if (r || *w->error)
        log_failure(w, r);
    w->on_ready(w->data, r, r ? NULL : &w->files);
    free_work(w);
}

static struct attempt_request *new_work(const struct attempt_files_config *config, int attempt, int rank_base,
                                        const bool *selected)
{
    struct attempt_request *w = calloc(1, sizeof(*w));
    size_t n = (size_t)config->job->n_workers;

    if (!w)
        return NULL;
    w->config = *config;
    w->attempt = attempt;
    w->rank_base = rank_base;
    w->selected = calloc(n, sizeof(*w->selected));
    w->files.workers = calloc(n, sizeof(*w->files.workers));
    if (!w->selected || !w->files.workers || logs_copy(&w->logs, config->logs) != 0) {
        free_work(w);
        return NULL;
    }
    w->files.n_workers = config->job->n_workers;
    for (size_t i = 0; i < n; i++) {
        w->selected[i] = !selected || selected[i];
        w->files.workers[i] = no_files;
    }
    return w;
}

int attempt_files_begin(struct attempt_request **ret, const struct attempt_files_config *config, int attempt,
                        int rank_base, const bool *selected,
                        void (*on_ready)(void *data, int r, struct attempt_files *files), void *data)
{
    struct attempt_request *w = new_work(config, attempt, rank_base, selected);
    const struct side_task task = {.run = make_files, .drop = drop_work, .done = on_made, .data = w};
    int r = w ? side_thread_submit(&w->call, config->loop, &task) : -ENOMEM;

    if (!r) {
        w->on_ready = on_ready;
        w->data = data;
        *ret = w;
        return 0;
    }
    if (w)
        free_work(w);
    log_line("cannot create the log files: %s%s", strerror(-r),
             r == -EBUSY ? "; the disk of the logs has not answered for several generations, choose another "
                           "place with --log-dir"
                         : "");
    return r;
}

void attempt_files_cancel(struct attempt_request *request)
{
    struct attempt_request *w = side_thread_cancel(request->call);

    if (!w)
        return;      /* the thread drops it */
    keep_folders(w); /* the removal of the folders of the job includes these */
    free_work(w);
}
