#include "proto/certificate_files_os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

enum {
    FILE_MAX = 1 << 20, /* a system's bundle of CAs has a quarter of this */
    PIPE_PATIENCE_MS = 10000,
};

static int fail_file(const char *what, const char *path, int error, char text[CERTIFICATE_ERROR_SIZE])
{
    (void)snprintf(text, CERTIFICATE_ERROR_SIZE, "cannot read %s in %.300s: %s", what, path,
                   strerror(-error));
    return error;
}

/* Room for all of it is there from the start, so that no copy of a key is left behind by a reallocation. */
static int read_bounded(struct buf *b, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    for (;;) {
        uint8_t *place = buf_reserve(b, FILE_MAX - buf_size(b));

        if (!place)
            return -ENOMEM;
        ssize_t n = read(fd, place, FILE_MAX - buf_size(b));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && poll(&p, 1, PIPE_PATIENCE_MS) > 0)
            continue; /* a pipe whose writer is slow */
        if (n < 0)
            return -errno;
        buf_commit(b, (size_t)n);
        if (buf_size(b) == FILE_MAX)
            return -EFBIG;
        if (n == 0)
            return 0;
    }
}

static int read_one(struct buf *b, const char *what, const char *path, bool is_private,
                    char error[CERTIFICATE_ERROR_SIZE])
{
    /* A FIFO without a writer must not stop the start. */
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail_file(what, path, -errno, error);
    if (is_private && st.st_mode & S_IRWXO) {
        (void)snprintf(
            error, CERTIFICATE_ERROR_SIZE,
            "the private key in %.300s can be read or changed by all users (mode %04o): chmod o= %.100s",
            path, st.st_mode & 07777, path);
        return -EPERM;
    }
    int r = read_bounded(b, fd);
    return r < 0 ? fail_file(what, path, r, error) : 0;
}

int certificate_files_read(struct certificate_files *ret, const struct certificate_paths *paths,
                           char error[CERTIFICATE_ERROR_SIZE])
{
    *ret = (struct certificate_files){.paths = *paths};
    int r = read_one(&ret->cert, "the certificate", paths->cert, false, error);
    if (r == 0)
        r = read_one(&ret->key, "the private key", paths->key, true, error);
    if (r == 0 && paths->ca)
        r = read_one(&ret->ca, "the certificates of CAs", paths->ca, false, error);
    if (r < 0)
        certificate_files_finish(ret);
    return r;
}

void certificate_files_finish(struct certificate_files *f)
{
    if (f->key.capacity > 0)
        explicit_bzero(f->key.data, f->key.capacity);
    buf_finish(&f->cert);
    buf_finish(&f->key);
    buf_finish(&f->ca);
}
