#pragma once

/* Names of unix sockets outlive the process that listened there. Inline, as time.h. */

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"

/* 1: no process listens at this name, which may also be that of another kind of file. 0: one may listen there. -errno: there is
 * no descriptor to ask with. Never waits. */
static inline int unix_socket_is_stale(const struct sockaddr_un *address)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    return connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 && errno == ECONNREFUSED;
}
