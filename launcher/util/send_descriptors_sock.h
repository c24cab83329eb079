#pragma once

/* A record with descriptors on a unix socket of records (SOCK_SEQPACKET). */

#include <stddef.h>

enum { SEND_DESCRIPTORS_MAX = 10 };

/* Sends n descriptors, 0 to SEND_DESCRIPTORS_MAX, with a record of at least one byte. They stay open here. flags: of sendmsg(2);
 * a link whose other end is closed raises no SIGPIPE. 0 or -errno. */
int send_descriptors(int link, const void *record, size_t size, const int *fds, int n, int flags);

/* The next record with at most one descriptor; never waits. The bytes of the record, at most size; *ret_fd: the caller's, -1: none.
 * 0: nothing more now. -EPIPE: the other end has closed the socket. -EMFILE: no number was free for the descriptor. Another -errno. */
int receive_descriptor(int link, void *record, size_t size, int *ret_fd);

struct iovec;

/* The same with a record in parts. */
int send_parts(int link, const struct iovec *parts, size_t n_parts, const int *fds, int n, int flags);
