#pragma once

/* crunctl's side of the sockets of crun (control_uv.h): which there are, and one request to one of them. Blocks, for at most
 * CONTROL_PATIENCE_MS. */

#include <stddef.h>

#include "launcher/util/strlist.h"

enum { CONTROL_PATIENCE_MS = 3000 };

/* Appends the paths of all sockets in the folders of the user: $XDG_RUNTIME_DIR/crun, /run/crun for root, and run folders
 * below the folder for temporary files. */
void control_client_list(char *const *environment, struct strlist *ret);

/* Sends the request (without newline) and reads the whole reply: malloc'ed. 0, or -errno; -ECONNREFUSED: the crun of this
 * socket was killed. */
int control_client_ask(const char *path, const char *request, char **ret, size_t *ret_n);
