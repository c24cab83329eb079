#pragma once

/*
 * Both directions of a connection in sealed records (record_seal_openssl.h), for a TLS link of many small messages
 * (tls_openssl.h): a record costs less than half of one of OpenSSL's TLS. A sealed round trip of a node's store takes 2.4 times a plain
 * one, and took 2.9 times with records of TLS. Bytes in, bytes out: no socket.
 */

#include <stddef.h>

#include "proto/secret_key.h"

struct buf;
struct sealed_link;

/* of_sent, of_received: the secrets of the two directions, which the peer has the other way round. 0, -ENOMEM or -ENOSYS. */
int sealed_link_create(struct sealed_link **ret, const struct secret_key *of_sent,
                       const struct secret_key *of_received);
/* NULL is fine. */
void sealed_link_free(struct sealed_link *l);

/* Appends n bytes in records to out. 0; -ENOMEM: nothing was appended; -EIO: the records of this direction are out of step. */
int sealed_link_send(struct sealed_link *l, const void *bytes, size_t n, struct buf *out);

/* Takes n bytes that arrived, appends the data of whole records to plain, and keeps an incomplete one. What does not begin
 * as a record, and all behind it, is appended to rest. 0; -EBADMSG: a record is not the one that the peer sent next; -ENOMEM. */
int sealed_link_receive(struct sealed_link *l, const void *bytes, size_t n, struct buf *plain,
                        struct buf *rest);
