#include "launcher/output/logs_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "base/cleanup.h"
#include "base/err.h"

/* Everything that crun, or a worker's error handler, writes into a worker's folder. */
static const char *const worker_files[] = {"error.json", "stdout.log", "stderr.log"};
/* And into the folder above. */
static const char *const attempt_files[] = {"filtered_stdout.log", "filtered_stderr.log"};

int logs_init(struct logs *logs, const char *log_dir, char *const *environment, int n_workers)
{
    const char *tmp = envp_get(environment, "TMPDIR");

    *logs = (struct logs){.n_workers = n_workers};
    if (log_dir && strcmp(log_dir, "/dev/null") == 0)
        return 0;
    if (log_dir)
        logs->base = strdup(log_dir);
    else if (asprintf(&logs->base, "%s/torchelastic_XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0)
        logs->base = NULL;
    logs->temporary = !log_dir;
    return logs->base ? 0 : -ENOMEM;
}

void logs_finish(struct logs *logs)
{
    free(logs->base);
    free(logs->run);
    *logs = (struct logs){0};
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

static int begin_run(struct logs *logs, const char *run_id)
{
    char *run = NULL;

    if (logs->temporary && !mkdtemp(logs->base)) {
        logs->temporary = false; /* nothing was made, so nothing is to be removed */
        return -errno;
    }
    int r = logs->temporary ? 0 : make_folders(logs->base);
    if (r)
        return r;
    if (asprintf(&run, "%s/%s_XXXXXX", logs->base, run_id) < 0)
        return -ENOMEM;
    for (char *p = run + strlen(logs->base) + 1; *p; p++)
        if (*p == '/')
            *p = '_'; /* the id names one folder */
    if (!mkdtemp(run)) {
        r = -errno;
        free(run);
        return r;
    }
    logs->run = run;
    return 0;
}

static int make_attempt(const struct logs *logs, const char *dir)
{
    char path[4096];

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

int logs_begin_attempt(struct logs *logs, const char *run_id, int attempt, char **ret_dir)
{
    _cleanup_free_ char *dir = NULL;

    if (!logs->base) {
        *ret_dir = NULL;
        return 0;
    }
    int r = logs->run ? 0 : begin_run(logs, run_id);
    if (r)
        return r;
    if (asprintf(&dir, "%s/attempt_%d", logs->run, attempt) < 0)
        return -ENOMEM;
    r = make_attempt(logs, dir);
    logs->n_attempts = attempt + 1;
    if (r)
        return r;
    *ret_dir = steal_ptr(dir);
    return 0;
}

/* Failures below are ignored: what cannot be removed stays, and a job that went well does not fail by it. */
static void remove_attempt(const struct logs *logs, int attempt)
{
    char path[4096];

    for (int i = 0; i < logs->n_workers; i++) {
        (void)snprintf(path, sizeof(path), "%s/attempt_%d/%d", logs->run, attempt, i);
        if (rmdir(path) == 0 || errno != ENOTEMPTY)
            continue;
        for (size_t f = 0; f < ARRAY_SIZE(worker_files); f++) {
            (void)snprintf(path, sizeof(path), "%s/attempt_%d/%d/%s", logs->run, attempt, i, worker_files[f]);
            (void)unlink(path);
        }
        (void)snprintf(path, sizeof(path), "%s/attempt_%d/%d", logs->run, attempt, i);
        (void)rmdir(path);
    }
    for (size_t f = 0; f < ARRAY_SIZE(attempt_files); f++) {
        (void)snprintf(path, sizeof(path), "%s/attempt_%d/%s", logs->run, attempt, attempt_files[f]);
        (void)unlink(path);
    }
    (void)snprintf(path, sizeof(path), "%s/attempt_%d", logs->run, attempt);
    (void)rmdir(path);
}

void logs_remove_temporary(struct logs *logs)
{
    if (!logs->temporary)
        return;
    for (int i = 0; logs->run && i < logs->n_attempts; i++)
        remove_attempt(logs, i);
    if (logs->run) {
        (void)rmdir(logs->run);
        (void)rmdir(logs->base);
    }
}

/* Whether it was there. As above, what cannot be removed stays. */
static bool remove_empty_attempt(const struct logs *logs, int attempt)
{
    char path[4096];

    for (int i = 0; i < logs->n_workers; i++) {
        (void)snprintf(path, sizeof(path), "%s/attempt_%d/%d", logs->run, attempt, i);
        (void)rmdir(path);
    }
    (void)snprintf(path, sizeof(path), "%s/attempt_%d", logs->run, attempt);
    return rmdir(path) == 0 || errno == ENOTEMPTY;
}

void logs_remove_empty(const struct logs *logs)
{
    if (!logs->temporary || !logs->run)
        return;
    /* There may be more of them than this copy of the struct knows of. */
    for (int i = 0; remove_empty_attempt(logs, i) || i < logs->n_attempts; i++)
        continue;
    (void)rmdir(logs->run);
    (void)rmdir(logs->base);
}
