/*
 * The guardian maps the memory file privately: worker_start_take() sets the pointers in its copy, and the zygote reads the file.
 *
 * Ways it fails: no memory for the file, and no free descriptor in the guardian: the kernel then delivers the record with
 * fewer descriptors. Both are reported as a failed start.
 */

#include "launcher/supervise/replacement_os.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/supervise/death_notice_sock.h"
#include "launcher/util/send_descriptors_sock.h"
#include "base/cleanup.h"
#include "base/err.h"

enum { N_SENT_MAX = SPAWN_FD_END + 1 }; /* the memory file comes first */
static_assert((int)N_SENT_MAX <= (int)SEND_DESCRIPTORS_MAX, "all fit");

/* ---- bytes ---- */

static int make_file(const struct worker_start *start, int *ret_fd)
{
    const size_t size = worker_start_size(start);
    _cleanup_close_ int fd = memfd_create("crun-worker", MFD_CLOEXEC);
    void *map;

    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        return -errno;
    map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    worker_start_put(start, map);
    (void)munmap(map, size); /* cannot fail for a mapping made above */
    *ret_fd = steal_fd(&fd);
    return 0;
}

static int map_file(int fd, struct replacement *r)
{
    struct stat info;
    void *map;

    if (fstat(fd, &info) < 0)
        return -errno;
    map = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    r->bytes = map;
    r->size = (size_t)info.st_size;
    return 0;
}

/* ---- records ---- */

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(N_SENT_MAX * sizeof(int))];
};

int replacement_send_begin(int link, const struct death_notice *notice)
{
    struct guardian_order order = {.kind = GUARDIAN_BEGIN};

    if (!notice)
        return send_descriptors(link, &order, sizeof(order), NULL, 0, 0);
    _cleanup_close_ int fd = memfd_create("crun-notice", MFD_CLOEXEC);
    if (fd < 0 || write(fd, notice, sizeof(*notice)) != (ssize_t)sizeof(*notice))
        return -errno;
    return send_descriptors(link, &order, sizeof(order), &fd, 1, 0);
}

int replacement_send(int link, int worker, const struct worker_start *start)
{
    struct guardian_order order = {.kind = GUARDIAN_START, .worker = worker};
    int fds[N_SENT_MAX];
    _cleanup_close_ int file = -1;

    int r = make_file(start, &file);
    if (r)
        return r;
    fds[0] = file;
    int n = 1 + worker_start_list_fds(start, fds + 1);
    return send_descriptors(link, &order, sizeof(order), fds, n, 0);
}

static int list_received(const struct msghdr *message, int fds[N_SENT_MAX])
{
    struct cmsghdr *c = CMSG_FIRSTHDR(message);

    if (!c || c->cmsg_type != SCM_RIGHTS)
        return 0;
    int n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
    return n;
}

/* Takes over the descriptors. The kernel leaves out those for which there is no free number. */
static int take_start(const int *fds, int n, struct replacement *ret)
{
    if (n == 0)
        return -EMFILE;
    ret->fd = fds[0];
    int r = map_file(fds[0], ret);
    if (!r)
        r = worker_start_take(ret->bytes, ret->size, fds + 1, n - 1, &ret->start);
    for (int i = 1; r && i < n; i++)
        (void)close(fds[i]); /* nothing uses them */
    return r;
}

ssize_t replacement_receive(int link, struct guardian_order *order, struct replacement *ret)
{
    struct iovec data = {.iov_base = order, .iov_len = sizeof(*order)};
    union control control;
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    int fds[N_SENT_MAX];

    *ret = REPLACEMENT_NONE;
    ssize_t got = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0 || (order->kind != GUARDIAN_START && order->kind != GUARDIAN_BEGIN))
        return got;
    int n = list_received(&message, fds);
    if (order->kind == GUARDIAN_START)
        order->error = -take_start(fds, n, ret);
    else
        ret->fd = n > 0 ? fds[0] : -1;
    return got;
}

void replacement_finish(struct replacement *r)
{
    int fds[SPAWN_FD_END];

    for (int n = worker_start_list_fds(&r->start, fds); n > 0; n--)
        (void)close(fds[n - 1]); /* the worker has a copy */
    if (r->fd >= 0)
        (void)close(r->fd); /* as above */
    if (r->bytes)
        (void)munmap(r->bytes, r->size); /* as above */
}
