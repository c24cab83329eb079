#include "rendezvous/daemon/etcd_login_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/secret_os.h"

enum { LINE_SIZE = 2 * ETCD_KEY_SIZE };

static int fail(const char *path, int r, const char *what, char error[ETCD_LOGIN_ERROR_SIZE])
{
    (void)snprintf(error, ETCD_LOGIN_ERROR_SIZE, "%.300s: %s", path, what);
    return r;
}

/* The descriptor, or -errno. A FIFO without a writer must not stop the start. */
static int open_private(const char *path, char error[ETCD_LOGIN_ERROR_SIZE])
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    secret_hide_process();
    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(path, -errno, strerror(errno), error);
    if (!(st.st_mode & S_IRWXO))
        return steal_fd(&fd);
    (void)snprintf(error, ETCD_LOGIN_ERROR_SIZE,
                   "%.200s can be read or changed by all users (mode %04o): chmod o= %.200s", path,
                   st.st_mode & 07777, path);
    return -EPERM;
}

static bool copy_text(char to[ETCD_KEY_SIZE], const char *text, size_t n)
{
    if (n == 0 || n >= ETCD_KEY_SIZE)
        return false;
    memcpy(to, text, n);
    to[n] = '\0';
    return true;
}

int etcd_login_read(struct etcd_login *ret, const char *path, char error[ETCD_LOGIN_ERROR_SIZE])
{
    _cleanup_close_ int fd = open_private(path, error);
    char line[LINE_SIZE];
    int r = 0;

    if (fd < 0)
        return fd;
    ssize_t n = read(fd, line, sizeof(line) - 1);
    if (n < 0)
        return fail(path, -errno, strerror(errno), error);
    line[n] = '\0';
    size_t n_line = strcspn(line, "\r\n");
    size_t n_user = strcspn(line, ":");
    *ret = (struct etcd_login){0};
    if (n_user + 1 >= n_line || !copy_text(ret->user, line, n_user) ||
        !copy_text(ret->password, line + n_user + 1, n_line - n_user - 1))
        r = fail(path, -EINVAL, "its first line is not USER:PASSWORD, each of at most 299 bytes", error);
    explicit_bzero(line, sizeof(line));
    return r;
}

int etcd_key_check(const char *path, char error[ETCD_LOGIN_ERROR_SIZE])
{
    _cleanup_close_ int fd = open_private(path, error);

    return fd < 0 ? fd : 0;
}
