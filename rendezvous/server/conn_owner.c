#include "rendezvous/server/conn_owner.h"

#include <string.h>

/* Of an id that is a user's. An IPv6 network with this bit alone would share a quota with one, but is not its own user. */
#define LOCAL_USER (UINT64_C(1) << 32)

enum { LOOPBACK = 127 };

struct conn_owner conn_owner_user(uint32_t uid, bool is_own)
{
    return (struct conn_owner){.id = LOCAL_USER | uid, .is_own = is_own};
}

struct conn_owner conn_owner_network(uint64_t network)
{
    return (struct conn_owner){.id = conn_owner_is_local(network) ? LOCAL_USER - 1 : network};
}

uint32_t conn_owner_uid(const struct conn_owner *o)
{
    return (uint32_t)o->id;
}

uint64_t conn_owner_quota(const struct conn_owner *o)
{
    return o->is_own ? 0 : o->id;
}

bool conn_owner_is_local(uint64_t network)
{
    static const uint8_t none[4];
    uint8_t bytes[sizeof(network)]; /* four of IPv4, then zeros */

    memcpy(bytes, &network, sizeof(bytes));
    return network == 0 || (bytes[0] == LOOPBACK && memcmp(bytes + 4, none, sizeof(none)) == 0);
}
