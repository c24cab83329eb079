#pragma once

/*
 * munge, which authenticates users between the nodes of a cluster: libmunge.so.2, opened at run time, and munged behind its
 * socket. Every call may wait for munged, for seconds at most each (libmunge's own limits): not for the event loop. Any thread may
 * call, after munge_find() has succeeded once.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "proto/key_exchange.h"

enum { MUNGE_ERROR_SIZE = 256 };

/* Opens the library. 0, or -ENOSYS: there is none; why: a part of a sentence. One thread at a time. */
int munge_find(char why[MUNGE_ERROR_SIZE]);

/* Makes a credential of the payload that only `user` can open, encrypted. socket: of munged, "" for the library's own.
 * *ret: malloc'ed. 0; -EIO: munged does not answer, or refuses; why: a part of a sentence. */
int munge_make(char **ret, const char *socket, const struct buf *payload, uid_t user,
               char why[MUNGE_ERROR_SIZE]);

/* Opens a credential, once on each node. ret->bytes: malloc'ed; 0; -EIO: munged does not answer; -EBADMSG: the credential is
 * forged, expired, was opened here before, or is not for this user. */
int munge_open(struct key_exchange_payload *ret, const char *socket, const char *credential,
               char why[MUNGE_ERROR_SIZE]);

/* Whether there is a munged: its socket exists. */
bool munge_is_there(const char *socket);

/* Whether munged makes and opens credentials for this user. 0 or as above. */
int munge_check(const char *socket, char why[MUNGE_ERROR_SIZE]);
