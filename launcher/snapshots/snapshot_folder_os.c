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
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/state_blocks.h"

enum { KEEP = 2, NAME_SIZE = 64 };

#define METADATA ".metadata"

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

static int put_mark(int folder, int32_t node)
{
    char name[NAME_SIZE];

    if (fsync(folder) < 0)
        return -errno;
    (void)snprintf(name, sizeof(name), ".node-%" PRId32, node); /* fits */
    _cleanup_close_ int fd = openat(folder, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    return fd < 0 || fsync(fd) < 0 || fsync(folder) < 0 ? -errno : 0;
}

static bool has_all_marks(int folder, int32_t n_nodes)
{
    char name[NAME_SIZE];

    for (int32_t i = 0; i < n_nodes; i++) {
        (void)snprintf(name, sizeof(name), ".node-%" PRId32, i); /* fits */
        if (faccessat(folder, name, F_OK, 0) < 0)
            return false;
    }
    return true;
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

/* The step in the name of a complete or of a temporary folder. */
static bool read_step(const char *name, bool *ret_is_temporary, uint64_t *ret_step)
{
    char *end;

    *ret_is_temporary = name[0] == '.';
    name += *ret_is_temporary;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    *ret_step = strtoull(name + 5, &end, 10);
    return *ret_is_temporary ? *end == '.' && end[1 + strspn(end + 1, "0123456789abcdef.")] == '\0'
                             : *end == '\0';
}

/* The older step of the newest KEEP. */
static uint64_t oldest_to_keep(DIR *list, uint64_t newest)
{
    uint64_t step, second = 0;
    bool is_temporary;
    const struct dirent *entry;

    static_assert((int)KEEP == 2, "newest and second");
    rewinddir(list);
    while ((entry = readdir(list)))
        if (read_step(entry->d_name, &is_temporary, &step) && !is_temporary && step < newest && step > second)
            second = step;
    return second;
}

/* Snapshots before the newest two, and begun ones. */
static void remove_older(int folder, uint64_t newest)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : list_folder(fd);
    uint64_t step;
    bool is_temporary;
    const struct dirent *entry;

    if (!list)
        return;
    uint64_t keep = oldest_to_keep(list, newest);
    rewinddir(list);
    while ((entry = readdir(list)))
        if (read_step(entry->d_name, &is_temporary, &step) && (is_temporary ? step <= newest : step < keep))
            remove_folder(folder, entry->d_name);
    (void)closedir(list);
}

/* A snapshot of the same step, of an earlier generation, gives way. */
static int rename_complete(int folder, const struct snapshot_folder *f, const char *temporary)
{
    char name[NAME_SIZE];

    (void)snprintf(name, sizeof(name), "step-%" PRIu64, f->step); /* fits */
    if (renameat(folder, temporary, folder, name) < 0 && errno != ENOENT) {
        remove_folder(folder, name);
        if (renameat(folder, temporary, folder, name) < 0 && errno != ENOENT)
            return -errno;
    }
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
    temporary_name(f, temporary);
    r = rename_complete(folder, f, temporary); /* ENOENT: another node was faster */
    if (r)
        return r;
    remove_older(folder, f->step);
    return 1;
}
