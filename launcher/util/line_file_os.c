/*
 * Happy path: the thread opens the file. write() appends to `pending` and wakes the thread. The thread takes all
 * bytes of `pending` and writes with a single system call, so that several jobs of a machine can share a file (O_APPEND is
 * not atomic on NFS).
 *
 * Ways to fail:
 *   the file cannot be opened: the thread ends
 *   a write fails: reported by the next line_file_write(), because messages are for the loop's thread; later lines are
 *     tried again, behind a newline if half a line was written
 *   the file takes nothing for long: past PENDING_MAX lines are dropped and counted
 *   the file takes nothing for ever: close() leaves the file to the thread
 */

#include "launcher/util/line_file_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/log_os.h"
#include "launcher/util/side_thread_os.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/cond_os.h"
#include "base/lock_os.h"
#include "base/time.h"

enum { PENDING_MAX = 1 << 20, OPEN_LIMIT_MS = 250, CLOSE_LIMIT_MS = 2000, HISTORY_FOLDERS = 3 };

struct line_file {
    int fd;
    char *path;
    const char *title;      /* NULL: the history, without reports */
    struct side_work *work; /* NULL: the thread has not begun */
    bool may_begin;         /* the history: the thread starts with the next lines, or has started */
    pthread_mutex_t lock;   /* of the members below */
    pthread_cond_t changed;
    struct buf pending;
    bool is_opened, ending, ended;
    int error; /* not yet reported */
    bool is_reported;
    size_t dropped; /* number of lines without room */
};

