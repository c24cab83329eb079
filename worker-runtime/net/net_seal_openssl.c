#include "worker-runtime/net/net_seal_openssl.h"

#include "proto/key_openssl.h"

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
