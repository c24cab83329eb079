#pragma once

/*
 * Messages of ranks of different hosts before and beside the data. Pure; it decodes bytes of unauthenticated peers.
 *
 *   hello    the first bytes of a connection: magic, version, a mark of the byte order, the two ranks, the purpose, and
 *            the first half of the job's token
 *   answer   the other half, so that the connecting rank knows that it has reached its job; all bits of it inverted when
 *            the rank has left the group that the hello names, every second one when it encrypts and the connecting rank
 *            does not, or the reverse
 *
 * Where the job has a key (CRUN_KEY_FD), both ranks prove it before anything else is sent. The answer is longer then, and the
 * connecting rank has the last message:
 *
 *   keyed answer  the answer (16 bytes), a nonce of the accepting rank (16), the proof of the accepting rank (32)
 *   proof         of the connecting rank (32)
 *
 * A proof is HMAC-SHA256, with the key of the generation, over the whole hello, which has the other nonce, the first two
 * parts of the answer, and the role of the rank that proves. So neither a proof of another connection nor one's own is
 * any use, and no field can be changed on the way. A rank with a key refuses a hello without, and the reverse. What
 * follows is sent in sealed records (proto/record_seal_openssl.h) if the hello names a cipher. Whether it must is a setting of
 * each rank (CRW_ENCRYPT), not negotiated.
 *
 *   record   on control connections: a rank ended, or the sender leaves in order
 *
 *   bytes  field of a hello
 *   0..7   magic
 *   8..11  version
 *   12..15 mark of the byte order
 *   16..19 purpose
 *   20..23 group
 *   24..27 from
 *   28..31 to
 *   32..35 link
 *   36..51 first half of the token
 *   52..55 1: the job has a key; 0: it has none
 *   56..59 generation
 *   60..75 nonce of the connecting rank; zeroes without a key
 *   76..79 cipher of what follows the proof (proto/seal_cipher.h); 0: it is in the clear. Not 0 only with a key
 *
 * All fixed in size. Numbers are in the sender's own order, which the mark shows: data goes over the network as it lies in
 * memory, and so do struct net_hello and struct net_record. Ranks of different orders are refused. Ranks of one job run the
 * same build; to change anything here, change NET_VERSION, and a rank that is left over from another build
 * is refused instead of misunderstood.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/seal_cipher.h"

enum {
    NET_VERSION = 4,
    NET_TOKEN_HALF = 16,
    NET_TOKEN = 2 * NET_TOKEN_HALF,
    NET_NONCE = 16,
    NET_MAC = 32,
    NET_HELLO_SIZE = 80,
    NET_ANSWER_HEAD = NET_TOKEN_HALF + NET_NONCE, /* of a keyed answer: all but the proof */
    NET_KEYED_ANSWER = NET_ANSWER_HEAD + NET_MAC,
    NET_PROVED_SIZE = NET_HELLO_SIZE + NET_ANSWER_HEAD + 4,
    NET_RECORD_SIZE = 12,
    NET_ADDRESS_SIZE = 64,
};

/* Where a rank of the world listens: a numeric address. */
struct net_peer {
    char address[NET_ADDRESS_SIZE];
    uint16_t port;
};

enum net_purpose {
    NET_CONTROL = 1, /* records, for all groups; link: nothing */
    NET_DATA,        /* a group's link: which one of those between two ranks */
    NET_MESSAGES,    /* of crw_send(), one way; link: nothing */
    NET_PRESENCE,    /* open for as long as the accepting rank is in the group; link: nothing */
    NET_PURPOSE_COUNT
};

/* The fields from byte 16 on. */
struct net_hello {
    enum net_purpose purpose;
    uint32_t group;    /* 0: the world */
    uint32_t from, to; /* ranks of the world */
    uint32_t link;
    uint8_t token[NET_TOKEN_HALF];
    uint32_t keyed; /* 0 or 1 */
    uint32_t generation;
    uint8_t nonce[NET_NONCE];
    enum seal_cipher cipher; /* of what follows the proof; the connecting rank chooses it, by its CPU */
};

enum net_answer {
    NET_ANSWER_STAYS,   /* the connection is used */
    NET_ANSWER_LEFT,    /* the rank has left the group */
    NET_ANSWER_DIFFERS, /* one of the two ranks encrypts, the other does not */
    NET_ANSWER_COUNT
};

/* Which rank proves the key. */
enum net_role { NET_ROLE_ACCEPTS = 1, NET_ROLE_CONNECTS };

enum net_record_kind {
    NET_RECORD_ENDED = 1, /* rank ended; detail as in struct shm_failure */
    NET_RECORD_LEAVES,    /* the sender has no group any more: the end of this connection means nothing */
    NET_RECORD_KIND_COUNT
};

struct net_record {
    enum net_record_kind kind;
    int32_t rank; /* of the world */
    int32_t detail;
};

void net_hello_encode(const struct net_hello *hello, uint8_t out[NET_HELLO_SIZE]);
/* world_size: ranks that there are. False: not one of ours, whatever it is. The token is the caller's to
 * compare. */
bool net_hello_decode(const uint8_t in[NET_HELLO_SIZE], uint32_t world_size, struct net_hello *ret);

/* Of tokens and proofs: in a time that does not depend on the place of a difference. */
bool net_bytes_equal(const uint8_t *a, const uint8_t *b, int n);

void net_answer_encode(const uint8_t token[NET_TOKEN], enum net_answer answer, uint8_t out[NET_TOKEN_HALF]);
/* False: not from a rank of this job. */
bool net_answer_decode(const uint8_t in[NET_TOKEN_HALF], const uint8_t token[NET_TOKEN],
                       enum net_answer *ret);

/* The bytes that a proof is the HMAC of, from the bytes of the hello and of the answer's head. */
void net_proved_encode(const uint8_t hello[NET_HELLO_SIZE], const uint8_t answer[NET_ANSWER_HEAD],
                       enum net_role role, uint8_t out[NET_PROVED_SIZE]);

void net_record_encode(const struct net_record *record, uint8_t out[NET_RECORD_SIZE]);
bool net_record_decode(const uint8_t in[NET_RECORD_SIZE], uint32_t world_size, struct net_record *ret);