/* Returns 0 or errno. *torn: half a line has been written. */
static int write_all(int fd, const char *bytes, size_t n, bool *torn)
{
    if (*torn && write(fd, "\n", 1) == 1)
        *torn = false;
    while (n > 0) {
        ssize_t written = write(fd, bytes, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return errno;
        *torn = (size_t)written < n;
        bytes += written;
        n -= (size_t)written;
    }
    return 0;
}

/* Makes the missing folders of .local/state/crun below ~. A missing home stays missing: services may have the home
 * /nonexistent. The opening of the file shows when a folder could not be made. */
static void make_folders(char *path)
{
    int n_slashes = 0;

    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/'))
        n_slashes++;
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        if (n_slashes-- > HISTORY_FOLDERS)
            continue;
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

/* Two jobs that rename at once lose at most the older of two files. */
static int open_history(struct line_file *f)
{
    char old[PATH_MAX];
    struct stat info;

    make_folders(f->path);
    int n = snprintf(old, sizeof(old), "%s.1", f->path);
    if (stat(f->path, &info) == 0 && info.st_size > HISTORY_MAX && n > 0 && (size_t)n < sizeof(old))
        (void)rename(f->path, old); /* else the file grows on */
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return f->fd < 0 ? -errno : 0;
}

/* A long job outlives two renamings, and the job's file is removed: the job goes on in the new file. */
static void follow_history(struct line_file *f)
{
    struct stat info;
    int before = f->fd;

    if (fstat(f->fd, &info) < 0 || info.st_nlink > 0)
        return;
    if (open_history(f) == 0)
        (void)close(before); /* no link to the old file is left */
    else
        f->fd = before;
}

/* O_NONBLOCK: a pipe without a reader is an error here, not an endless wait. */
static int open_lines(struct line_file *f)
{
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->fd < 0)
        return -errno;
    return fcntl(f->fd, F_SETFL, O_APPEND) < 0 ? -errno : 0;
}

static void write_lines(void *data)
{
    struct line_file *f = data;
    bool torn = false;
    int r = f->title ? open_lines(f) : open_history(f);

    hold_lock(&f->lock);
    f->is_opened = r == 0;
    f->error = -r;
    (void)pthread_cond_broadcast(&f->changed);
    while (r == 0) {
        while (buf_size(&f->pending) == 0 && !f->ending)
            (void)pthread_cond_wait(&f->changed, &f->lock);
        if (buf_size(&f->pending) == 0)
            break;
        struct buf taken = f->pending;
        f->pending = (struct buf){0};
        (void)pthread_mutex_unlock(&f->lock); /* no pthread call here can fail on a sound mutex */
        if (!f->title)
            follow_history(f);
        int error = write_all(f->fd, (const char *)buf_bytes(&taken), buf_size(&taken), &torn);
        buf_finish(&taken);
        (void)pthread_mutex_lock(&f->lock);
        if (error)
            f->error = error;
    }
    f->ended = true;
    (void)pthread_cond_broadcast(&f->changed);
}

static void drop_line_file(void *data)
{
    struct line_file *f = data;

    close_fd(&f->fd);
    buf_finish(&f->pending);
    free(f->path);
    free(f);
}

static void free_or_leave(struct line_file *f)
{
    if (!f->work || side_work_take(f->work))
        drop_line_file(f);
}

static int start_file_thread(struct line_file *f)
{
    const struct side_order order = {
        .kind = SIDE_OTHER, .run = write_lines, .drop = drop_line_file, .data = f};

    return f->work ? 0 : side_work_start(&f->work, &order);
}

/* 0 also while the result is unknown. */
static int await_opening(struct line_file *f)
{
    const uint64_t until_ns = now_ns() + OPEN_LIMIT_MS * UINT64_C(1000000);

    (void)pthread_mutex_lock(&f->lock);
    for (int r = 0; !f->ended && !f->is_opened && r == 0;)
        r = cond_wait_until(&f->changed, &f->lock, until_ns);
    int r = f->ended ? -f->error : 0;
    (void)pthread_mutex_unlock(&f->lock);
    if (r)
        (void)side_work_wait(f->work, CLOSE_LIMIT_MS); /* the thread returns */
    return r;
}

int line_file_open(struct line_file **ret, const char *path, const char *title)
{
    struct line_file *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->fd = -1;
    f->title = title;
    f->is_reported = !title;
    f->path = strdup(path);
    (void)pthread_mutex_init(&f->lock, NULL); /* does not fail on Linux */
    cond_init(&f->changed);
    int r = f->path ? 0 : -ENOMEM;
    if (!r && title)
        r = start_file_thread(f);
    if (!r && title)
        r = await_opening(f);
    if (r)
        free_or_leave(f);
    else
        *ret = f;
    return r;
}

static void start_history(struct line_file *f)
{
    (void)pthread_mutex_lock(&f->lock);
    bool has_lines = buf_size(&f->pending) > 0;
    (void)pthread_mutex_unlock(&f->lock);
    if (has_lines)
        (void)start_file_thread(f);
}

void line_file_begin_history(struct line_file *f)
{
    if (!f)
        return;
    f->may_begin = true;
    start_history(f);
}

/* Reports each failure since the start once. The caller holds the lock; the lock is released meanwhile. */
static void report_failures(struct line_file *f)
{
    int error = f->error;
    bool is_full = f->dropped > 0;

    if (f->is_reported || (!error && !is_full))
        return;
    f->is_reported = true;
    const char *verb = f->is_opened ? "write" : "open";
    (void)pthread_mutex_unlock(&f->lock);
    if (error)
        log_line("cannot %s the %s %s: %s; the job goes on without it", verb, f->title, f->path,
                 strerror(error));
    else
        log_line("the %s %s takes nothing; lines are dropped", f->title, f->path);
    (void)pthread_mutex_lock(&f->lock);
}

void line_file_write(struct line_file *f, const char *lines)
{
    if (!f)
        return;
    (void)pthread_mutex_lock(&f->lock);
    if (!f->ended && (buf_size(&f->pending) + strlen(lines) > PENDING_MAX ||
                      buf_append(&f->pending, lines, strlen(lines)) < 0))
        f->dropped++;
    (void)pthread_cond_broadcast(&f->changed);
    report_failures(f);
    (void)pthread_mutex_unlock(&f->lock);
    if (f->may_begin && !f->work)
        start_history(f);
}

void line_file_close(struct line_file *f)
{
    if (!f)
        return;
    if (!f->work)
        line_file_begin_history(f);
    (void)pthread_mutex_lock(&f->lock);
    f->ending = true;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
    bool has_returned = !f->work || side_work_wait(f->work, CLOSE_LIMIT_MS);
    (void)pthread_mutex_lock(&f->lock);
    if (!has_returned)
        f->dropped++;
    report_failures(f);
    (void)pthread_mutex_unlock(&f->lock);
    free_or_leave(f);
}
