#include "rendezvous/keys/fence.h"

#include <errno.h>
#include <netinet/in.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* In the form of IPv6, which holds both. */
static bool normalize(const struct sockaddr *address, uint8_t ret[FENCE_ADDRESS_SIZE])
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;

    memset(ret, 0, FENCE_ADDRESS_SIZE);
    if (address->sa_family == AF_INET6) {
        memcpy(ret, &v6->sin6_addr, FENCE_ADDRESS_SIZE);
        return true;
    }
    ret[10] = ret[11] = 0xff;
    memcpy(ret + 12, &v4->sin_addr, 4);
    return address->sa_family == AF_INET;
}

static int compare_addresses(const void *a, const void *b)
{
    return memcmp(a, b, FENCE_ADDRESS_SIZE);
}

int fence_allow(struct fence *f, const struct sockaddr *address)
{
    _cleanup_free_ uint8_t *wanted = malloc(FENCE_ADDRESS_SIZE);

    if (!wanted)
        return -ENOMEM;
    if (!normalize(address, wanted))
        return -EAFNOSUPPORT;
    if (tfind(wanted, &f->items, compare_addresses))
        return 0;
    if (f->n == FENCE_ADDRESSES_MAX)
        return -ENOSPC;
    if (!tsearch(wanted, &f->items, compare_addresses))
        return -ENOMEM;
    (void)steal_ptr(wanted);
    f->n++;
    return 0;
}

bool fence_allows(const struct fence *f, const struct sockaddr *address)
{
    uint8_t wanted[FENCE_ADDRESS_SIZE];

    if (address->sa_family == AF_UNIX)
        return true;
    return normalize(address, wanted) && tfind(wanted, &f->items, compare_addresses);
}

void fence_finish(struct fence *f)
{
    tdestroy(f->items, free);
    *f = (struct fence){0};
}
