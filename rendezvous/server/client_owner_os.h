#pragma once

/*
 * The user whose process has the other end of a TCP connection within this host, as the kernel's socket diagnosis
 * (sock_diag(7)) knows it: TCP has no SO_PEERCRED.
 */

#include <sys/types.h>

/* A socket for client_owner_find(), to be closed; or -errno where the kernel has none. */
int client_owner_open(void);

/*
 * fd: an accepted connection. 0: *ret_uid owns the socket at its other end. -ENOENT: it is on no socket of this network
 * namespace. -ENOTCONN: its process has closed it, and it is not certain whose it was. Another -errno:
 * the kernel does not answer. Some tens of microseconds; never waits.
 */
int client_owner_find(int diag, int fd, uid_t *ret_uid);
