/*
 * Happy path: the bytes of a start follow the order in the same record. Bytes for the zygote, and bytes too large for a
 * record, are in a memory file instead: the guardian maps the file privately, and worker_start_take() sets the pointers in
 * the mapped copy.
 *
 * Ways to fail: no memory; a memory file above the limit of file size (RLIMIT_FSIZE does not limit records); no free
 * descriptor in the guardian: the kernel delivers the record with fewer descriptors. Each failure is reported as a failed
 * start.
 */

#include "launcher/supervise/guardian_orders_os.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/supervise/death_notice_sock.h"
#include "launcher/util/send_descriptors_sock.h"
#include "base/cleanup.h"
#include "base/err.h"

enum {
    N_SENT_MAX = SPAWN_FD_END + 1, /* the memory file comes first */
    RECORD_BYTES_MAX = 131072,     /* one record fits into a link of the kernel's default buffer size */
};
static_assert((int)N_SENT_MAX <= (int)SEND_DESCRIPTORS_MAX, "all fit");

/* ---- bytes ---- */

int memory_file_make(const char *name, const void *bytes, size_t size)
{
    _cleanup_close_ int fd = memfd_create(name, MFD_CLOEXEC);

    ssize_t n = fd < 0 ? -1 : write(fd, bytes, size);
    if (n != (ssize_t)size)
        return n < 0 ? -errno : -EFBIG; /* a part fitted into the limit of file size */
    return steal_fd(&fd);
}

static int map_file(int fd, struct ordered_start *r)
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

/* Bytes of the last order; the worker is started before the next order is read. */
static _Alignas(max_align_t) uint8_t record_bytes[RECORD_BYTES_MAX];

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(N_SENT_MAX * sizeof(int))];
};

static int send_record(int link, const struct guardian_order *order, const void *bytes, size_t size,
                       const int *fds, int n)
{
    const struct iovec parts[] = {{.iov_base = (void *)(uintptr_t)order, .iov_len = sizeof(*order)},
                                  {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size}}; /* only read */

    return send_parts(link, parts, 2, fds, n, 0);
}

int guardian_send_begin(int link, const struct death_notice *notice)
{
    const struct guardian_order order = {.kind = GUARDIAN_BEGIN};

    return send_record(link, &order, notice, notice ? sizeof(*notice) : 0, NULL, 0);
}

int guardian_send_start(int link, int worker, const struct worker_start *start, bool for_zygote)
{
    const struct guardian_order order = {.kind = GUARDIAN_START, .worker = worker};
    const size_t size = worker_start_size(start);
    _cleanup_free_ void *bytes = malloc(size);
    int fds[N_SENT_MAX], n = worker_start_list_fds(start, fds + 1);

    if (!bytes)
        return -ENOMEM;
    worker_start_put(start, bytes);
    int r = for_zygote || size > RECORD_BYTES_MAX ? -EMSGSIZE
                                                  : send_record(link, &order, bytes, size, fds + 1, n);
    if (r != -EMSGSIZE)
        return r;
    _cleanup_close_ int file = fds[0] = memory_file_make("crun-worker", bytes, size);
    return file < 0 ? file : send_record(link, &order, NULL, 0, fds, n + 1);
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

/* Takes over the descriptors. The kernel leaves out descriptors when no number is free. size: of the bytes in the record. */
static int take_start(size_t size, const int *fds, int n, struct ordered_start *ret)
{
    const bool has_file = size == 0 && n > 0;

    ret->fd = has_file ? fds[0] : -1;
    int r = size > 0 ? 0 : has_file ? map_file(fds[0], ret) : -EMFILE;
    if (!r && has_file)
        r = worker_start_take(ret->bytes, ret->size, fds + 1, n - 1, &ret->start);
    else if (!r)
        r = worker_start_take(record_bytes, size, fds, n, &ret->start);
    for (int i = has_file; r && i < n; i++)
        (void)close(fds[i]); /* unused after the failure */
    return r;
}

ssize_t guardian_receive_order(int link, struct guardian_order *order, struct ordered_start *ret)
{
    struct iovec parts[] = {{.iov_base = order, .iov_len = sizeof(*order)},
                            {.iov_base = record_bytes, .iov_len = sizeof(record_bytes)}};
    union control control;
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = ARRAY_SIZE(parts),
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    int fds[N_SENT_MAX];

    *ret = ORDERED_START_NONE;
    ssize_t got = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0 || (order->kind != GUARDIAN_START && order->kind != GUARDIAN_BEGIN))
        return got;
    const size_t size = (size_t)got - sizeof(*order);
    if (order->kind == GUARDIAN_START)
        order->error = -take_start(size, fds, list_received(&message, fds), ret);
    else if (size == sizeof(*ret->notice))
        ret->notice = (const void *)record_bytes;
    return got;
}

void ordered_start_finish(struct ordered_start *r)
{
    int fds[SPAWN_FD_END];

    for (int n = worker_start_list_fds(&r->start, fds); n > 0; n--)
        (void)close(fds[n - 1]); /* the worker has a copy */
    close_fd(&r->fd);            /* as above */
    if (r->bytes)
        (void)munmap(r->bytes, r->size); /* as above */
}
