#pragma once

/*
 * How nodes of a job without a secret of their own agree on one, where munge authenticates users of the cluster: the node that
 * serves the rendezvous makes a secret for the job, and gives it to agents of its own user. Pure: it encodes and checks; munge
 * (launcher/host/munge_os.h) makes credentials of the payloads and opens them.
 *
 *   agent                                          node that serves the rendezvous
 *   REQUEST: munge(nonce, job)                  ->
 *                                               <- REPLY: munge(that nonce, job, secret), or a refusal
 *   the connection ends; sessions begin with TLS by keys of the secret
 *
 * munge encrypts a payload with the key of the cluster, states the user that has made the credential, opens one only for the
 * user that it is restricted to, and on each node only once. So another user cannot make either credential, cannot read one,
 * and a recorded request brings a reply that only the job's user can open. The nonce binds a reply to the request: a
 * recorded reply is refused. The kind stands in the payload: neither can be taken for the other, nor for a credential that
 * Slurm makes for the user.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;

enum {
    KEY_EXCHANGE_FIRST_BYTE =
        0xc6, /* no request of a client, no record of TLS and no session begins with it */
    KEY_EXCHANGE_NONCE_SIZE = 32,
    KEY_EXCHANGE_SECRET_SIZE = 32,
    KEY_EXCHANGE_CREDENTIAL_MAX = 4096, /* of two kilobytes at most for the longest job id */
    KEY_EXCHANGE_FRAME_MAX = KEY_EXCHANGE_CREDENTIAL_MAX + 16,
};

/* What a frame has. Numbers on the wire. */
enum key_exchange_code {
    KEY_EXCHANGE_CREDENTIAL = 0, /* a request or a reply */
    KEY_EXCHANGE_REFUSED = 1,    /* of another user, replayed, expired, or no credential */
    KEY_EXCHANGE_OTHER_JOB = 2,
    KEY_EXCHANGE_UNAVAILABLE = 3, /* munge of that node does not answer */
    KEY_EXCHANGE_CODE_COUNT
};

enum { KEY_EXCHANGE_E_MORE = 1, KEY_EXCHANGE_E_BAD = 2 };

struct key_exchange_frame {
    enum key_exchange_code code;
    const char *credential; /* points into the bytes, without a zero at its end */
    size_t credential_size;
};

/* Appends a frame; the credential of another code is empty. 0, -ENOMEM, or -EMSGSIZE. */
int key_exchange_put(struct buf *out, enum key_exchange_code code, const char *credential, size_t n);

/* Decodes the frame at the first of n bytes. 0: *ret_size bytes were used; KEY_EXCHANGE_E_MORE: it is incomplete;
 * KEY_EXCHANGE_E_BAD: these are no such bytes. */
int key_exchange_decode(const uint8_t *bytes, size_t n, struct key_exchange_frame *ret, size_t *ret_size);

/* What munge has found in a credential. */
struct key_exchange_payload {
    const void *bytes;
    size_t n;
    uid_t uid; /* of its maker */
};

/* Payloads. 0 or -ENOMEM. */
int key_request_put(struct buf *out, const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE], const char *job);
int key_reply_put(struct buf *out, const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE],
                  const uint8_t secret[KEY_EXCHANGE_SECRET_SIZE], const char *job);

/* KEY_EXCHANGE_CREDENTIAL: *ret is the nonce of a request for this job by this user; else what to answer. */
enum key_exchange_code key_request_check(const struct key_exchange_payload *payload, uid_t user,
                                         const char *job, uint8_t ret[KEY_EXCHANGE_NONCE_SIZE]);

/* NULL: *ret is the job's secret; else a part of a sentence. */
const char *key_reply_check(const struct key_exchange_payload *payload, uid_t user, const char *job,
                            const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE],
                            uint8_t ret[KEY_EXCHANGE_SECRET_SIZE]);

/* A part of a sentence about a frame that has no credential. */
const char *key_exchange_refusal(enum key_exchange_code code);
