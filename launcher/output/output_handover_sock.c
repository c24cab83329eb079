#include "launcher/output/output_handover_sock.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/util/send_descriptors_sock.h"

enum { PIPE_SIZE = 64 << 10 }; /* of a new pipe; smaller for a user with very many pipes */

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

int output_handover_file(int link, const struct output_handover *handover, const void *bytes, size_t n)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    if (n > PIPE_SIZE)
        (void)fcntl(fds[1], F_SETPIPE_SZ, (int)n); /* after a failure the write is short */
    ssize_t done = write(fds[1], bytes, n);
    int r = done < 0 ? -errno : (size_t)done < n ? -ENOBUFS : 0;
    (void)close(fds[1]); /* the write was checked */
    if (!r)
        r = send_descriptors(link, handover, sizeof(*handover), &fds[0], 1, 0);
    (void)close(fds[0]); /* the record holds the pipe open */
    return r;
}

int output_handover_receive(int link, struct output_handover *ret, int *ret_fd)
{
    _cleanup_close_ int fd = -1;
    int n = receive_descriptor(link, ret, sizeof(*ret), &fd);

    if (n <= 0)
        return n;
    if (fd < 0 || n != (int)sizeof(*ret) || ret->version != OUTPUT_HANDOVER_VERSION ||
        ret->which >= OUTPUT_WHICH_COUNT)
        return -EBADMSG;
    *ret_fd = steal_fd(&fd);
    return 1;
}
