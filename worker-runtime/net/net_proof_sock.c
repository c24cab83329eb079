/* Proofs of the job's key, and the keys that encrypt a connection: see net_frame.h and net_seal_openssl.h. */

#include "worker-runtime/net/net_impl_sock.h"

#include "proto/key_openssl.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/net/net_seal_openssl.h"

#include <errno.h>

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
    enum net_role other = own == NET_ROLE_CONNECTS ? NET_ROLE_ACCEPTS : NET_ROLE_CONNECTS;
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
