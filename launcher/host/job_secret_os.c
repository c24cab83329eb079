#include "launcher/host/job_secret_os.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/decimal.h"
#include "launcher/util/control_path.h"
#include "launcher/util/envp.h"

static int read_inherited(struct secret *ret, const char *text, char error[SECRET_ERROR_SIZE])
{
    uint64_t fd;

    if (!decimal_parse(text, 0, INT_MAX, &fd)) {
        (void)snprintf(error, SECRET_ERROR_SIZE, "CRUN_SECRET_FD=%.64s: not the number of a descriptor",
                       text);
        return -EINVAL;
    }
    int r = secret_read_fd(ret, (int)fd, "the descriptor of CRUN_SECRET_FD", error);
    if (fd > STDERR_FILENO)
        (void)close((int)fd); /* workers must not inherit it */
    return r;
}

/* 1 or 0, or -errno: a file that cannot be looked for may be there. */
static int users_file_exists(const char *path, char error[SECRET_ERROR_SIZE])
{
    struct stat st;

    if (lstat(path, &st) == 0)
        return 1;
    int r = errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    if (r < 0)
        (void)snprintf(error, SECRET_ERROR_SIZE, "cannot look for a secret in %.300s: %s", path,
                       strerror(-r));
    return r;
}

/* The user's own secret, if there is one. */
static int read_users(struct secret *ret, char *const *environment, char error[SECRET_ERROR_SIZE])
{
    char path[CONTROL_PATH_SIZE];
    int r = control_secret_path(environment, path);

    if (r == -ENOENT)
        return 0;
    if (r) {
        (void)snprintf(error, SECRET_ERROR_SIZE, "the folder of the user's secret has too long a name");
        return r;
    }
    r = users_file_exists(path, error);
    return r > 0 ? secret_read_file(ret, path, SECRET_FILE_PRIVATE, error) : r;
}

int job_secret_find(struct secret *ret, const char *file, char *const *environment,
                    char error[SECRET_ERROR_SIZE])
{
    const char *inherited = envp_get(environment, "CRUN_SECRET_FD");
    const char *mounted = envp_get(environment, "CRUN_SECRET_FILE");

    *ret = (struct secret){0};
    if (file)
        return secret_read_file(ret, file, SECRET_FILE_PRIVATE, error);
    if (inherited && *inherited)
        return read_inherited(ret, inherited, error);
    if (mounted && *mounted)
        return secret_read_file(ret, mounted, SECRET_FILE_ANY, error);
    return read_users(ret, environment, error);
}
