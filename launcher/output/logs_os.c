#include "launcher/output/logs_os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/util/folder_list_os.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/strbuf.h"

/* All files of crun and of a worker's error handler in a worker's folder. */
static const char *const worker_files[] = {"error.json", "stdout.log", "stderr.log"};
/* And into the folder above. */
static const char *const attempt_files[] = {"filtered_stdout.log", "filtered_stderr.log"};

/* Paths are absolute, since workers may change the working directory. Malloc'ed, or NULL with errno set. */
static char *absolute_path(const char *path)
{
    if (*path == '/')
        return strdup(path);
    _cleanup_free_ char *here = getcwd(NULL, 0);
    return here ? strbuf_format("%s/%s", strcmp(here, "/") == 0 ? "" : here, path) : NULL;
}

int logs_init(struct logs *logs, const char *log_dir, bool has_output, char *const *environment,
              int n_workers)
{
    *logs = (struct logs){.n_workers = n_workers, .is_flat = !log_dir && !has_output, .held = -1};
    if (log_dir && strcmp(log_dir, "/dev/null") == 0)
        return 0;
    logs->is_temporary = !log_dir;
    if (log_dir)
        logs->base = absolute_path(log_dir);
    else
        logs->environment = environment;
    return log_dir && !logs->base ? -errno : 0;
}

void logs_finish(struct logs *logs)
{
    if (logs->run && logs->held >= 0)
        (void)close(logs->held); /* nothing was written */
    free(logs->base);
    free(logs->run);
    *logs = (struct logs){.held = -1};
}

int logs_copy(struct logs *ret, const struct logs *from)
{
    *ret = *from;
    ret->base = from->base ? strdup(from->base) : NULL;
    ret->run = from->run ? strdup(from->run) : NULL;
    ret->held = ret->run && from->held >= 0 ? fcntl(from->held, F_DUPFD_CLOEXEC, 3) : -1;
    if ((!from->base || ret->base) && (!from->run || ret->run))
        return 0;
    logs_finish(ret);
    return -ENOMEM;
}

/* mkdir -p. */
static int make_folders(const char *path)
{
    _cleanup_free_ char *part = strdup(path);

    if (!part)
        return -ENOMEM;
    for (char *p = part + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            if (mkdir(part, 0777) < 0 && errno != EEXIST)
                return -errno;
            *p = '/';
        }
    if (mkdir(part, 0777) == 0)
        return 0;
    struct stat info;
    int error = errno;
    return error == EEXIST && stat(part, &info) == 0 && !S_ISDIR(info.st_mode) ? -ENOTDIR
           : error == EEXIST                                                   ? 0
                                                                               : -error;
}

int logs_append(const struct logs *logs, const char *name, const char *text, size_t n_bytes)
{
    _cleanup_free_ char *path = strbuf_format("%s/%s", logs->base, name);
    int r = path ? make_folders(logs->base) : -ENOMEM;

    if (r)
        return r;
    _cleanup_close_ int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return fd < 0 || write(fd, text, n_bytes) < 0 ? -errno : 0;
}

/* Creates the temporary LOG_DIR in the first writable folder, in Python's order. */
static int make_temporary(struct logs *logs)
{
    const char *folders[] = {envp_get(logs->environment, "TMPDIR"),
                             envp_get(logs->environment, "TEMP"),
                             envp_get(logs->environment, "TMP"),
                             "/tmp",
                             "/var/tmp",
                             "/usr/tmp",
                             "."};
    int first_error = 0;

    for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
        _cleanup_free_ char *folder = folders[i] && *folders[i] ? absolute_path(folders[i]) : NULL;

        if (!folder)
            continue;
        char *base = strbuf_format("%s/torchelastic_XXXXXX", folder);
        if (!base)
            return -ENOMEM;
        if (mkdtemp(base)) {
            logs->base = base;
            return 0;
        }
        first_error = first_error ? first_error : -errno;
        free(base);
    }
    return first_error ? first_error : -ENOENT;
}

