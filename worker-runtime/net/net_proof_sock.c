/* Proofs of the job's key, see net_frame.h. */

#include "worker-runtime/net/net_impl_sock.h"

#include "proto/key_openssl.h"

bool net_prove(const struct net *n, const uint8_t hello[NET_HELLO_SIZE],
               const uint8_t answer[NET_ANSWER_HEAD], enum net_role role, uint8_t ret[NET_MAC])
{
    uint8_t proved[NET_PROVED_SIZE];
    const char *why;

    net_proved_encode(hello, answer, role, proved);
    return key_mac(&n->key.of_generation, proved, sizeof(proved), ret, &why) == 0;
}
