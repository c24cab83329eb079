/*
 * Marks: every save gets the next number, and a batch is done with the highest number of the batch. A job with a part not on disk
 * has an entry here, with the mark of the last save.
 */

#include "rendezvous/agents/rounds_disk_uv.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "rendezvous/agents/rounds_file_os.h"
#include "rendezvous/rounds/rounds_json.h"
#include "rendezvous/agents/rounds_state_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

enum {
    ERRORS_REPEAT_S = 10,
    DISK_LIMIT_MS = 30000,
    DISK_WARNING_PART = 6,
    ASIDE_NAME_SIZE = ROUNDS_FILE_NAME_SIZE + 24,
    ASIDE_MAX = 1000, /* after ASIDE_MAX names the last is written over */
};

/* A change of a job's file. */
struct change {
    struct list link;
    uint64_t instance, mark;
    struct buf text; /* empty: the file goes */
    int error;
};

struct rounds_disk {
    struct rounds_state state;
    uv_timer_t timer; /* a batch is being written */
    int dir;
    uint64_t mark, done; /* given last; written last */
    struct list waiting; /* changes for the next batch */
    struct list writing; /* the thread's, while work is under way */
    uv_work_t work;
    bool busy;
    bool given_up; /* the batch takes longer than limit_ms: nothing is held for the batch or the next one */
    unsigned limit_ms;
    uint64_t started_ns; /* of the batch */
    uint64_t complained_ns;
};

static struct rounds_disk *disk_of(struct rounds_state *s)
{
    return (struct rounds_disk *)s; /* the first member */
}

/* ---- writing, in the thread ---- */

static int write_state_bytes(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        ssize_t done = RETRY(write(fd, data, n));

        if (done < 0)
            return -errno;
        data += done;
        n -= (size_t)done;
    }
    return 0;
}