int logs_make_base(struct logs *logs)
{
    return logs->base ? make_folders(logs->base) : make_temporary(logs);
}

static int begin_run(struct logs *logs, const char *run_id)
{
    int r = logs_make_base(logs);
    if (r)
        return r;
    if (logs->is_flat) {
        logs->run = strdup(logs->base);
        return logs->run ? 0 : -ENOMEM;
    }
    char *run = strbuf_format("%s/%s_XXXXXX", logs->base, run_id);
    if (!run)
        return -ENOMEM;
    for (char *p = run + strlen(logs->base) + 1; *p; p++)
        if (*p == '/')
            *p = '_'; /* the id names a single folder */
    if (!mkdtemp(run)) {
        r = -errno;
        free(run);
        return r;
    }
    logs->run = run;
    return 0;
}

/* The run's folder with mode 700, as from mkdtemp(), and all parents. */
static int make_run(const char *run)
{
    _cleanup_free_ char *parent = strdup(run);

    if (!parent)
        return -ENOMEM;
    if (mkdir(run, 0700) == 0 || errno == EEXIST)
        return 0;
    *strrchr(parent, '/') = '\0'; /* run is absolute, and below base or in a folder for temporary files */
    int r = errno == ENOENT ? make_folders(parent) : -errno;
    return !r && mkdir(run, 0700) < 0 && errno != EEXIST ? -errno : r;
}

/* Whether the folder belongs to the owner of the held folder: another user may have taken the known name. */
static bool is_of_owner(const char *path, int held)
{
    struct stat first, now;

    assert(path);
    return held < 0 || fstat(held, &first) < 0 || (lstat(path, &now) == 0 && now.st_uid == first.st_uid);
}

/* Makes the run's folder again after a removal, and holds a shared lock on it: systemd-tmpfiles leaves locked folders
 * alone. A file system without locks is fine. */
