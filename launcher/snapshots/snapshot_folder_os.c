#include "launcher/snapshots/snapshot_folder_os.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/state_blocks.h"

enum { KEEP = 2, NAME_SIZE = 64, OLD_S = 3600 };

#define METADATA ".metadata"
#define RENAMER ".rename" /* made by the node that renames */

static void temporary_name(const struct snapshot_folder *f, char ret[NAME_SIZE])
{
    (void)snprintf(ret, NAME_SIZE, ".step-%" PRIu64 ".%016" PRIx64 ".%" PRIu32, f->step, f->instance,
                   f->generation); /* fits */
}

/* A descriptor of the folder at name below the open folder `at`, made if there is none; or -errno. */
static int open_folder(int at, const char *name)
{
    if (mkdirat(at, name, 0777) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int open_temporary(const struct snapshot_folder *f)
{
    char name[NAME_SIZE];
    _cleanup_close_ int folder = open_folder(AT_FDCWD, f->folder);

    temporary_name(f, name);
    return folder < 0 ? folder : open_folder(folder, name);
}

/* ---- files of a block ---- */

static int copy_bytes(int to, int from, uint64_t at, uint64_t n)
{
    off_t offset = (off_t)at;

    while (n > 0) {
        ssize_t done = sendfile(to, from, &offset, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EBADMSG;
        n -= (uint64_t)done;
    }
    return 0;
}

static int write_file(int folder, int block_fd, const struct state_file *file)
{
    _cleanup_close_ int fd =
        openat(folder, file->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);

    if (fd < 0)
        return -errno;
    int r = copy_bytes(fd, block_fd, file->offset, file->bytes);
    if (!r && fsync(fd) < 0)
        r = -errno;
    return !r && close(steal_fd(&fd)) < 0 ? -errno : r;
}

int snapshot_folder_write(const struct snapshot_folder *f, int block_fd, uint32_t rank)
{
    uint8_t head[STATE_FILES_HEAD_SIZE + STATE_FILES_MAX * STATE_FILE_SIZE];
    struct state_file files[STATE_FILES_MAX];
    struct stat st;

    ssize_t n_head = pread(block_fd, head, sizeof(head), 0);
    if (n_head < 0 || fstat(block_fd, &st) < 0)
        return -errno;
    int n = state_files_read(head, (size_t)n_head, (uint64_t)st.st_size, files);
    if (n < 0)
        return n;
    _cleanup_close_ int folder = open_temporary(f);
    int r = folder < 0 ? folder : 0;
    for (int i = 0; !r && i < n; i++)
        if (rank == 0 || strcmp(files[i].name, METADATA) != 0)
            r = write_file(folder, block_fd, &files[i]);
    return r;
}

/* ---- the end of a snapshot ---- */

static void mark_name(int32_t node, char ret[NAME_SIZE])
{
    (void)snprintf(ret, NAME_SIZE, ".node-%" PRId32, node); /* fits */
}

static int put_mark(int folder, int32_t node)
{
    char name[NAME_SIZE];

    if (fsync(folder) < 0)
        return -errno;
    mark_name(node, name);
    _cleanup_close_ int fd = openat(folder, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    return fd < 0 || fsync(fd) < 0 || fsync(folder) < 0 ? -errno : 0;
}

static bool has_all_marks(int folder, int32_t n_nodes)
{
    char name[NAME_SIZE];

    for (int32_t i = 0; i < n_nodes; i++) {
        mark_name(i, name);
        if (faccessat(folder, name, F_OK, 0) < 0)
            return false;
    }
    return true;
}

/* Of a complete snapshot; a mark that stays does no harm. */
static void remove_marks(int folder, int32_t n_nodes)
{
    char name[NAME_SIZE];

    for (int32_t i = 0; i < n_nodes; i++) {
        mark_name(i, name);
        (void)unlinkat(folder, name, 0);
    }
    (void)unlinkat(folder, RENAMER, 0);
}

/* Owns fd. NULL without memory. */
static DIR *list_folder(int fd)
{
    DIR *list = fdopendir(fd);

    if (!list)
        (void)close(fd);
    return list;
}

/* Files alone: a folder among the files stays, and so does its parent. */
static void remove_folder(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *list = fd < 0 ? NULL : list_folder(fd);
    const struct dirent *entry;

    if (!list)
        return;
    while ((entry = readdir(list)))
        if (state_file_name_is_valid(entry->d_name))
            (void)unlinkat(dirfd(list), entry->d_name, 0); /* a file that stays keeps the folder */
    (void)closedir(list);
    (void)unlinkat(at, name, AT_REMOVEDIR);
}

/* The step in the name of a complete or of a temporary folder, and of the latter the job's instance. */
static bool read_step(const char *name, bool *ret_is_temporary, uint64_t *ret_step, uint64_t *ret_instance)
{
    char *end;

    *ret_is_temporary = name[0] == '.';
    name += *ret_is_temporary;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    *ret_step = strtoull(name + 5, &end, 10);
    if (!*ret_is_temporary)
        return *end == '\0';
    *ret_instance = *end == '.' ? strtoull(end + 1, &end, 16) : 0;
    return *end == '.' && end[1 + strspn(end + 1, "0123456789")] == '\0';
}

/* The older step of the newest KEEP. */
static uint64_t oldest_to_keep(DIR *list, uint64_t newest)
{
    uint64_t step, instance, second = 0;
    bool is_temporary;
    const struct dirent *entry;

    static_assert((int)KEEP == 2, "newest and second");
    rewinddir(list);
    while ((entry = readdir(list)))
        if (read_step(entry->d_name, &is_temporary, &step, &instance) && !is_temporary && step < newest &&
            step > second)
            second = step;
    return second;
}

/* Nothing was written into the folder for an hour: no other job still writes it. */
static bool is_old(int at, const char *name)
{
    struct stat st;

    return fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mtime + OLD_S < time(NULL);
}

/* Snapshots before the newest two, and begun ones of this job. */
static void remove_older(int folder, const struct snapshot_folder *f)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : list_folder(fd);
    uint64_t step, instance;
    bool is_temporary;
    const struct dirent *entry;

    if (!list)
        return;
    uint64_t keep = oldest_to_keep(list, f->step);
    rewinddir(list);
    while ((entry = readdir(list)))
        if (read_step(entry->d_name, &is_temporary, &step, &instance) &&
            (is_temporary ? step <= f->step && (instance == f->instance || is_old(folder, entry->d_name))
                          : step < keep))
            remove_folder(folder, entry->d_name);
    (void)closedir(list);
}

/* A snapshot of the same step, of an earlier generation or job, gives way. */
static int rename_complete(int folder, const struct snapshot_folder *f, const char *temporary)
{
    char name[NAME_SIZE], before[NAME_SIZE];

    (void)snprintf(name, sizeof(name), "step-%" PRIu64, f->step); /* fits */
    (void)snprintf(before, sizeof(before), ".step-%" PRIu64 ".%016" PRIx64 ".before", f->step,
                   f->instance); /* fits */
    bool has_before = renameat(folder, name, folder, before) == 0;
    if (renameat(folder, temporary, folder, name) < 0)
        return -errno;
    if (has_before)
        remove_folder(folder, before);
    return fsync(folder) < 0 ? -errno : 0;
}

int snapshot_folder_finish(const struct snapshot_folder *f)
{
    char temporary[NAME_SIZE];
    _cleanup_close_ int folder = open_folder(AT_FDCWD, f->folder), own = open_temporary(f);

    if (folder < 0 || own < 0)
        return folder < 0 ? folder : own;
    int r = put_mark(own, f->node);
    if (r || !has_all_marks(own, f->n_nodes))
        return r;
    _cleanup_close_ int lock = openat(own, RENAMER, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (lock < 0)
        return errno == EEXIST ? 1
                               : -errno; /* another node found all marks at the same moment, and renames */
    temporary_name(f, temporary);
    r = rename_complete(folder, f, temporary);
    if (r)
        return r;
    remove_marks(own, f->n_nodes);
    remove_older(folder, f);
    return 1;
}
