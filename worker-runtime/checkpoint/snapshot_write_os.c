/*
 * Saving snapshots beside the training. crw_snapshots_save() copies the tensors into a staging buffer and
 * returns; a thread of the object computes checksums, writes, syncs, and then removes old files. There is a single
 * buffer, so a save waits for the save before; crw_snapshots_busy() foresees the wait, so a disk that hangs
 * stops the thread alone.
 *
 * The folder is claimed at the first save: opening a folder changes nothing for another run that saves there. A run
 * that began to save between the two has the folder, ended or not.
 *
 * A failed save is tried again from the staged bytes, each time after a longer pause: a disk is often full or
 * stalled for a moment only. A newer save ends the pauses, since the newer state is worth more, and so does the end.
 * A failure for good, or a late success, is a sentence in a short queue, never the end of the training. The newest
 * step known to be on disk for good only grows when all of snapshot_file_write() succeeded.
 *
 * Removing comes last and looks before it removes: a file of an earlier run counts as one of the last
 * `keep` only after it was read and checked, which happens here and not on the training's time.
 */

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/cond_os.h"
#include "base/lock_os.h"
#include "base/thread_os.h"
#include "base/time.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/run_identity_os.h"
#include "worker-runtime/checkpoint/snapshot.h"
#include "worker-runtime/checkpoint/snapshot_image.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { FAILURES_MAX = 8, SENTENCE_MAX = 1024, ATTEMPTS_MAX = 4, PAUSE_GROWTH = 4 };

struct crw_snapshots {
    /* Set once. */
    const struct snapshot_io *io;
    char *folder;
    int folder_fd;
    int keep;
    struct run_identity writer; /* the thread's, after the start */
    struct snapshot_sight seen; /* when the folder was opened */
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* in_flight, pausing, superseded or closing */
    bool in_flight, closing;
    bool pausing;    /* between two attempts: crw_snapshots_save() need not wait */
    bool superseded; /* a newer state waits for the buffer */
    bool abandoned;  /* crw_snapshots_destroy() did not wait for the end: the thread frees the object */
    int result;      /* of the last ended save */
    uint64_t durable_step;
    char failures[FAILURES_MAX][SENTENCE_MAX]; /* oldest first */
    int n_failures;

    /* The caller's while nothing is in flight, the thread's while something is. */
    uint64_t step;
    uint64_t began_ns; /* start of the save in flight */
    struct buf image;

    /* The thread's: whether the folder is claimed, and the known files in it, newest first. */
    bool claimed;
    struct snapshot_entry *known;
    size_t n_known;

    /* The caller's. */
    char reported[SENTENCE_MAX];
};

/* ---- the thread ---- */

/* Queues the thread's last sentence, with `more` behind it, for crw_snapshots_status(). A full queue
 * drops the oldest sentence. */
static void queue_failure(struct crw_snapshots *s, const char *more)
{
    hold_lock(&s->lock);
    if (s->n_failures == FAILURES_MAX) {
        memmove(s->failures[0], s->failures[1], sizeof(s->failures) - sizeof(s->failures[0]));
        s->n_failures--;
    }
    (void)snprintf(s->failures[s->n_failures++], SENTENCE_MAX, "%s%s", crw_error_message(), more);
}

static enum snapshot_state known_state(const struct crw_snapshots *s, uint64_t step)
{
    for (size_t i = 0; i < s->n_known; i++)
        if (s->known[i].step == step)
            return s->known[i].state;
    return SNAPSHOT_UNKNOWN;
}

static enum snapshot_state examine(const struct crw_snapshots *s, uint64_t step)
{
    struct crw_snapshot *found = NULL;
    int r = snapshot_load(s->folder_fd, s->folder, step, false, &found);

    crw_snapshot_close(found);
    return r == 0 ? SNAPSHOT_VALID : SNAPSHOT_DAMAGED;
}

