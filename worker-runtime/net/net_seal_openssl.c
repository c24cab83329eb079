#include "worker-runtime/net/net_seal_openssl.h"

#include "proto/key_openssl.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/net/net_impl_sock.h"

#include <errno.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* ChaCha20-Poly1305 is faster than AES in software, and takes the same time for all keys there. */
enum seal_cipher net_seal_best_cipher(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") ? SEAL_CIPHER_AES
                                                                             : SEAL_CIPHER_CHACHA;
#elif defined(__aarch64__)
    enum { HAS_AES = 1 << 3, HAS_PMULL = 1 << 4 }; /* of <asm/hwcap.h> */
    unsigned long has = getauxval(AT_HWCAP);

    return has & HAS_AES && has & HAS_PMULL ? SEAL_CIPHER_AES : SEAL_CIPHER_CHACHA;
#else
    return SEAL_CIPHER_CHACHA;
#endif
}

bool net_seal_secret(const struct secret_key *of_generation, const uint8_t hello[NET_HELLO_SIZE],
                     const uint8_t answer[NET_ANSWER_HEAD], enum net_role sender, struct secret_key *ret)
{
    static const char label[] = "libcrw sealed records"; /* with its zero */
    uint8_t info[sizeof(label) + NET_PROVED_SIZE];

    memcpy(info, label, sizeof(label));
    net_proved_encode(hello, answer, sender, info + sizeof(label));
    return key_expand(of_generation, info, sizeof(info), ret->bytes);
}

bool net_prove(const struct net *n, const uint8_t hello[NET_HELLO_SIZE],
               const uint8_t answer[NET_ANSWER_HEAD], enum net_role role, uint8_t ret[NET_MAC])
{
    uint8_t proved[NET_PROVED_SIZE];
    const char *why;

    net_proved_encode(hello, answer, role, proved);
    return key_mac(&n->key->of_generation, proved, sizeof(proved), ret, &why) == 0;
}

int net_encrypt(const struct net *n, struct net_link *link, enum seal_cipher cipher,
                const uint8_t hello[NET_HELLO_SIZE], const uint8_t answer[NET_ANSWER_HEAD], enum net_role own)
{
    enum net_role other = NET_ROLE_ACCEPTS + NET_ROLE_CONNECTS - own;
    struct secret_key of_sent, of_received;
    int r = net_seal_secret(&n->key->of_generation, hello, answer, own, &of_sent) &&
                    net_seal_secret(&n->key->of_generation, hello, answer, other, &of_received)
                ? net_link_encrypt(link, cipher, &of_sent, &of_received)
                : -ENOSYS;

    key_erase(&of_sent, sizeof(of_sent));
    key_erase(&of_received, sizeof(of_received));
    return r;
}

int net_fail_changed(int rank)
{
    return crw_fail(CRW_E_PEER,
                    "what came from rank %d is not what it sent: something between the hosts has changed, "
                    "repeated or removed data, so this connection is over",
                    rank);
}
