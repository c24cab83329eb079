#include "proto/key_exchange.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

/* The number of the version is the digit. */
static const char opening[] =
    "\xc6"
    "crunkey1\n";
enum {
    OPENING_SIZE = sizeof(opening) - 1,
    HEAD_SIZE = OPENING_SIZE + 1 + 2, /* code, u16 length of the credential, little endian */
};

/* With their zeros, which end them. */
static const char request_kind[] = "crun key request, version 1";
static const char reply_kind[] = "crun key reply, version 1";

int key_exchange_put(struct buf *out, enum key_exchange_code code, const char *credential, size_t n)
{
    const uint8_t head[] = {(uint8_t)code, (uint8_t)(n & 0xff), (uint8_t)(n >> 8)};

    if (n > KEY_EXCHANGE_CREDENTIAL_MAX)
        return -EMSGSIZE;
    TRY(buf_append(out, opening, OPENING_SIZE));
    TRY(buf_append(out, head, sizeof(head)));
    return buf_append(out, credential, n);
}

int key_exchange_decode(const uint8_t *bytes, size_t n, struct key_exchange_frame *ret, size_t *ret_size)
{
    if (memcmp(bytes, opening, n < OPENING_SIZE ? n : OPENING_SIZE) != 0)
        return KEY_EXCHANGE_E_BAD;
    if (n < HEAD_SIZE)
        return KEY_EXCHANGE_E_MORE;
    uint8_t code = bytes[OPENING_SIZE];
    size_t size = (size_t)bytes[OPENING_SIZE + 1] | (size_t)bytes[OPENING_SIZE + 2] << 8;
    if (code >= KEY_EXCHANGE_CODE_COUNT || size > KEY_EXCHANGE_CREDENTIAL_MAX ||
        (size == 0) != (code != KEY_EXCHANGE_CREDENTIAL))
        return KEY_EXCHANGE_E_BAD;
    if (n < HEAD_SIZE + size)
        return KEY_EXCHANGE_E_MORE;
    if (memchr(bytes + HEAD_SIZE, 0, size))
        return KEY_EXCHANGE_E_BAD;
    *ret = (struct key_exchange_frame){.code = (enum key_exchange_code)code,
                                       .credential = (const char *)bytes + HEAD_SIZE,
                                       .credential_size = size};
    *ret_size = HEAD_SIZE + size;
    return 0;
}

int key_request_put(struct buf *out, const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE], const char *job)
{
    TRY(buf_append(out, request_kind, sizeof(request_kind)));
    TRY(buf_append(out, nonce, KEY_EXCHANGE_NONCE_SIZE));
    return buf_append(out, job, strlen(job));
}

int key_reply_put(struct buf *out, const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE],
                  const uint8_t secret[KEY_EXCHANGE_SECRET_SIZE], const char *job)
{
    TRY(buf_append(out, reply_kind, sizeof(reply_kind)));
    TRY(buf_append(out, nonce, KEY_EXCHANGE_NONCE_SIZE));
    TRY(buf_append(out, secret, KEY_EXCHANGE_SECRET_SIZE));
    return buf_append(out, job, strlen(job));
}

static bool is_of_kind(const struct key_exchange_payload *payload, const char *kind, size_t kind_size,
                       size_t fixed_size)
{
    return payload->n >= kind_size + fixed_size && memcmp(payload->bytes, kind, kind_size) == 0;
}

/* The job's id is the rest of the payload. */
static bool is_of_job(const struct key_exchange_payload *payload, size_t at, const char *job)
{
    size_t n = strlen(job);

    return payload->n - at == n && memcmp((const uint8_t *)payload->bytes + at, job, n) == 0;
}

enum key_exchange_code key_request_check(const struct key_exchange_payload *payload, uid_t user,
                                         const char *job, uint8_t ret[KEY_EXCHANGE_NONCE_SIZE])
{
    const uint8_t *bytes = payload->bytes;
    size_t at = sizeof(request_kind);

    if (payload->uid != user ||
        !is_of_kind(payload, request_kind, sizeof(request_kind), KEY_EXCHANGE_NONCE_SIZE))
        return KEY_EXCHANGE_REFUSED;
    if (!is_of_job(payload, at + KEY_EXCHANGE_NONCE_SIZE, job))
        return KEY_EXCHANGE_OTHER_JOB;
    memcpy(ret, bytes + at, KEY_EXCHANGE_NONCE_SIZE);
    return KEY_EXCHANGE_CREDENTIAL;
}

const char *key_reply_check(const struct key_exchange_payload *payload, uid_t user, const char *job,
                            const uint8_t nonce[KEY_EXCHANGE_NONCE_SIZE],
                            uint8_t ret[KEY_EXCHANGE_SECRET_SIZE])
{
    const uint8_t *bytes = payload->bytes;
    size_t at = sizeof(reply_kind);

    if (payload->uid != user)
        return "another user of the cluster serves it";
    if (!is_of_kind(payload, reply_kind, sizeof(reply_kind),
                    KEY_EXCHANGE_NONCE_SIZE + KEY_EXCHANGE_SECRET_SIZE))
        return "its credential is not a reply";
    if (memcmp(bytes + at, nonce, KEY_EXCHANGE_NONCE_SIZE) != 0)
        return "its reply is one to another request";
    at += KEY_EXCHANGE_NONCE_SIZE;
    if (!is_of_job(payload, at + KEY_EXCHANGE_SECRET_SIZE, job))
        return "its reply is for another job";
    memcpy(ret, bytes + at, KEY_EXCHANGE_SECRET_SIZE);
    return NULL;
}

const char *key_exchange_refusal(enum key_exchange_code code)
{
    switch (code) {
    case KEY_EXCHANGE_OTHER_JOB:
        return "it serves another job (--rdzv-id)";
    case KEY_EXCHANGE_UNAVAILABLE:
        return "munge does not answer on its node";
    default:
        return "it refuses the credential of this node: is it a crun of the same user, and do the clocks of both nodes agree?";
    }
}