/* Reads the known files anew from the folder, the file just saved included. */
static int refresh_known(struct crw_snapshots *s)
{
    struct snapshot_entry *entries;
    size_t n;

    TRY(snapshot_folder_list(s->folder_fd, s->folder, &entries, &n));
    for (size_t i = 0; i < n; i++)
        entries[i].state = entries[i].step == s->step ? SNAPSHOT_VALID : known_state(s, entries[i].step);
    free(s->known);
    s->known = entries;
    s->n_known = n;
    return 0;
}

static int remove_snapshot(const struct crw_snapshots *s, uint64_t step)
{
    char name[SNAPSHOT_NAME_SIZE];

    snapshot_name(step, name);
    int r = s->io->remove(s->io->data, s->folder_fd, name);
    if (r < 0 && r != -ENOENT)
        return crw_fail_errno(
            r, "the snapshot of step %" PRIu64 " was saved, but the old %s/%s cannot be removed", s->step,
            s->folder, name);
    return 0;
}

/* The file just saved stays even where old files have higher numbers: a run began again in the folder. */
static int remove_old(struct crw_snapshots *s)
{
    size_t n_keep, unknown;

    TRY(refresh_known(s));
    while (n_keep = snapshot_plan(s->known, s->n_known, s->keep, &unknown), unknown < s->n_known)
        s->known[unknown].state = examine(s, s->known[unknown].step);
    for (size_t i = s->n_known; i > n_keep; i--)
        if (s->known[i - 1].step != s->step)
            TRY(remove_snapshot(s, s->known[i - 1].step));
    return 0;
}

/* Waits before a save is tried again. False: another try is not worth the time any more. */
static bool pause_for(struct crw_snapshots *s, unsigned ms)
{
    uint64_t until_ns = now_ns() + ms * UINT64_C(1000000);

    hold_lock(&s->lock);
    s->pausing = true;
    pthread_cond_broadcast(&s->changed);
    while (!s->superseded && !s->closing && cond_wait_until(&s->changed, &s->lock, until_ns) == 0)
        ;
    s->pausing = false;
    return !s->superseded && !s->closing;
}

/* The generation may have become a later one since the last save. */
static void refresh_writer(struct crw_snapshots *s)
{
    struct run_identity now;

    run_identity_read(&now);
    if (strcmp(now.instance, s->writer.instance) == 0)
        s->writer.generation = now.generation;
}

static int pass_fence(void *data)
{
    struct crw_snapshots *s = data;

    refresh_writer(s);
    return snapshot_folder_pass_fence(s->io, s->folder_fd, s->folder, &s->writer, SNAPSHOT_PASS);
}

/* SNAPSHOT_E_TAKEN: another run saves to the folder, or has a fence there. */
static int claim_folder(struct crw_snapshots *s)
{
    if (s->claimed) {
        (void)flock(s->folder_fd, LOCK_EX | LOCK_NB); /* claimed without the lock, which a lost process had */
        return 0;
    }
    refresh_writer(s);
    int r = snapshot_folder_claim(s->io, s->folder_fd, s->folder, &s->seen, &s->writer);
    s->claimed = r == 0;
    return r;
}

/* How long a disk stays full is unknown: a few attempts, and then the next save is another attempt. */
static int write_staged(struct crw_snapshots *s)
{
    const struct snapshot_gate gate = {.pass = pass_fence, .data = s};
    unsigned pause_ms = s->io->retry_ms;
    int n_attempts = 0, r;
    char more[64] = "";

    do {
        r = claim_folder(s);
        if (r >= 0)
            r = snapshot_file_write(s->io, s->folder_fd, s->folder, s->step, buf_bytes(&s->image),
                                    buf_size(&s->image), &gate);
        n_attempts++;
        if (r >= 0)
            break;
        if (n_attempts > 1)
            (void)snprintf(more, sizeof(more), "; tried %d times", n_attempts);
        if (r == SNAPSHOT_E_TAKEN || n_attempts == ATTEMPTS_MAX || pause_ms == 0 || !pause_for(s, pause_ms)) {
            queue_failure(s, more);
            return r;
        }
        pause_ms *= PAUSE_GROWTH;
    } while (true);
    if (n_attempts > 1) {
        (void)snprintf(more, sizeof(more), "; attempt %d succeeded", n_attempts);
        queue_failure(s, more); /* reason of the failure before */
    }
    return 0;
}