static int hold_run(struct logs *logs)
{
    int r = make_run(logs->run);

    if (r || !logs->is_temporary)
        return r;
    if (!is_of_owner(logs->base, logs->held) || !is_of_owner(logs->run, logs->held))
        return -EPERM;
    int fd = open(logs->run, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    (void)flock(fd, LOCK_SH | LOCK_NB);
    close_fd(&logs->held); /* nothing was written */
    logs->held = fd;
    return 0;
}

static int make_attempt(const struct logs *logs, const char *dir)
{
    char path[4096];

    if (logs->is_flat)
        return 0;
    if (mkdir(dir, 0777) < 0)
        return -errno;
    for (int i = 0; i < logs->n_workers; i++) {
        int n = snprintf(path, sizeof(path), "%s/%d", dir, i);
        if (n < 0 || (size_t)n >= sizeof(path))
            return -ENAMETOOLONG;
        if (mkdir(path, 0777) < 0)
            return -errno;
    }
    return 0;
}

char *logs_worker_file(const struct logs *logs, unsigned attempt, int local_rank, const char *name)
{
    const char *mark = logs->is_flat ? "." : "/";

    return logs->run
               ? strbuf_format("%s/attempt_%u%s%d%s%s", logs->run, attempt, mark, local_rank, mark, name)
               : NULL;
}

/* The run's folder, and the malloc'ed path of the attempt. */
static int prepare_attempt(struct logs *logs, const char *run_id, int attempt, char **ret_dir)
{
    int r = logs->run ? 0 : begin_run(logs, run_id);

    if (!r)
        r = hold_run(logs);
    *ret_dir = r ? NULL : strbuf_format("%s/attempt_%d", logs->run, attempt);
    return !r && !*ret_dir ? -ENOMEM : r;
}

int logs_begin_attempt(struct logs *logs, const char *run_id, int attempt, char **ret_dir)
{
    _cleanup_free_ char *dir = NULL;

    *ret_dir = NULL;
    if (!logs->base && !logs->is_temporary)
        return 0;
    int r = prepare_attempt(logs, run_id, attempt, &dir);
    if (!r)
        r = make_attempt(logs, dir);
    if (!r)
        *ret_dir = steal_ptr(dir);
    return r;
}

int logs_begin_host(struct logs *ret, struct logs *all, const char *host)
{
    int r = logs_make_base(all);
    _cleanup_free_ char *path = r ? NULL : strbuf_format("%s/%s", all->base, host);

    if (r || !path)
        return r ? r : -ENOMEM;
    char *name = path + strlen(all->base) + 1;
    for (char *p = name; *p; p++)
        if (*p == '/' || (*p == '.' && p == name))
            *p = '_'; /* the name is of a single folder */
    return logs_init(ret, path, true, all->environment, 0);
}

int logs_begin_folder(struct logs *logs, const char *run_id, int attempt, const char *name, char **ret_dir)
{
    _cleanup_free_ char *dir = NULL;
    int r = prepare_attempt(logs, run_id, attempt, &dir);
    _cleanup_free_ char *path = r ? NULL : strbuf_format("%s/%s", dir, name);

    if (!r)
        r = path ? make_folders(path) : -ENOMEM;
    if (!r)
        *ret_dir = steal_ptr(dir);
    return r;
}

/* ---- removing: failures are ignored, and change no job's result ---- */

/* With the named files, most often absent. path has room for the names. */
static void remove_folder(char path[4096], const char *const *names, size_t n_names)
{
    size_t n = strlen(path);

    if (rmdir(path) == 0 || (errno != ENOTEMPTY && errno != EEXIST))
        return;
    for (size_t f = 0; f < n_names; f++) {
        (void)snprintf(path + n, 4096 - n, "/%s", names[f]);
        (void)unlink(path);
    }
    path[n] = '\0';
    (void)rmdir(path);
}

/* Where logs are flat: a name that logs_worker_file() makes. */
static bool is_error_file(const struct logs *logs, const char *name)
{
    char expected[64];
    int rank;
    unsigned long long attempt; /* as many digits as are read fit */

    if (sscanf(name, "attempt_%10llu.%9d", &attempt, &rank) != 2 || rank < 0 || rank >= logs->n_workers)
        return false;
    (void)snprintf(expected, sizeof(expected), "attempt_%llu.%d.error.json", attempt, rank);
    return strcmp(name, expected) == 0;
}

/* An error file, or the folder of stacks. */
static void remove_flat(const struct logs *logs, const char *name, bool files)
{
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/%s", logs->run, name);
    if (files && is_error_file(logs, name))
        (void)unlink(path);
    else
        (void)rmdir(path);
}

/* Files that crun and error handlers make; without `files` the empty folders alone. */
static void remove_attempt(const struct logs *logs, const char *attempt, bool files)
{
    char path[4096];

    for (int i = 0; i < logs->n_workers; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s/%d", logs->run, attempt, i);
        remove_folder(path, worker_files, files ? ARRAY_SIZE(worker_files) : 0);
    }
    (void)snprintf(path, sizeof(path), "%s/%s", logs->run, attempt);
    remove_folder(path, attempt_files, files ? ARRAY_SIZE(attempt_files) : 0);
}

/* Goes by the entries of the folder: the numbers of generations have gaps, and may be large. */
static void remove_attempts(const struct logs *logs, bool files)
{
    _cleanup_(folder_list_close) struct folder_list list;
    const char *name;

    if (folder_list_open(&list, "%s", logs->run) != 0)
        return;
    while ((name = folder_list_next(&list)))
        if (strncmp(name, "attempt_", strlen("attempt_")) != 0)
            continue;
        else if (logs->is_flat)
            remove_flat(logs, name, files);
        else
            remove_attempt(logs, name, files);
}

void logs_remove(const struct logs *logs, bool files)
{
    if (!logs->is_temporary)
        return;
    if (logs->run) {
        remove_attempts(logs, files);
        (void)rmdir(logs->run);
    }
    if (logs->base && (!logs->is_flat || !logs->run))
        (void)rmdir(logs->base);
}
