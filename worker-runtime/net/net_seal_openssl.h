#pragma once

/*
 * Sealed records: data between ranks of different hosts, encrypted and authenticated (AEAD), where CRW_ENCRYPT asks for it.
 *
 *   bytes   field of a sealed record
 *   0..3    n: bytes of data, 1 to 65536, little-endian; in the clear, and authenticated
 *   4..     the data, encrypted: n bytes
 *   4+n..   the tag: 16 bytes
 *
 * Each direction of a connection has a key of its own, so a record of another connection, of the other direction, or of
 * another place in the stream fails its tag: the nonce is the number of the record, which both ends count and which is not
 * sent. After a failed tag nothing more is read from the connection. Its end is not authenticated, as with
 * every TCP connection: what must not be cut short says how long it is.
 *
 *   secret  HKDF-Expand(key of the generation, "libcrw sealed records" 0, hello, head of the answer, role of the sender)
 *   key     HKDF-Expand(secret, "key"), 32 bytes
 *   iv      HKDF-Expand(secret, "iv"), 12 bytes; nonce: iv, with the number (8 bytes, big-endian) XORed to its last bytes
 *   next    HKDF-Expand(secret, "next"): the secret after 2^24 records. Both ends count, so it takes no message. One key
 *           never encrypts more than 1 TiB, far below what weakens AES-GCM.
 *
 * HKDF with SHA-256 (RFC 5869); each output is one block of it. The hello and the answer hold both nonces, the ranks, the
 * group, the purpose, the number of the link, the generation and the cipher (net_frame.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "proto/secret_key.h"
#include "worker-runtime/net/net_frame.h"

enum {
    SEAL_DATA_MAX = 64 * 1024,
    SEAL_HEAD = 4,
    SEAL_TAG = 16,
    SEAL_EXTRA = SEAL_HEAD + SEAL_TAG,
    SEAL_RECORD_MAX = SEAL_DATA_MAX + SEAL_EXTRA,
    SEAL_KEY_RECORDS = 1 << 24, /* of one key */
};

/* One direction of a connection, at one end of it. */
struct net_seal;

/* The cipher that is fast on this CPU. */
enum net_cipher net_seal_best_cipher(void);

/* The secret of the records that the rank with that role sends. False: OpenSSL is not there. */
bool net_seal_secret(const struct secret_key *of_generation, const uint8_t hello[NET_HELLO_SIZE],
                     const uint8_t answer[NET_ANSWER_HEAD], enum net_role sender, struct secret_key *ret);

/* encrypts: for records that this end sends; else for those that it reads. key_records: SEAL_KEY_RECORDS, but for tests. 0,
 * -ENOMEM or -ENOSYS (OpenSSL lacks the cipher). */
int net_seal_new(enum net_cipher cipher, const struct secret_key *secret, bool encrypts, uint32_t key_records,
                 struct net_seal **ret);
/* NULL is fine. */
void net_seal_free(struct net_seal *s);

/* The next record, of the parts one behind the other, n bytes in all (SEAL_DATA_MAX at most); record: n + SEAL_EXTRA bytes.
 * 0 or -EIO. */
int net_seal_close(struct net_seal *s, const struct iovec *parts, size_t n, uint8_t *record);

/* The bytes of data in the record that begins so; 0: none begins so. */
size_t net_seal_size(const uint8_t head[SEAL_HEAD]);

/* Opens the next record, which has n bytes of data, into data, which may be the place of the encrypted data itself. 0;
 * -EBADMSG: it is not the one that the other end sent next; data is undefined then. */
int net_seal_open(struct net_seal *s, const uint8_t *record, size_t n, uint8_t *data);