/* For the program -ESTALE is a folder of another run: an -ESTALE of the system becomes -EIO. */
static int result_for_caller(int r)
{
    return r == SNAPSHOT_E_TAKEN ? -ESTALE : r == -ESTALE ? -EIO : r;
}

static int save_staged(struct crw_snapshots *s)
{
    int r = snapshot_image_seal(buf_bytes(&s->image), buf_size(&s->image));

    if (r < 0) {
        (void)crw_fail_errno(r, "cannot save the snapshot of step %" PRIu64, s->step);
        queue_failure(s, "");
        return r;
    }
    r = write_staged(s);
    if (r < 0)
        return r;
    pthread_mutex_lock(&s->lock);
    s->durable_step = s->step;
    pthread_mutex_unlock(&s->lock);
    if (remove_old(s) < 0)
        queue_failure(s, "");
    return 0;
}

static void snapshots_free(struct crw_snapshots *s);

static void *save_in_turn(void *data)
{
    struct crw_snapshots *s = data;
    int r;

    pthread_mutex_lock(&s->lock);
    while (s->in_flight || !s->closing) {
        if (!s->in_flight) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        r = result_for_caller(save_staged(s));
        pthread_mutex_lock(&s->lock);
        s->in_flight = false;
        s->result = r;
        pthread_cond_broadcast(&s->changed);
    }
    bool abandoned = s->abandoned;
    pthread_mutex_unlock(&s->lock);
    if (abandoned)
        snapshots_free(s);
    return NULL;
}

/* ---- the caller's side ---- */

static void snapshots_free(struct crw_snapshots *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    cleanup_close(&s->folder_fd); /* only ever read */
    buf_finish(&s->image);
    free(s->known);
    free(s->seen.entries);
    free(s->folder);
    free(s);
}

/* Whether the run could save there, found out before hours of work. */
static int look_at_folder(struct crw_snapshots *s)
{
    run_identity_read(&s->writer);
    int r = snapshot_folder_pass_fence(s->io, s->folder_fd, s->folder, &s->writer, SNAPSHOT_LOOK);
    if (r == 0) {
        r = snapshot_folder_lock(s->folder_fd, s->folder, &s->writer);
        r = r == SNAPSHOT_E_TAKEN ? -EBUSY : r;
    }
    if (r == 0)
        r = snapshot_folder_see(s->folder_fd, s->folder, &s->seen);
    if (r == 0)
        r = snapshot_folder_probe(s->io, s->folder_fd, s->folder);
    (void)flock(s->folder_fd, LOCK_UN); /* fails where there are no locks */
    return r;
}

int snapshots_create(const char *folder, int keep, const struct snapshot_io *io, struct crw_snapshots **ret)
{
    struct crw_snapshots *s;
    int r;

    NEED(folder && ret, CRW_E_ARGUMENT);
    if (keep < 1)
        return crw_fail(CRW_E_ARGUMENT, "at least one snapshot must be kept, not %d", keep);
    s = calloc(1, sizeof(*s));
    if (!s)
        return crw_fail_errno(-ENOMEM, "cannot prepare to save snapshots");
    s->io = io;
    s->keep = keep;
    s->folder_fd = -1;
    s->durable_step = CRW_NO_STEP;
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->changed);
    s->folder = strdup(folder);
    if (!s->folder) {
        r = crw_fail_errno(-ENOMEM, "cannot prepare to save snapshots");
        goto failed;
    }
    r = s->folder_fd = snapshot_folder_create(folder);
    if (r < 0)
        goto failed;
    r = look_at_folder(s);
    if (r < 0)
        goto failed;
    r = thread_start(&s->thread, save_in_turn, s);
    if (r < 0) {
        (void)crw_fail_errno(r, "cannot start a thread to save snapshots");
        goto failed;
    }
    *ret = s;
    return 0;

failed:
    snapshots_free(s);
    return result_for_caller(r);
}

int crw_snapshots_create(const char *folder, int keep, struct crw_snapshots **ret)
{
    return snapshots_create(folder, keep, &snapshot_io_system, ret);
}

