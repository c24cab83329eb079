/*
 * A snapshot is written under a temporary name in its own folder, given its length first (a full disk
 * shows itself before the work), written, synced, closed, renamed, and then the folder is synced: only
 * after that is the name itself known to survive a power cut.
 *
 * Ways it fails: any call fails, then the temporary is removed and the sentence names the call and its
 * error. A failed fsync is final for that file: the kernel may have dropped the pages and would report
 * success the next time. A crash leaves at most a temporary, which the next claim of the folder removes.
 */

#include "worker-runtime/checkpoint/snapshot_file_os.h"

#include "base/array.h"
#include "base/cleanup.h"
#include "base/random_os.h"
#include "base/time.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/file_limit_os.h"
#include "worker-runtime/checkpoint/snapshot_fence.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* How long another run may hold the lock: longer than crun's default node timeout. */
enum { LOCK_WAIT_MS = 5000, LOCK_PAUSE_MS = 50 };

/* ---- the system ---- */

static int system_result(int r)
{
    return r < 0 ? -errno : r;
}

static int system_create(void *data, int folder_fd, const char *name)
{
    return system_result(openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

/* Not every file system can; then a full disk shows itself when writing. posix_fallocate() would write the
 * whole length as zeros there. */
static int system_reserve(void *data, int fd, uint64_t n_bytes)
{
    int r = file_limit_allocate(fd, 0, n_bytes);

    return r == -EOPNOTSUPP || r == -ENOSYS ? 0 : r;
}

static ssize_t system_write(void *data, int fd, const void *bytes, size_t n_bytes)
{
    return file_limit_write(fd, bytes, n_bytes);
}

static int system_sync(void *data, int fd)
{
    return system_result(fsync(fd));
}

static int system_close(void *data, int fd)
{
    return system_result(close(fd));
}

static int system_rename(void *data, int folder_fd, const char *from, const char *to)
{
    return system_result(renameat(folder_fd, from, folder_fd, to));
}

static int system_remove(void *data, int folder_fd, const char *name)
{
    return system_result(unlinkat(folder_fd, name, 0));
}

const struct snapshot_io snapshot_io_system = {
    .create = system_create,
    .reserve = system_reserve,
    .write = system_write,
    .sync = system_sync,
    .close = system_close,
    .rename = system_rename,
    .remove = system_remove,
    .retry_ms = 100, /* then 400 and 1600 */
    .end_ms = 30 * 60 * 1000,
};

/* ---- the folder ---- */

/* The new folder's own name must survive a power cut like the files in it. */
static void sync_parent(int folder_fd)
{
    _cleanup_close_ int parent_fd = openat(folder_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (parent_fd >= 0)
        (void)fsync(parent_fd); /* best effort: the parent may be of another user */
}

/* Makes the folders above path, each with its name on disk for good. What cannot be made shows itself
 * when the last one is opened. */
static void make_parents(const char *path)
{
    char above[PATH_MAX];

    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        (void)snprintf(above, sizeof(above), "%.*s", (int)(slash - path), path);
        if (mkdir(above, 0777) == 0) { /* most of them exist */
            _cleanup_close_ int fd = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

            if (fd >= 0)
                sync_parent(fd);
        }
    }
}

int snapshot_folder_create(const char *folder)
{
    if (!*folder || strlen(folder) >= PATH_MAX)
        return crw_fail_errno(*folder ? -ENAMETOOLONG : -ENOENT, "cannot make the snapshot folder \"%s\"",
                              folder);
    make_parents(folder);
    bool made = mkdir(folder, 0777) == 0;
    if (!made && errno != EEXIST)
        return crw_fail_errno(-errno, "cannot make the snapshot folder %s", folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return crw_fail_errno(-errno, "cannot open the snapshot folder %s", folder);
    if (made)
        sync_parent(fd);
    return fd;
}

/* Calls entry for each name until it returns non-zero; that, or 0, or -errno of reading the folder. */
static int for_each_name(int folder_fd, const char *folder, int (*entry)(const char *name, void *data),
                         void *data)
{
    _cleanup_close_ int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *found;
    int r = 0;

    if (!dir)
        return crw_fail_errno(-errno, "cannot list the snapshot folder %s", folder);
    (void)steal_fd(&fd); /* closedir() closes the descriptor */
    for (errno = 0; r == 0 && (found = readdir(dir)); errno = 0)
        r = entry(found->d_name, data);
    if (r == 0 && errno != 0)
        r = crw_fail_errno(-errno, "cannot list the snapshot folder %s", folder);
    (void)closedir(dir); /* only read */
    return r;
}

struct cleaning {
    const struct snapshot_io *io;
    int folder_fd;
};

static int remove_temporary(const char *name, void *data)
{
    struct cleaning *c = data;

    if (snapshot_name_is_temporary(name))
        (void)c->io->remove(c->io->data, c->folder_fd, name); /* it only takes room: try again next time */
    return 0;
}

int snapshot_folder_probe(const struct snapshot_io *io, int folder_fd, const char *folder)
{
    char name[SNAPSHOT_NAME_SIZE];

    snapshot_temporary_name(0, getpid(), name);
    (void)io->remove(io->data, folder_fd, name); /* perhaps left by a process with this number */
    int fd = io->create(io->data, folder_fd, name);
    if (fd < 0)
        return crw_fail_errno(fd, "cannot write to the snapshot folder %s", folder);
    (void)io->close(io->data, fd);               /* nothing was written */
    (void)io->remove(io->data, folder_fd, name); /* the next claim removes it */
    return 0;
}

struct listing {
    struct snapshot_entry *entries;
    size_t n, capacity;
};

static int list_snapshot(const char *name, void *data)
{
    struct listing *l = data;
    uint64_t step;

    if (!snapshot_name_parse(name, &step))
        return 0;
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 16;

        if (!array_resize(l->entries, capacity))
            return crw_fail_errno(-ENOMEM, "cannot list the snapshots");
        l->capacity = capacity;
    }
    l->entries[l->n++] = (struct snapshot_entry){.step = step, .state = SNAPSHOT_UNKNOWN};
    return 0;
}

int snapshot_folder_list(int folder_fd, const char *folder, struct snapshot_entry **ret, size_t *ret_n)
{
    struct listing l = {0};
    int r = for_each_name(folder_fd, folder, list_snapshot, &l);

    if (r) {
        free(l.entries);
        return r;
    }
    snapshot_sort(l.entries, l.n);
    *ret = l.entries;
    *ret_n = l.n;
    return 0;
}

/* ---- one file ---- */

static int write_snapshot_bytes(const struct snapshot_io *io, int fd, const uint8_t *bytes, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = io->write(io->data, fd, bytes, n_bytes);

        if (n == -EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? (int)n : -EIO;
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

/* Fills the new file and closes it in any case. */
static int fill_file(const struct snapshot_io *io, int fd, const char *what, const void *bytes,
                     size_t n_bytes)
{
    const char *doing = "reserve room for";
    int r = io->reserve(io->data, fd, n_bytes);

    if (r == 0) {
        doing = "write";
        r = write_snapshot_bytes(io, fd, bytes, n_bytes);
    }
    if (r == 0) {
        doing = "sync";
        r = io->sync(io->data, fd);
    }
    int closed = io->close(io->data, fd);
    if (r == 0) {
        doing = "close";
        r = closed;
    }
    return r < 0 ? crw_fail_errno(r, "cannot %s %s", doing, what) : 0;
}

int snapshot_file_replace(const struct snapshot_io *io, int folder_fd, const char *what,
                          const char *temporary, const char *name, const void *bytes, size_t n_bytes,
                          const struct snapshot_gate *gate)
{
    int fd = io->create(io->data, folder_fd, temporary);

    if (fd < 0)
        return crw_fail_errno(fd, "cannot create a file for %s", what);
    int r = fill_file(io, fd, what, bytes, n_bytes);
    if (r == 0 && gate)
        r = gate->pass(gate->data);
    if (r == 0) {
        r = io->rename(io->data, folder_fd, temporary, name);
        if (r < 0)
            (void)crw_fail_errno(r, "cannot give %s its name", what);
    }
    if (r < 0) {
        (void)io->remove(io->data, folder_fd, temporary); /* the next start removes it */
        return r;
    }
    r = io->sync(io->data, folder_fd);
    return r < 0 ? crw_fail_errno(r, "%s was written, but its folder cannot be synced", what) : 0;
}

int snapshot_file_write(const struct snapshot_io *io, int folder_fd, const char *folder, uint64_t step,
                        const void *bytes, size_t n_bytes, const struct snapshot_gate *gate)
{
    char name[SNAPSHOT_NAME_SIZE], temporary[SNAPSHOT_NAME_SIZE];
    char what[PATH_MAX + SNAPSHOT_NAME_SIZE + 16];

    snapshot_name(step, name);
    snapshot_temporary_name(step, getpid(), temporary);
    (void)snprintf(what, sizeof(what), "snapshot %s/%s", folder, name);
    return snapshot_file_replace(io, folder_fd, what, temporary, name, bytes, n_bytes, gate);
}

ssize_t snapshot_file_read(int fd, void *to, size_t n_bytes, uint64_t at)
{
    size_t done = 0;

    while (done < n_bytes) {
        ssize_t n = RETRY(pread(fd, (uint8_t *)to + done, n_bytes - done, (off_t)(at + done)));

        if (n <= 0)
            return n < 0 ? -errno : (ssize_t)done;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* ---- the fence ---- */

static const char fence_name[] = "snapshots.fence";

/* A damaged fence counts as none: a claim makes it whole again. One that cannot be read may be another run's. */
static int read_fence(int folder_fd, const char *folder, struct snapshot_fence *ret)
{
    _cleanup_close_ int fd = openat(folder_fd, fence_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char text[SNAPSHOT_FENCE_TEXT_MAX + 1];

    *ret = (struct snapshot_fence){0};
    if (fd < 0 && errno == ENOENT)
        return 0;
    ssize_t n = fd < 0 ? -errno : snapshot_file_read(fd, text, sizeof(text), 0);
    if (n < 0)
        return crw_fail_errno((int)n, "cannot read %s/%s", folder, fence_name);
    (void)snapshot_fence_parse(text, (size_t)n, ret);
    return 0;
}

/* A process that no launcher has given an instance is a run by itself. */
static int make_instance(struct run_identity *writer)
{
    uint64_t number;

    TRY(random_fill(&number, sizeof(number)));
    (void)snprintf(writer->instance, sizeof(writer->instance), "alone%016" PRIx64, number); /* fits */
    return 0;
}

static int write_fence(const struct snapshot_io *io, int folder_fd, const char *folder,
                       const struct snapshot_fence *fence)
{
    char temporary[SNAPSHOT_NAME_SIZE], text[SNAPSHOT_FENCE_TEXT_MAX], what[PATH_MAX + 32];
    size_t n = snapshot_fence_format(fence, text);

    snapshot_temporary_name(0, getpid(), temporary);
    (void)snprintf(what, sizeof(what), "%s/%s", folder, fence_name);
    return snapshot_file_replace(io, folder_fd, what, temporary, fence_name, text, n, NULL);
}

int snapshot_folder_pass_fence(const struct snapshot_io *io, int folder_fd, const char *folder,
                               struct run_identity *writer, enum snapshot_claim claim)
{
    struct snapshot_fence fence;

    TRY(read_fence(folder_fd, folder, &fence));
    if (!writer->instance[0] && (!fence.owner.instance[0] || claim == SNAPSHOT_LOOK))
        return 0;
    if (!writer->instance[0] && claim == SNAPSHOT_PASS)
        return crw_fail(SNAPSHOT_E_TAKEN, "another run has begun to save to the snapshot folder %s", folder);
    if (!writer->instance[0] && make_instance(writer) < 0)
        return crw_fail_errno(-EIO, "cannot get random numbers for the snapshot folder %s", folder);
    switch (snapshot_fence_pass(&fence, writer, claim != SNAPSHOT_PASS)) {
    case SNAPSHOT_FENCE_CHANGED:
        return claim == SNAPSHOT_LOOK ? 0 : write_fence(io, folder_fd, folder, &fence);
    case SNAPSHOT_FENCE_LATER_GENERATION:
        return crw_fail(SNAPSHOT_E_TAKEN,
                        "generation %" PRIu32
                        " of this job saves to the snapshot folder %s, and this "
                        "process is of generation %" PRIu32 ": the job goes on without it",
                        fence.owner.generation, folder, writer->generation);
    case SNAPSHOT_FENCE_LATER_RUN:
        return crw_fail(SNAPSHOT_E_TAKEN,
                        "another run saves to the snapshot folder %s, which has begun after this one",
                        folder);
    default:
        return 0;
    }
}

/* ---- the lock, which makes a look at the fence and the rename behind it one step ---- */

/* Of this run an earlier generation has the folder: the process that holds the lock is lost, or frozen. */
static int is_of_lost_process(int folder_fd, const char *folder, const struct run_identity *writer)
{
    struct snapshot_fence fence;

    TRY(read_fence(folder_fd, folder, &fence));
    return writer->instance[0] && strcmp(fence.owner.instance, writer->instance) == 0 &&
           fence.owner.generation < writer->generation;
}

int snapshot_folder_lock(int folder_fd, const char *folder, const struct run_identity *writer)
{
    for (int waited_ms = 0;; waited_ms += LOCK_PAUSE_MS) {
        if (flock(folder_fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return 0; /* a file system without locks: the fence alone decides */
        int r = is_of_lost_process(folder_fd, folder, writer);
        if (r != 0)
            return r < 0 ? r : 0;
        if (waited_ms >= LOCK_WAIT_MS)
            return crw_fail(SNAPSHOT_E_TAKEN,
                            "another run is saving to the snapshot folder %s: wait for its end, or "
                            "give this one a folder of its own",
                            folder);
        sleep_ns(LOCK_PAUSE_MS * UINT64_C(1000000));
    }
}

int snapshot_folder_see(int folder_fd, const char *folder, struct snapshot_sight *ret)
{
    struct snapshot_fence fence;

    TRY(read_fence(folder_fd, folder, &fence));
    ret->owner = fence.owner;
    return snapshot_folder_list(folder_fd, folder, &ret->entries, &ret->n_entries);
}

/* Runs without an instance write no fence: their files alone show them. Both lists are in order. */
static bool is_of_another_run(const struct snapshot_sight *now, const struct snapshot_sight *seen,
                              const struct run_identity *writer)
{
    if (now->owner.instance[0])
        return strcmp(now->owner.instance, writer->instance) != 0 &&
               strcmp(now->owner.instance, seen->owner.instance) != 0;
    for (size_t i = 0, j = 0; i < now->n_entries; i++) {
        while (j < seen->n_entries && seen->entries[j].step > now->entries[i].step)
            j++;
        if (j == seen->n_entries || seen->entries[j].step < now->entries[i].step)
            return true;
    }
    return false;
}

int snapshot_folder_claim(const struct snapshot_io *io, int folder_fd, const char *folder,
                          const struct snapshot_sight *seen, struct run_identity *writer)
{
    struct cleaning c = {io, folder_fd};
    struct snapshot_sight now = {0};
    int r = snapshot_folder_lock(folder_fd, folder, writer);

    if (r == 0)
        r = snapshot_folder_see(folder_fd, folder, &now);
    if (r == 0 && is_of_another_run(&now, seen, writer))
        r = crw_fail(SNAPSHOT_E_TAKEN, "another run has begun to save to the snapshot folder %s", folder);
    free(now.entries);
    if (r == 0)
        r = snapshot_folder_pass_fence(io, folder_fd, folder, writer, SNAPSHOT_CLAIM);
    return r == 0 ? for_each_name(folder_fd, folder, remove_temporary, &c) : r;
}

/* ---- reading ---- */

int snapshot_file_open(int folder_fd, const char *name, const char *path, int *ret_fd, uint64_t *ret_size)
{
    /* Not blocking: a pipe of that name must not hold us. */
    _cleanup_close_ int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 && errno == ENOENT)
        return crw_fail(CRW_E_NOT_FOUND, "there is no snapshot %s", path);
    if (fd < 0)
        return crw_fail_errno(-errno, "cannot open snapshot %s", path);
    if (fstat(fd, &st) < 0)
        return crw_fail_errno(-errno, "cannot examine snapshot %s", path);
    if (!S_ISREG(st.st_mode))
        return crw_fail(CRW_E_DAMAGED, "snapshot %s is not a regular file", path);
    *ret_size = (uint64_t)st.st_size;
    *ret_fd = steal_fd(&fd);
    return 0;
}
