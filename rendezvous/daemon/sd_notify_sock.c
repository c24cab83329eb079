#include "rendezvous/daemon/sd_notify_sock.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"

static int socket_fd = -1; /* connected; for the life of the process */

int sd_notify_open(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");

    if (!path || path[0] == '\0')
        return 0;
    size_t n = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || n >= sizeof(address.sun_path))
        return -EINVAL;
    memcpy(address.sun_path, path, n);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; /* the abstract name space */
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
        return -errno;
    socket_fd = steal_fd(&fd);
    return 0;
}

int sd_notify_send(const char *state)
{
    return socket_fd >= 0 && send(socket_fd, state, strlen(state), MSG_NOSIGNAL) < 0 ? -errno : 0;
}
