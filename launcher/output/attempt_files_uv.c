/*
 * Two parts: the request belongs to the loop and is freed when libuv has closed its handle; what the thread works on is
 * shared, with a reference for each side.
 *
 * Ways it fails: a folder or file cannot be made (logged with the remedy; a restart goes on without files), no thread, and a disk that hangs: then the
 * request is pending until it is cancelled. Each cancelled request may leave a thread behind; after HUNG_MAX of them
 * further requests fail.
 */

#include "launcher/output/attempt_files_uv.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launcher/cli/job.h"
#include "launcher/output/logs_os.h"
#include "launcher/output/output_stream_os.h"
#include "launcher/util/log_os.h"
#include "launcher/util/thread_os.h"
#include "base/cleanup.h"

enum { ERROR_SIZE = 4608, HUNG_MAX = 16 };

/* What the thread works on. */
struct attempt_work {
    pthread_mutex_t lock; /* of the next four members */
    unsigned n_references;
    bool is_cancelled, is_made;
    uv_async_t *async; /* valid until is_cancelled is set */

    struct attempt_files_config config;
    struct logs logs; /* a copy */
    bool is_new_run;  /* the thread has made its folders */
    bool is_restart;  /* there have been log files in an earlier attempt */
    int attempt, rank_base;
    bool *selected; /* NULL: all */
    int result;
    char error[ERROR_SIZE];
    struct attempt_files files;
};

struct attempt_request {
    uv_async_t async;
    struct attempt_work *work;
    void (*on_ready)(void *data, int r, struct attempt_files *files);
    void *data;
};

static _Atomic int n_hung;

/* ---- the thread ---- */

static void free_worker_files(struct worker_files *w)
{
    for (int i = 0; i < 3; i++)
        if (w->stdio[i] >= 0)
            (void)close(w->stdio[i]); /* nothing has been written */
    for (int i = 0; i < 2; i++)
        output_stream_free(w->streams[i]);
}

static void free_files(struct attempt_files *files)
{
    for (int i = 0; files->workers && i < files->n_workers; i++)
        free_worker_files(&files->workers[i]);
    free(files->workers);
    free(files->dir);
    *files = (struct attempt_files){0};
}

static int make_folders_of(struct attempt_work *w)
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

static int open_worker_files(struct attempt_work *w, int worker)
{
    struct worker_files *files = &w->files.workers[worker];

    for (int which = 0; which < 2; which++) {
        int r = output_stream_open(w->config.job, w->config.environment, w->files.dir, worker,
                                   w->rank_base + worker, which, &files->stdio[1 + which],
                                   &files->streams[which], w->error, sizeof(w->error));
        if (r)
            return r;
    }
    return 0;
}

static int open_all_files(struct attempt_work *w)
{
    int r = 0;

    for (int i = 0; !r && i < w->files.n_workers; i++)
        if (!w->selected || w->selected[i])
            r = open_worker_files(w, i);
    return r;
}

/* Whether the job is worth more than its files: a restart is, and a start for which no output in files was asked for. A lack of
 * descriptors or memory stops workers without files, too. */
static bool can_do_without(const struct attempt_work *w, int r)
{
    return r != -EMFILE && r != -ENFILE && r != -ENOMEM && (w->is_restart || w->logs.is_flat);
}

/* Output goes to the console, as with --log-dir=/dev/null. */
static int go_on_without_files(struct attempt_work *w)
{
    size_t n = strlen(w->error);

    (void)snprintf(w->error + n, sizeof(w->error) - n,
                   "; generation %d runs without log and error files (--log-dir=/dev/null asks for none)",
                   w->attempt); /* cut if long */
    for (int i = 0; i < w->files.n_workers; i++) {
        free_worker_files(&w->files.workers[i]);
        w->files.workers[i] = (struct worker_files){.stdio = {-1, -1, -1}};
    }
    free(w->files.dir);
    w->files.dir = NULL;
    return open_all_files(w);
}

static int make_files(struct attempt_work *w)
{
    int n = w->config.job->n_workers;

    w->files.workers = calloc((size_t)n, sizeof(*w->files.workers));
    if (!w->files.workers)
        return -ENOMEM;
    w->files.n_workers = n;
    for (int i = 0; i < n; i++)
        w->files.workers[i] = (struct worker_files){.stdio = {-1, -1, -1}};
    int r = make_folders_of(w);
    if (!r)
        r = open_all_files(w);
    return r && can_do_without(w, r) ? go_on_without_files(w) : r;
}

