#include "launcher/util/send_descriptors_sock.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

int send_parts(int link, const struct iovec *parts, size_t n_parts, const int *fds, int n, int flags)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(SEND_DESCRIPTORS_MAX * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts,
                             .msg_iovlen = n_parts}; /* only read */

    assert(n >= 0 && n <= SEND_DESCRIPTORS_MAX);
    if (n > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
    }
    return sendmsg(link, &message, flags | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int send_descriptors(int link, const void *record, size_t size, const int *fds, int n, int flags)
{
    const struct iovec data = {.iov_base = (void *)(uintptr_t)record, .iov_len = size}; /* only read */

    return send_parts(link, &data, 1, fds, n, flags);
}

/* -1: the message has none. */
static int take_descriptor(struct msghdr *message)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(message);
    int fd = -1;

    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(fd)))
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

int receive_descriptor(int link, void *record, size_t size, int *ret_fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {.iov_base = record, .iov_len = size};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};

    *ret_fd = -1;
    ssize_t n = recvmsg(link, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (n == 0)
        return -EPIPE;
    if (message.msg_flags & MSG_CTRUNC)
        return -EMFILE;
    *ret_fd = take_descriptor(&message);
    return (int)n;
}
