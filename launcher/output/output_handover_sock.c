#include "launcher/output/output_handover_sock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/util/send_descriptors_sock.h"

int output_handover_open(int link, const struct output_handover *handover, int *ret_fd)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    int r = send_descriptors(link, handover, sizeof(*handover), &fds[0], 1, 0);
    (void)close(fds[0]); /* the record holds the pipe open */
    if (r)
        (void)close(fds[1]); /* nothing was written */
    else
        *ret_fd = fds[1];
    return r;
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

int output_handover_receive(int link, struct output_handover *ret, int *ret_fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};

    ssize_t n = recvmsg(link, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (n == 0)
        return -EPIPE;
    if (message.msg_flags & MSG_CTRUNC)
        return -EMFILE; /* no number was free for the descriptor */
    _cleanup_close_ int fd = take_descriptor(&message);
    if (fd < 0 || n != sizeof(*ret) || ret->version != OUTPUT_HANDOVER_VERSION || ret->which > 1)
        return -EBADMSG;
    *ret_fd = steal_fd(&fd);
    return 1;
}
