#include "proto/secret_os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/key_memory_os.h"

enum {
    SECRET_ROOM = SECRET_MAX + 64, /* newlines at the end do not count */
    PIPE_PATIENCE_MS = 10000,
};

static int fail_reading(const char *name, int error, char text[SECRET_ERROR_SIZE])
{
    (void)snprintf(text, SECRET_ERROR_SIZE, "cannot read the secret in %.300s: %s", name, strerror(-error));
    return error;
}

static int read_to_end(struct secret *s, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    for (;;) {
        ssize_t n = read(fd, s->bytes + s->size, SECRET_ROOM - s->size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && poll(&p, 1, PIPE_PATIENCE_MS) > 0)
            continue; /* a pipe whose writer is slow */
        if (n < 0)
            return -errno;
        if (n == 0 || s->size + (size_t)n == SECRET_ROOM) {
            s->size += (size_t)n;
            return 0;
        }
        s->size += (size_t)n;
    }
}

static int check_length(struct secret *s, const char *name, char error[SECRET_ERROR_SIZE])
{
    while (s->size > 0 && (s->bytes[s->size - 1] == '\n' || s->bytes[s->size - 1] == '\r'))
        s->size--;
    if (s->size >= SECRET_MIN && s->size <= SECRET_MAX)
        return 0;
    (void)snprintf(
        error, SECRET_ERROR_SIZE,
        "the secret in %.300s has %s than %d bytes: make one with \"head -c 32 /dev/urandom | base64\"", name,
        s->size < SECRET_MIN ? "fewer" : "more", s->size < SECRET_MIN ? SECRET_MIN : SECRET_MAX);
    return -ERANGE;
}

void secret_hide_process(void)
{
    (void)prctl(PR_SET_DUMPABLE,
                0); /* refused by a filter of system calls that was installed after the first time */
}

int secret_read_fd(struct secret *ret, int fd, const char *name, char error[SECRET_ERROR_SIZE])
{
    struct secret s = {.bytes = key_memory_new(SECRET_ROOM)};
    int r;

    if (!s.bytes)
        return fail_reading(name, -errno, error);
    secret_hide_process();
    r = read_to_end(&s, fd);
    if (r < 0)
        (void)fail_reading(name, r, error);
    else
        r = check_length(&s, name, error);
    if (r < 0)
        secret_finish(&s);
    else
        *ret = s;
    return r;
}

int secret_read_file(struct secret *ret, const char *path, enum secret_file_rule rule,
                     char error[SECRET_ERROR_SIZE])
{
    /* A FIFO without a writer must not stop the start. */
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail_reading(path, -errno, error);
    if (rule == SECRET_FILE_PRIVATE && st.st_mode & S_IRWXO) {
        (void)snprintf(
            error, SECRET_ERROR_SIZE,
            "the secret in %.300s can be read or changed by all users (mode %04o): chmod o= %.100s", path,
            st.st_mode & 07777, path);
        return -EPERM;
    }
    return secret_read_fd(ret, fd, path, error);
}

void secret_finish(struct secret *s)
{
    key_memory_free(s->bytes, SECRET_ROOM);
    *s = (struct secret){0};
}
