#include "proto/record_seal_openssl.h"

#include "proto/key_openssl.h"
#include "proto/openssl_os.h"
#include "proto/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Of <openssl/evp.h>, the same in 1.1.1 and 3. */
enum { CTRL_GET_TAG = 0x10, CTRL_SET_TAG = 0x11 };

enum { IV_SIZE = 12, NUMBER_SIZE = 8 };

struct record_seal {
    const struct openssl *o;
    struct openssl_aead_ctx *ctx;
    enum seal_cipher cipher;
    bool encrypts;
    struct secret_key secret; /* of the key that is in ctx */
    uint8_t iv[IV_SIZE];
    uint64_t number; /* of the next record */
    uint32_t key_records;
};

/* ---- keys ---- */

/* Gives the key of s->secret to OpenSSL. */
static int take_key(struct record_seal *s)
{
    const struct openssl_aead *cipher =
        s->cipher == SEAL_CIPHER_AES ? s->o->EVP_aes_256_gcm() : s->o->EVP_chacha20_poly1305();
    uint8_t key[KEY_SIZE], iv[KEY_SIZE];
    bool ok = key_expand(&s->secret, "key", 3, key) && key_expand(&s->secret, "iv", 2, iv) &&
              s->o->EVP_CipherInit_ex(s->ctx, cipher, NULL, key, NULL, s->encrypts) == 1;

    if (ok)
        memcpy(s->iv, iv, sizeof(s->iv));
    key_erase(key, sizeof(key));
    key_erase(iv, sizeof(iv));
    return ok ? 0 : -ENOSYS;
}

int record_seal_new(enum seal_cipher cipher, const struct secret_key *secret, bool encrypts,
                    uint32_t key_records, struct record_seal **ret)
{
    const char *why;
    const struct openssl *o = openssl_get(&why);
    struct record_seal *s = o ? calloc(1, sizeof(*s)) : NULL;

    if (!s)
        return o ? -ENOMEM : -ENOSYS;
    *s = (struct record_seal){
        .o = o, .cipher = cipher, .encrypts = encrypts, .secret = *secret, .key_records = key_records};
    s->ctx = o->EVP_CIPHER_CTX_new();
    int r = s->ctx ? take_key(s) : -ENOMEM;
    if (r)
        record_seal_free(s);
    else
        *ret = s;
    return r;
}

void record_seal_free(struct record_seal *s)
{
    if (!s)
        return;
    if (s->ctx)
        s->o->EVP_CIPHER_CTX_free(s->ctx); /* erases the key */
    key_erase(s, sizeof(*s));
    free(s);
}

static int take_next_key(struct record_seal *s)
{
    struct secret_key next;
    int r = key_expand(&s->secret, "next", 4, next.bytes) ? 0 : -ENOSYS;

    if (r == 0) {
        s->secret = next;
        r = take_key(s);
    }
    key_erase(&next, sizeof(next));
    return r;
}

/* ---- records ---- */

static bool update(const struct record_seal *s, uint8_t *to, const void *from, size_t n)
{
    int size = 0;

    return s->o->EVP_CipherUpdate(s->ctx, to, &size, from, (int)n) == 1 && size == (int)n;
}

/* Begins with the next record, whose head is authenticated. */
static bool begin_record(struct record_seal *s, const uint8_t head[SEAL_HEAD])
{
    uint8_t nonce[IV_SIZE];

    if (s->number > 0 && s->number % s->key_records == 0 && take_next_key(s) != 0)
        return false;
    memcpy(nonce, s->iv, sizeof(nonce));
    for (int i = 0; i < NUMBER_SIZE; i++)
        nonce[IV_SIZE - 1 - i] ^= (uint8_t)(s->number >> (8 * i));
    s->number++;
    return s->o->EVP_CipherInit_ex(s->ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
           update(s, NULL, head, SEAL_HEAD);
}

static bool finish_record(const struct record_seal *s)
{
    uint8_t none[SEAL_TAG]; /* both ciphers are streams: nothing is left */
    int size = 0;

    return s->o->EVP_CipherFinal_ex(s->ctx, none, &size) == 1 && size == 0;
}

size_t record_seal_size(const uint8_t head[SEAL_HEAD])
{
    size_t n = wire_load_u32(head);

    return n <= SEAL_DATA_MAX ? n : 0;
}

int record_seal_close(struct record_seal *s, const struct iovec *parts, size_t n, uint8_t *record)
{
    uint8_t *at = record + SEAL_HEAD, *end = at + n;

    assert(s->encrypts && n > 0 && n <= SEAL_DATA_MAX);
    wire_store_u32(record, (uint32_t)n);
    bool ok = begin_record(s, record);
    for (; ok && at < end; parts++) {
        size_t left = (size_t)(end - at), part = parts->iov_len < left ? parts->iov_len : left;

        ok = part == 0 || update(s, at, parts->iov_base, part);
        at += part;
    }
    ok = ok && finish_record(s) && s->o->EVP_CIPHER_CTX_ctrl(s->ctx, CTRL_GET_TAG, SEAL_TAG, at) == 1;
    return ok ? 0 : -EIO;
}

int record_seal_open(struct record_seal *s, const uint8_t *record, size_t n, uint8_t *data)
{
    uint8_t tag[SEAL_TAG];

    assert(!s->encrypts && n > 0 && n <= SEAL_DATA_MAX);
    memcpy(tag, record + SEAL_HEAD + n, sizeof(tag));
    bool ok = begin_record(s, record) && update(s, data, record + SEAL_HEAD, n) &&
              s->o->EVP_CIPHER_CTX_ctrl(s->ctx, CTRL_SET_TAG, SEAL_TAG, tag) == 1 && finish_record(s);
    return ok ? 0 : -EBADMSG;
}
