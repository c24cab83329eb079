#pragma once

/*
 * Sealed records: bytes of one direction of a connection, encrypted and authenticated (AEAD), after both ends have agreed
 * on a secret for it: between ranks of different hosts (net_seal_openssl.h) and between a node's store and the rendezvous
 * (tls_openssl.h).
 *
 *   bytes   field of a sealed record
 *   0..3    n: bytes of data, 1 to 65536, little-endian; in the clear, and authenticated
 *   4..     the data, encrypted: n bytes
 *   4+n..   the tag: 16 bytes
 *
 * Each direction of a connection has a secret of its own, so a record of another connection, of the other direction, or of
 * another place in the stream fails its tag: the nonce is the number of the record, which both ends count and which is not
 * sent. After a failed tag nothing more is read from the connection. Its end is not authenticated, as with
 * every TCP connection: what must not be cut short says how long it is.
 *
 *   key     HKDF-Expand(secret, "key"), 32 bytes
 *   iv      HKDF-Expand(secret, "iv"), 12 bytes; nonce: iv, with the number (8 bytes, big-endian) XORed to its last bytes
 *   next    HKDF-Expand(secret, "next"): the secret after 2^24 records. Both ends count, so it takes no message. One key
 *           never encrypts more than 1 TiB, far below what weakens AES-GCM.
 *
 * HKDF with SHA-256 (RFC 5869); each output is one block of it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "proto/seal_cipher.h"
#include "proto/secret_key.h"

enum {
    SEAL_DATA_MAX = 64 * 1024,
    SEAL_HEAD = 4,
    SEAL_TAG = 16,
    SEAL_EXTRA = SEAL_HEAD + SEAL_TAG,
    SEAL_RECORD_MAX = SEAL_DATA_MAX + SEAL_EXTRA,
    SEAL_KEY_RECORDS = 1 << 24, /* of one key */
};

/* One direction of a connection, at one end of it. */
struct record_seal;

/* encrypts: for records that this end sends; else for those that it reads. key_records: SEAL_KEY_RECORDS, but for tests. 0,
 * -ENOMEM or -ENOSYS (OpenSSL lacks the cipher). */
int record_seal_new(enum seal_cipher cipher, const struct secret_key *secret, bool encrypts,
                    uint32_t key_records, struct record_seal **ret);
/* NULL is fine. */
void record_seal_free(struct record_seal *s);

/* The next record, of the parts one behind the other, n bytes in all (SEAL_DATA_MAX at most); record: n + SEAL_EXTRA bytes.
 * 0 or -EIO. */
int record_seal_close(struct record_seal *s, const struct iovec *parts, size_t n, uint8_t *record);

/* The bytes of data in the record that begins so; 0: none begins so. */
size_t record_seal_size(const uint8_t head[SEAL_HEAD]);

/* Opens the next record, which has n bytes of data, into data, which may be the place of the encrypted data itself. 0;
 * -EBADMSG: it is not the one that the other end sent next; data is undefined then. */
int record_seal_open(struct record_seal *s, const uint8_t *record, size_t n, uint8_t *data);