static int write_state_file(int dir, const char *name, const struct buf *text)
{
    char beside[ROUNDS_FILE_NAME_SIZE + 4];

    (void)snprintf(beside, sizeof(beside), "%s.new", name);
    _cleanup_close_ int fd = openat(dir, beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = write_state_bytes(fd, buf_bytes(text), buf_size(text));
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && renameat(dir, beside, dir, name) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(dir, beside, 0); /* of no use, and may be missing */
    return r;
}

static int make_change(int dir, const struct change *c)
{
    char name[ROUNDS_FILE_NAME_SIZE];

    rounds_file_name(c->instance, name);
    if (buf_size(&c->text) > 0)
        return write_state_file(dir, name, &c->text);
    return unlinkat(dir, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static void on_work(uv_work_t *work)
{
    struct rounds_disk *d = work->data;
    int error;

    list_for_each_entry(struct change, c, &d->writing, link) c->error = make_change(d->dir, c);
    error = fsync(d->dir) < 0 ? -errno : 0;
    if (error < 0)
        list_for_each_entry(struct change, c, &d->writing, link) c->error = error;
}

/* ---- batches ---- */

static void change_destroy(struct change *c)
{
    list_unlink(&c->link);
    buf_finish(&c->text);
    free(c);
}

static void log_write_error(struct rounds_disk *d, int error)
{
    uint64_t now_ns = uv_hrtime();

    if (d->complained_ns > 0 && now_ns - d->complained_ns < ERRORS_REPEAT_S * UINT64_C(1000000000))
        return;
    d->complained_ns = now_ns;
    rounds_log(d->state.shell,
               "the state of a job cannot be written: %s; it goes on, but a restart of this daemon would "
               "not know what has happened since",
               strerror(-error));
}

static void on_disk_timer(uv_timer_t *timer)
{
    struct rounds_disk *d = timer->data;
    struct rounds_shell *r = d->state.shell;
    uint64_t took_ms = (boot_ns() - d->started_ns) / 1000000;

    if (!d->busy || d->given_up)
        return;
    if (took_ms < d->limit_ms) {
        rounds_log(
            r,
            "writing the state of jobs has taken %.1f s so far, and agents wait for it: is the disk all right?",
            (double)took_ms / 1000);
        (void)uv_timer_start(timer, on_disk_timer, d->limit_ms - took_ms,
                             0); /* cannot fail: has a callback */
        return;
    }
    rounds_shell_postpone(r);
    d->given_up = true;
    rounds_log(
        r,
        "writing the state of jobs takes longer than %.1f s: they go on without, and a restart of this daemon "
        "would not know what has happened since",
        d->limit_ms / 1000.0);
    rounds_shell_saved(r);
}

static void watch_batch(struct rounds_disk *d)
{
    d->started_ns = boot_ns();
    /* Cannot fail unless the timer is being closed: has a callback. */
    if (!uv_is_closing((uv_handle_t *)&d->timer))
        (void)uv_timer_start(&d->timer, on_disk_timer, d->limit_ms / DISK_WARNING_PART, 0);
}

static void start_write_batch(struct rounds_disk *d);

static void on_written(uv_work_t *work, int status)
{
    struct rounds_disk *d = work->data;
    struct server *s = d->state.shell->server;

    assert(status == 0); /* never cancelled */
    rounds_shell_postpone(d->state.shell);
    d->busy = false;
    if (d->given_up)
        rounds_log(d->state.shell, "the state of jobs is written again");
    d->given_up = false;
    if (!uv_is_closing((uv_handle_t *)&d->timer))
        (void)uv_timer_stop(&d->timer); /* always succeeds */
    list_for_each_entry_safe(struct change, c, &d->writing, link)
    {
        if (c->error < 0)
            log_write_error(d, c->error);
        if (c->mark > d->done)
            d->done = c->mark;
        change_destroy(c);
    }
    rounds_shell_saved(d->state.shell);
    start_write_batch(d);
    server_handle_closed(s); /* may free us */
}

static void start_write_batch(struct rounds_disk *d)
{
    if (d->busy || list_is_empty(&d->waiting))
        return;
    while (!list_is_empty(&d->waiting)) {
        struct list *first = d->waiting.next;

        list_move(&d->writing, first);
    }
    d->busy = true;
    watch_batch(d);
    server_handle_opened(d->state.shell->server);
    (void)uv_queue_work(d->state.shell->server->loop, &d->work, on_work,
                        on_written); /* fails without a callback */
}

/* ---- changes ---- */

static struct change *find_change(const struct list *list, uint64_t instance)
{
    list_for_each_entry(struct change, c, list, link)
    {
        if (c->instance == instance)
            return c;
    }
    return NULL;
}

/* The job's entry in the next batch; NULL: memory is out. */
static struct change *want_change(struct rounds_disk *d, uint64_t instance)
{
    struct change *c = find_change(&d->waiting, instance);

    if (!c) {
        c = calloc(1, sizeof(*c));
        if (!c)
            return NULL;
        c->instance = instance;
        list_append(&d->waiting, &c->link);
    }
    buf_consume(&c->text, buf_size(&c->text));
    c->mark = ++d->mark;
    return c;
}

static void disk_save(struct rounds_state *s, const struct rounds_job *job)
{
    struct rounds_disk *d = disk_of(s);
    struct change *c = want_change(d, job->instance);
    int r = c ? rounds_file_put(&c->text, job) : -ENOMEM;

    if (r == 0)
        return;
    log_write_error(d, r);
    if (c)
        change_destroy(c); /* the file stays as it is */
}

static void disk_forget(struct rounds_state *s, const struct rounds_job *job)
{
    struct rounds_disk *d = disk_of(s);

    if (!want_change(d, job->instance))
        log_write_error(d, -ENOMEM);
}

static void disk_write(struct rounds_state *s)
{
    start_write_batch(disk_of(s));
}

static uint64_t disk_mark(struct rounds_state *s, const struct rounds_job *job)
{
    const struct rounds_disk *d = disk_of(s);
    const struct change *c = job ? find_change(&d->waiting, job->instance) : NULL;

    if (!c && job)
        c = find_change(&d->writing, job->instance);
    return c && !d->given_up ? c->mark : 0;
}

static uint64_t disk_done(const struct rounds_state *s)
{
    const struct rounds_disk *d = (const struct rounds_disk *)s; /* the first member */

    return d->given_up ? d->mark : d->done;
}

static uint64_t disk_unsaved(const struct rounds_state *s)
{
    const struct rounds_disk *d = (const struct rounds_disk *)s; /* the first member */

    return d->busy && !d->given_up ? d->started_ns : 0;
}

/* ---- reading ---- */

/* 0, -errno, or 1: larger than any file of crund. */
static int read_state_file(int dir, const char *name, struct buf *to)
{
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t n = 1;

    if (fd < 0)
        return -errno;
    while (n > 0) {
        uint8_t *place = buf_reserve(to, 65536);

        if (!place)
            return -ENOMEM;
        n = read(fd, place, 65536);
        if (n < 0)
            return -errno;
        buf_commit(to, (size_t)n);
        if (buf_size(to) > ROUNDS_FILE_MAX)
            return 1;
    }
    return 0;
}

/* A name that no file has yet: NAME.ENDING, NAME.ENDING.2, ... The directory is locked, so the name stays free. */
static void choose_name_aside(struct rounds_disk *d, const char *name, const char *ending,
                              char aside[ASIDE_NAME_SIZE])
{
    (void)snprintf(aside, ASIDE_NAME_SIZE, "%s.%s", name, ending);
    for (int i = 2; i <= ASIDE_MAX && faccessat(d->dir, aside, F_OK, AT_SYMLINK_NOFOLLOW) == 0; i++)
        (void)snprintf(aside, ASIDE_NAME_SIZE, "%s.%s.%d", name, ending, i);
}

/* what: of the saved state, for the log; then: the consequence. */
static int set_aside(struct rounds_disk *d, const char *name, const char *ending, const char *what,
                     const char *then)
{
    char aside[ASIDE_NAME_SIZE];
    int error;

    choose_name_aside(d, name, ending, aside);
    if (renameat(d->dir, name, d->dir, aside) < 0) {
        error = -errno;
        rounds_log(d->state.shell, "the saved state in %s is %s and cannot be moved aside: %s", name, what,
                   strerror(-error));
        return error;
    }
    rounds_log(d->state.shell, "the saved state in %s is %s and now named %s; %s", name, what, aside, then);
    return 0;
}

static int load_state_file(struct rounds_disk *d, struct rounds *rounds, const char *name, uint64_t now_ns)
{
    _cleanup_(buf_finish) struct buf file = {0};
    char error[ROUNDS_JSON_ERROR_SIZE], older[ROUNDS_FILE_NAME_SIZE];
    size_t n;
    int r = read_state_file(d->dir, name, &file);

    if (r < 0) {
        rounds_log(d->state.shell, "the saved state in %s cannot be read: %s", name, strerror(-r));
        return r;
    }
    const uint8_t *rest = r == 0 ? rounds_file_check(buf_bytes(&file), buf_size(&file), &n) : NULL;
    if (!rest)
        return set_aside(d, name, "damaged", "damaged", "its job begins anew with what its agents know");
    if (!rounds_json_load(rounds, rest, n, now_ns, error)) {
        rounds_log(d->state.shell,
                   "%s (%s); use the release and the limits that it was written with, or remove it", error,
                   name);
        return -EINVAL;
    }
    if (!rounds->superseded)
        return 0;
    rounds_file_name(rounds->superseded, older); /* the job has another instance now */
    return set_aside(d, older, "superseded", "out of date", "its job was begun again");
}

static int load_state_entry(struct rounds_disk *d, struct rounds *rounds, const char *name, uint64_t now_ns)
{
    size_t n = strlen(name);

    if (rounds_file_is_name(name))
        return load_state_file(d, rounds, name, now_ns);
    if (n > 4 && strncmp(name, "job-", 4) == 0 && strcmp(name + n - 4, ".new") == 0)
        (void)unlinkat(d->dir, name, 0); /* a crash left it behind, half-written */
    return 0;
}

static int disk_load(struct rounds_state *s, struct rounds *rounds, uint64_t now_ns)
{
    struct rounds_disk *d = disk_of(s);
    int fd = dup(d->dir), r = 0;
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;

    if (!list) {
        r = -errno;
        cleanup_close(&fd); /* only read */
        rounds_log(d->state.shell, "the state directory cannot be listed: %s", strerror(-r));
        return r;
    }
    for (errno = 0; r == 0 && (entry = readdir(list)); errno = 0)
        r = load_state_entry(d, rounds, entry->d_name, now_ns);
    if (r == 0 && errno != 0) {
        r = -errno;
        rounds_log(d->state.shell, "the state directory cannot be listed: %s", strerror(-r));
    }
    (void)closedir(list); /* only read */
    if (r == 0 && rounds->n_jobs > 0)
        rounds_log(d->state.shell, "%zu jobs with %zu nodes were restored; nodes have %g s to return",
                   rounds->n_jobs, rounds->n_nodes, (double)rounds->config.grace_ns / 1e9);
    return r;
}

/* ---- life ---- */

/* The entry of a new directory has to be on disk, too. Without permission to read the parent the directory is not
 * new. */
static int sync_parent(int dir)
{
    _cleanup_close_ int parent = openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (parent < 0 || fsync(parent) == 0)
        return 0;
    return errno == EINVAL || errno == EROFS ? 0
                                             : -errno; /* a file system that has no fsync of directories */
}

/* error: -errno, returned. */
static int log_dir_error(struct rounds_shell *shell, const char *dir, const char *what, int error)
{
    rounds_log(shell, "the state directory %s %s: %s", dir, what, strerror(-error));
    return error;
}

static int open_dir(struct rounds_shell *shell, const char *dir)
{
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return log_dir_error(shell, dir, "cannot be created", -errno);
    _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return log_dir_error(shell, dir, "cannot be opened", -errno);
    int r = sync_parent(fd);
    if (r < 0) {
        rounds_log(shell, "the folder of the state directory %s cannot be written to disk: %s", dir,
                   strerror(-r));
        return r;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        (void)log_dir_error(shell, dir, "is used by another rendezvous", -errno);
        return -EBUSY;
    }
    if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
        return log_dir_error(shell, dir, "cannot be written to", -errno);
    return steal_fd(&fd);
}

static void disk_start(struct rounds_state *s)
{
    struct rounds_disk *d = disk_of(s);

    server_open_timer(s->shell->server, &d->timer, d);
}

static void disk_stop(struct rounds_state *s)
{
    server_close_handle(s->shell->server, &disk_of(s)->timer);
}

static void disk_close(struct rounds_state *s)
{
    struct rounds_disk *d = disk_of(s);

    assert(!d->busy);
    list_for_each_safe(i, &d->waiting) change_destroy(list_entry(i, struct change, link));
    (void)close(d->dir); /* nothing was written through it */
    free(d);
}

static const struct rounds_state_kind disk_kind = {
    .start = disk_start,
    .stop = disk_stop,
    .close = disk_close,
    .load = disk_load,
    .save = disk_save,
    .forget = disk_forget,
    .write = disk_write,
    .mark = disk_mark,
    .done = disk_done,
    .unsaved = disk_unsaved,
};

int rounds_disk_open(struct rounds_state **ret, struct rounds_shell *shell, const char *dir,
                     unsigned limit_ms)
{
    _cleanup_close_ int fd = open_dir(shell, dir);

    if (fd < 0)
        return fd;
    struct rounds_disk *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    d->state = (struct rounds_state){.kind = &disk_kind, .shell = shell};
    d->limit_ms = limit_ms > 0 ? limit_ms : DISK_LIMIT_MS;
    d->dir = steal_fd(&fd);
    d->work.data = d;
    list_init(&d->waiting);
    list_init(&d->writing);
    *ret = &d->state;
    return 0;
}
