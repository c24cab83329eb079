#pragma once

/* A record with descriptors on a unix socket of records (SOCK_SEQPACKET). */

#include <stddef.h>

enum { SEND_DESCRIPTORS_MAX = 9 };

/* Sends n descriptors, 0 to SEND_DESCRIPTORS_MAX, with a record of at least one byte. They stay open here. flags: of sendmsg(2);
 * a link whose other end is closed raises no SIGPIPE. 0 or -errno. */
int send_descriptors(int link, const void *record, size_t size, const int *fds, int n, int flags);

struct iovec;

/* The same with a record in parts. */
int send_parts(int link, const struct iovec *parts, size_t n_parts, const int *fds, int n, int flags);
