#pragma once

/* The users whose processes are answered where others must not ask: the one of this process, and root. Inline, as time.h. */

#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

static inline bool own_user_or_root(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

/* Whether a process of such a user has the other end. False for other sockets than unix sockets: the kernel knows no user
 * of theirs, and then reports -1. */
static inline bool own_user_is_peer(int fd)
{
    struct sockaddr_storage address = {0};
    struct ucred peer = {0};
    socklen_t address_size = sizeof(address), peer_size = sizeof(peer);

    return getsockname(fd, (struct sockaddr *)&address, &address_size) == 0 && address.ss_family == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) == 0 && own_user_or_root(peer.uid);
}
