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
#include "base/err.h"
#include "base/random_os.h"
#include "proto/key_memory_os.h"

enum {
    SECRET_ROOM = SECRET_MAX + 64, /* newlines at the end do not count */
    PEM_ROOM = 1 << 20,            /* a system's bundle of CAs has a quarter of the room */
    PIPE_PATIENCE_MS = 10000,
};

/* A file, for sentences. */
struct reading {
    const char *what, *path;
    char *error; /* SECRET_ERROR_SIZE */
};

static int fail_reading(const struct reading *f, int error)
{
    (void)snprintf(f->error, SECRET_ERROR_SIZE, "cannot read %s in %.300s: %s", f->what, f->path,
                   strerror(-error));
    return error;
}

/* Until the end, or until the room is full. */
static int read_to_end(struct secret *s, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    while (s->size < s->room) {
        ssize_t n = RETRY(read(fd, s->bytes + s->size, s->room - s->size));

        if (n < 0 && errno == EAGAIN && poll(&p, 1, PIPE_PATIENCE_MS) > 0)
            continue; /* a pipe whose writer is slow */
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        s->size += (size_t)n;
    }
    return 0;
}

static int read_into_room(const struct reading *f, int fd, size_t room, struct secret *ret)
{
    struct secret s = {.bytes = key_memory_new(room), .room = room};
    int r = s.bytes ? read_to_end(&s, fd) : -errno;

    if (r < 0)
        secret_finish(&s);
    else
        *ret = s;
    return r < 0 ? fail_reading(f, r) : 0;
}

/* The descriptor, or -errno. */
static int open_file(const struct reading *f, enum secret_file_rule rule)
{
    /* A FIFO without a writer must not stop the start. */
    _cleanup_close_ int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail_reading(f, -errno);
    if (rule == SECRET_FILE_PRIVATE && st.st_mode & S_IRWXO) {
        (void)snprintf(f->error, SECRET_ERROR_SIZE,
                       "%s in %.300s can be read or changed by all users (mode %04o): chmod o= %.100s",
                       f->what, f->path, st.st_mode & 07777, f->path);
        return -EPERM;
    }
    return steal_fd(&fd);
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

int secret_make(struct secret *ret, size_t n, size_t size)
{
    secret_hide_process();
    *ret = (struct secret){.bytes = key_memory_new(size), .size = size, .room = size};
    int r = ret->bytes ? random_fill(ret->bytes, n) : -ENOMEM;
    if (r < 0)
        secret_finish(ret);
    return r;
}

int secret_read_fd(struct secret *ret, int fd, const char *name, char error[SECRET_ERROR_SIZE])
{
    const struct reading f = {"the secret", name, error};

    secret_hide_process();
    TRY(read_into_room(&f, fd, SECRET_ROOM, ret));
    int r = check_length(ret, name, error);
    if (r < 0)
        secret_finish(ret);
    return r;
}

int secret_read_file(struct secret *ret, const char *path, enum secret_file_rule rule,
                     char error[SECRET_ERROR_SIZE])
{
    const struct reading f = {"the secret", path, error};
    _cleanup_close_ int fd = open_file(&f, rule);

    return fd < 0 ? fd : secret_read_fd(ret, fd, path, error);
}

int secret_read_pem(struct secret *ret, const char *what, const char *path, enum secret_file_rule rule,
                    char error[SECRET_ERROR_SIZE])
{
    const struct reading f = {what, path, error};
    _cleanup_close_ int fd = open_file(&f, rule);
    int r = fd < 0 ? fd : read_into_room(&f, fd, PEM_ROOM, ret);

    if (r < 0 || ret->size < ret->room)
        return r;
    secret_finish(ret);
    return fail_reading(&f, -EFBIG);
}

void secret_finish(struct secret *s)
{
    key_memory_free(s->bytes, s->room);
    *s = (struct secret){0};
}
