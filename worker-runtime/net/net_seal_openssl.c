#include "worker-runtime/net/net_seal_openssl.h"

#include "proto/key_openssl.h"

#include <string.h>

bool net_seal_secret(const struct secret_key *of_generation, const uint8_t hello[NET_HELLO_SIZE],
                     const uint8_t answer[NET_ANSWER_HEAD], enum net_role sender, struct secret_key *ret)
{
    static const char label[] = "libcrw sealed records"; /* with its zero */
    uint8_t info[sizeof(label) + NET_PROVED_SIZE];

    memcpy(info, label, sizeof(label));
    net_proved_encode(hello, answer, sender, info + sizeof(label));
    return key_expand(of_generation, info, sizeof(info), ret->bytes);
}