/* Holds the lock. False: the save in flight has not ended. */
static bool wait_until(struct crw_snapshots *s, uint64_t until_ns)
{
    while (s->in_flight && cond_wait_until(&s->changed, &s->lock, until_ns) == 0)
        ;
    return !s->in_flight;
}

/* Behind a disk that hangs, the thread and the object stay, for as long as the call does. */
void crw_snapshots_destroy(struct crw_snapshots *s)
{
    if (!s)
        return;
    pthread_t thread = s->thread;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    bool ended = wait_until(s, now_ns() + s->io->end_ms * UINT64_C(1000000));
    s->abandoned = !ended;
    if (!ended)
        fprintf(stderr,
                "libcrw: after %u ms the snapshot of step %" PRIu64
                " is still being written to %s and may be lost; check the disk\n",
                s->io->end_ms, s->step, s->folder);
    pthread_mutex_unlock(&s->lock);
    if (!ended) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    snapshots_free(s);
}

int crw_snapshots_wait_for(struct crw_snapshots *s, int timeout_ms)
{
    NEED(s, CRW_E_ARGUMENT);
    hold_lock(&s->lock);
    if (!wait_until(s, now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000))
        return crw_fail(CRW_E_TIMEOUT, "the snapshot of step %" PRIu64 " is still being written to %s",
                        s->step, s->folder);
    return s->result < 0 ? crw_fail_errno(s->result, "the snapshot of step %" PRIu64 " is not in %s", s->step,
                                          s->folder)
                         : 0;
}

void crw_snapshots_wait(struct crw_snapshots *s)
{
    (void)crw_snapshots_wait_for(s, INT_MAX);
}

bool crw_snapshots_busy(struct crw_snapshots *s, int wait_ms)
{
    NEED(s, false);
    hold_lock(&s->lock);
    uint64_t until_ns = s->began_ns + (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000000;
    while (s->in_flight && !s->pausing && cond_wait_until(&s->changed, &s->lock, until_ns) == 0)
        ;
    return s->in_flight && !s->pausing;
}

/* A newer state ends the attempts to save the state before. */
static void supersede(struct crw_snapshots *s)
{
    hold_lock(&s->lock);
    s->superseded = true;
    pthread_cond_broadcast(&s->changed);
    while (s->in_flight)
        pthread_cond_wait(&s->changed, &s->lock);
    s->superseded = false;
}

int crw_snapshots_save(struct crw_snapshots *s, uint64_t step, const struct crw_tensor *tensors,
                       size_t n_tensors, const struct crw_pair *meta, size_t n_meta)
{
    char why[SNAPSHOT_WHY_MAX];

    NEED(s && is_array(tensors, n_tensors, sizeof(*tensors)) && is_array(meta, n_meta, sizeof(*meta)),
         CRW_E_ARGUMENT);
    supersede(s);
    buf_consume(&s->image, buf_size(&s->image)); /* keeps the memory */
    int r = snapshot_image_stage(step, tensors, n_tensors, meta, n_meta, &s->image, why);
    if (r == SNAPSHOT_IMAGE_E_BAD)
        return crw_fail(CRW_E_ARGUMENT, "step %" PRIu64 " cannot be saved: %s", step, why);
    if (r < 0)
        return crw_fail_errno(r, "cannot copy step %" PRIu64 " for saving", step);
    hold_lock(&s->lock);
    s->step = step;
    s->began_ns = now_ns();
    s->in_flight = true;
    pthread_cond_broadcast(&s->changed);
    return 0;
}

uint64_t crw_snapshots_status(struct crw_snapshots *s, const char **ret_failure)
{
    NEED(s, CRW_NO_STEP);
    hold_lock(&s->lock);
    uint64_t durable_step = s->durable_step;
    if (ret_failure)
        *ret_failure = NULL;
    if (ret_failure && s->n_failures > 0) {
        memcpy(s->reported, s->failures[0], SENTENCE_MAX);
        memmove(s->failures[0], s->failures[1], sizeof(s->failures) - sizeof(s->failures[0]));
        s->n_failures--;
        *ret_failure = s->reported;
    }
    return durable_step;
}
