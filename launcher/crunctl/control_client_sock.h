#pragma once

/* crunctl's side of the sockets of crun (control_uv.h): which there are, and one request to one of them. Blocks, for at most
 * the time that the caller gives. */

#include <stdbool.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "launcher/util/strlist.h"

enum { CONTROL_PATIENCE_MS = 3000 };

/* Appends the paths of the sockets that a user asked for: the one that was named, or, where that is NULL, all in the folder of
 * the user (control_path.h), in the order of their names. 0; -EPERM, after a line on standard error: the folder is another
 * user's; -ENOMEM. */
int control_client_list(char *const *environment, const char *named, struct strlist *ret);

/* Appends "@NAME" of each abstract socket that a front of the user listens on. Another user's process may have taken such a name:
 * control_client_dial() refuses it. 0 or -ENOMEM. */
int control_client_fronts(char *const *environment, struct strlist *ret);

struct control_socket {
    const char *path; /* "@NAME": of an abstract socket */
    bool
        is_named; /* the user has named this socket, and not a folder: root may then ask one of another user */
    bool is_foreign; /* what was reached is another user's */
};

/* Connects to a unix socket, or to any address. timeout_ms is the limit of each wait, later ones included. 0 or -errno;
 * -ETIMEDOUT: that of connecting; -EPERM: the socket, its folder or the process behind it belongs to another user. */
int control_client_dial(struct control_socket *s, int timeout_ms, int *ret);
int control_client_dial_address(const struct sockaddr *to, socklen_t size, int timeout_ms, int *ret);

/* Sends the request (without newline) and reads the whole reply, which is not NULL then. 0, or -errno, as above; -ECONNREFUSED: the crun
 * of the socket was killed. */
int control_client_ask(struct control_socket *s, const char *request, int timeout_ms, struct buf *reply);

/* What to print for an error of these. */
const char *control_client_error(int r);