/* Drops a reference. The caller holds the lock, which is released. */
static void drop_work(struct attempt_work *w)
{
    bool is_last = --w->n_references == 0;

    (void)pthread_mutex_unlock(&w->lock);
    if (!is_last)
        return;
    free_files(&w->files);
    logs_finish(&w->logs);
    free(w->selected);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

static void make_in_thread(void *data)
{
    struct attempt_work *w = data;

    w->result = make_files(w);
    (void)pthread_mutex_lock(&w->lock);
    w->is_made = true;
    bool is_late = w->is_cancelled;
    if (!is_late) {
        (void)uv_async_send(w->async); /* cannot fail on a handle that is open */
        drop_work(w);
        return;
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (w->is_new_run)
        logs_remove_temporary(&w->logs);
    (void)pthread_mutex_lock(&w->lock);
    drop_work(w);
    n_hung--;
}

/* ---- the loop ---- */

static void free_request(uv_handle_t *handle)
{
    free(handle->data);
}

/* Ends the loop's part. The caller holds the lock, which is released. */
static void close_request(struct attempt_request *request)
{
    drop_work(request->work);
    request->work = NULL;
    uv_close((uv_handle_t *)&request->async, free_request);
}

/* The folders are those of the later attempts as well. */
static void keep_folders(struct attempt_work *w)
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

static void log_failure(const struct attempt_work *w, int r)
{
    if (*w->error)
        log_line("%s", w->error);
    else
        log_line("cannot prepare the output of the workers: %s%s", strerror(-r), log_remedy(r));
}

static void on_made(uv_async_t *async)
{
    struct attempt_request *request = async->data;
    struct attempt_work *w = request->work;

    if (!w)
        return;        /* closing */
    int r = w->result; /* the thread has done its part: it sent this */
    keep_folders(w);
    if (r || *w->error)
        log_failure(w, r);
    request->on_ready(request->data, r, r ? NULL : &w->files);
    (void)pthread_mutex_lock(&w->lock);
    close_request(request);
}

static struct attempt_work *new_work(const struct attempt_files_config *config, int attempt, int rank_base,
                                     const bool *selected)
{
    struct attempt_work *w = calloc(1, sizeof(*w));
    size_t n = (size_t)config->job->n_workers;

    if (!w)
        return NULL;
    w->config = *config;
    w->attempt = attempt;
    w->rank_base = rank_base;
    w->n_references = 1;
    (void)pthread_mutex_init(&w->lock, NULL); /* does not fail on Linux */
    w->selected = selected ? malloc(n * sizeof(*selected)) : NULL;
    if (w->selected)
        memcpy(w->selected, selected, n * sizeof(*selected));
    if ((selected && !w->selected) || logs_copy(&w->logs, config->logs) != 0) {
        (void)pthread_mutex_lock(&w->lock);
        drop_work(w);
        return NULL;
    }
    return w;
}

static int start_request(struct attempt_request *request, uv_loop_t *loop)
{
    int r = uv_async_init(loop, &request->async, on_made);
    if (r) {
        free(request);
        return r;
    }
    request->async.data = request;
    request->work->async = &request->async;
    request->work->n_references++;
    r = call_in_thread(make_in_thread, request->work);
    if (!r)
        return 0;
    request->work->n_references--; /* no other thread has it */
    uv_close((uv_handle_t *)&request->async, free_request);
    return r;
}

int attempt_files_begin(struct attempt_request **ret, const struct attempt_files_config *config, int attempt,
                        int rank_base, const bool *selected,
                        void (*on_ready)(void *data, int r, struct attempt_files *files), void *data)
{
    struct attempt_request *request = calloc(1, sizeof(*request));
    struct attempt_work *w = request ? new_work(config, attempt, rank_base, selected) : NULL;
    int r = n_hung >= HUNG_MAX ? -EBUSY : w ? 0 : -ENOMEM;

    if (!r) {
        *request = (struct attempt_request){.work = w, .on_ready = on_ready, .data = data};
        r = start_request(request, config->loop); /* frees it when it fails */
    } else {
        free(request);
    }
    if (!r) {
        *ret = request;
        return 0;
    }
    if (w) {
        (void)pthread_mutex_lock(&w->lock);
        drop_work(w);
    }
    log_line("cannot create the log files: %s%s", strerror(-r),
             r == -EBUSY ? "; the disk of the logs has not answered for several generations, choose another "
                           "place with --log-dir"
                         : "");
    return r;
}

void attempt_files_cancel(struct attempt_request *request)
{
    if (!request)
        return;
    struct attempt_work *w = request->work;
    (void)pthread_mutex_lock(&w->lock);
    w->is_cancelled = true;
    bool is_made = w->is_made;
    if (!is_made)
        n_hung++;
    else
        keep_folders(w); /* whoever removes the folders of the job removes these */
    close_request(request);
}

bool attempt_files_wait(unsigned timeout_ms)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (unsigned i = 0; i < timeout_ms && n_hung > 0; i++)
        (void)nanosleep(&pause, NULL); /* a signal ends it early, and it is asked again */
    return n_hung == 0;
}
