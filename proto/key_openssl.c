#include "proto/key_openssl.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/openssl_os.h"

/* The salt of HKDF's first step: one for all of crun, so that the keys differ from those that other programs derive
 * from the same secret. */
static const char salt[] = "crun secret, version 1";

static const char *const purposes[KEY_PURPOSE_COUNT] = {
    [KEY_AGENT] = "agent", [KEY_WORKER] = "worker", [KEY_STORE] = "store",
    [KEY_RELAY] = "relay", [KEY_ADMIN] = "admin",
};

const char *key_purpose_name(enum key_purpose purpose)
{
    return purposes[purpose];
}

void key_erase(void *p, size_t n)
{
    explicit_bzero(p, n);
}

static int hmac_sha256(const void *key, size_t key_size, const void *bytes, size_t n, uint8_t ret[KEY_SIZE],
                       const char **ret_why)
{
    const struct openssl *o = openssl_get(ret_why);
    unsigned size = KEY_SIZE;

    if (!o)
        return -ENOSYS;
    *ret_why = "OpenSSL refuses HMAC with SHA-256";
    return o->HMAC(o->EVP_sha256(), key, (int)key_size, bytes, n, ret, &size) && size == KEY_SIZE ? 0
                                                                                                  : -ENOSYS;
}

int key_mac(const struct secret_key *key, const void *bytes, size_t n, uint8_t ret[KEY_SIZE],
            const char **ret_why)
{
    return hmac_sha256(key->bytes, KEY_SIZE, bytes, n, ret, ret_why);
}

bool key_expand(const struct secret_key *secret, const void *info, size_t n, uint8_t ret[KEY_SIZE])
{
    uint8_t bytes[KEY_INFO_MAX + 1];
    const char *why;

    assert(n <= KEY_INFO_MAX);
    memcpy(bytes, info, n);
    bytes[n] = 1; /* the number of the block */
    return key_mac(secret, bytes, n + 1, ret, &why) == 0;
}

/* The info of HKDF's second step, followed by the number of its only block: "agent", a zero, the job's id, 1. The zero
 * separates the parts: no purpose contains one. */
static int put_info(struct buf *info, enum key_purpose purpose, const char *job)
{
    TRY(buf_append(info, purposes[purpose], strlen(purposes[purpose]) + 1));
    TRY(buf_append(info, job, strlen(job)));
    return buf_append_u8(info, 1);
}

int key_derive(struct secret_key *ret, const void *secret, size_t secret_size, enum key_purpose purpose,
               const char *job, const char **ret_why)
{
    uint8_t extracted[KEY_SIZE];
    _cleanup_(buf_finish) struct buf info = {0};
    int r = put_info(&info, purpose, job);

    *ret_why = "out of memory";
    if (r == 0)
        r = hmac_sha256(salt, sizeof(salt) - 1, secret, secret_size, extracted, ret_why);
    if (r == 0)
        r = hmac_sha256(extracted, KEY_SIZE, buf_bytes(&info), buf_size(&info), ret->bytes, ret_why);
    key_erase(extracted, sizeof(extracted));
    return r;
}
