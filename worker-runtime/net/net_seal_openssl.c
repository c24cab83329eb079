#include "worker-runtime/net/net_seal_openssl.h"

#include "proto/key_openssl.h"
#include "proto/openssl_os.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* Of <openssl/evp.h>, the same in 1.1.1 and 3. */
enum { CTRL_GET_TAG = 0x10, CTRL_SET_TAG = 0x11 };

enum { IV_SIZE = 12, NUMBER_SIZE = 8 };

struct net_seal {
    const struct openssl *o;
    struct openssl_aead_ctx *ctx;
    enum net_cipher cipher;
    bool encrypts;
    struct secret_key secret; /* of the key that is in ctx */
    uint8_t iv[IV_SIZE];
    uint64_t number; /* of the next record */
    uint32_t key_records;
};

/* ChaCha20-Poly1305 is faster than AES in software, and takes the same time for all keys there. */
enum net_cipher net_seal_best_cipher(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") ? NET_CIPHER_AES
                                                                             : NET_CIPHER_CHACHA;
#elif defined(__aarch64__)
    enum { HAS_AES = 1 << 3, HAS_PMULL = 1 << 4 }; /* of <asm/hwcap.h> */
    unsigned long has = getauxval(AT_HWCAP);

    return has & HAS_AES && has & HAS_PMULL ? NET_CIPHER_AES : NET_CIPHER_CHACHA;
#else
    return NET_CIPHER_CHACHA;
#endif
}

/* ---- keys ---- */

/* HKDF-Expand of one block: info, and the number of the block. */
static bool expand(const struct secret_key *secret, const void *info, size_t n, uint8_t ret[KEY_SIZE])
{
    uint8_t bytes[256];
    const char *why;

    assert(n < sizeof(bytes));
    memcpy(bytes, info, n);
    bytes[n] = 1;
    return key_mac(secret, bytes, n + 1, ret, &why) == 0;
}

bool net_seal_secret(const struct secret_key *of_generation, const uint8_t hello[NET_HELLO_SIZE],
                     const uint8_t answer[NET_ANSWER_HEAD], enum net_role sender, struct secret_key *ret)
{
    static const char label[] = "libcrw sealed records"; /* with its zero */
    uint8_t info[sizeof(label) + NET_PROVED_SIZE];

    memcpy(info, label, sizeof(label));
    net_proved_encode(hello, answer, sender, info + sizeof(label));
    return expand(of_generation, info, sizeof(info), ret->bytes);
}

/* Gives the key of s->secret to OpenSSL. */
static int take_key(struct net_seal *s)
{
    const struct openssl_aead *cipher =
        s->cipher == NET_CIPHER_AES ? s->o->EVP_aes_256_gcm() : s->o->EVP_chacha20_poly1305();
    uint8_t key[KEY_SIZE], iv[KEY_SIZE];
    bool ok = expand(&s->secret, "key", 3, key) && expand(&s->secret, "iv", 2, iv) &&
              s->o->EVP_CipherInit_ex(s->ctx, cipher, NULL, key, NULL, s->encrypts) == 1;

    memcpy(s->iv, iv, sizeof(s->iv));
    key_erase(key, sizeof(key));
    key_erase(iv, sizeof(iv));
    return ok ? 0 : -ENOSYS;
}

int net_seal_new(enum net_cipher cipher, const struct secret_key *secret, bool encrypts, uint32_t key_records,
                 struct net_seal **ret)
{
    const char *why;
    const struct openssl *o = openssl_get(&why);
    struct net_seal *s = o ? calloc(1, sizeof(*s)) : NULL;
    int r;

    if (!s)
        return o ? -ENOMEM : -ENOSYS;
    *s = (struct net_seal){
        .o = o, .cipher = cipher, .encrypts = encrypts, .secret = *secret, .key_records = key_records};
    s->ctx = o->EVP_CIPHER_CTX_new();
    r = s->ctx ? take_key(s) : -ENOMEM;
    if (r)
        net_seal_free(s);
    else
        *ret = s;
    return r;
}

void net_seal_free(struct net_seal *s)
{
    if (!s)
        return;
    if (s->ctx)
        s->o->EVP_CIPHER_CTX_free(s->ctx); /* erases the key */
    key_erase(s, sizeof(*s));
    free(s);
}

static int take_next_key(struct net_seal *s)
{
    struct secret_key next;
    int r = expand(&s->secret, "next", 4, next.bytes) ? 0 : -ENOSYS;

    if (r == 0) {
        s->secret = next;
        r = take_key(s);
    }
    key_erase(&next, sizeof(next));
    return r;
}

/* ---- records ---- */

static bool update(const struct net_seal *s, uint8_t *to, const void *from, size_t n)
{
    int size = 0;

    return s->o->EVP_CipherUpdate(s->ctx, to, &size, from, (int)n) == 1 && size == (int)n;
}

/* Begins with the next record, whose head is authenticated. */
static bool begin_record(struct net_seal *s, const uint8_t head[SEAL_HEAD])
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

static bool finish_record(const struct net_seal *s)
{
    uint8_t none[SEAL_TAG]; /* both ciphers are streams: nothing is left */
    int size = 0;

    return s->o->EVP_CipherFinal_ex(s->ctx, none, &size) == 1 && size == 0;
}

static void put_size(uint8_t head[SEAL_HEAD], size_t n)
{
    for (int i = 0; i < SEAL_HEAD; i++)
        head[i] = (uint8_t)(n >> (8 * i));
}

size_t net_seal_size(const uint8_t head[SEAL_HEAD])
{
    size_t n = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;

    return n <= SEAL_DATA_MAX ? n : 0;
}

int net_seal_close(struct net_seal *s, const struct iovec *parts, size_t n, uint8_t *record)
{
    uint8_t *at = record + SEAL_HEAD, *end = at + n;
    bool ok;

    assert(s->encrypts && n > 0 && n <= SEAL_DATA_MAX);
    put_size(record, n);
    ok = begin_record(s, record);
    for (; ok && at < end; parts++) {
        size_t left = (size_t)(end - at), part = parts->iov_len < left ? parts->iov_len : left;

        ok = part == 0 || update(s, at, parts->iov_base, part);
        at += part;
    }
    ok = ok && finish_record(s) && s->o->EVP_CIPHER_CTX_ctrl(s->ctx, CTRL_GET_TAG, SEAL_TAG, at) == 1;
    return ok ? 0 : -EIO;
}

int net_seal_open(struct net_seal *s, const uint8_t *record, size_t n, uint8_t *data)
{
    uint8_t tag[SEAL_TAG];
    bool ok;

    assert(!s->encrypts && n > 0 && n <= SEAL_DATA_MAX);
    memcpy(tag, record + SEAL_HEAD + n, sizeof(tag));
    ok = begin_record(s, record) && update(s, data, record + SEAL_HEAD, n) &&
         s->o->EVP_CIPHER_CTX_ctrl(s->ctx, CTRL_SET_TAG, SEAL_TAG, tag) == 1 && finish_record(s);
    return ok ? 0 : -EBADMSG;
}
