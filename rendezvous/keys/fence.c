#include "rendezvous/keys/fence.h"

#include <errno.h>
#include <netinet/in.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/address.h"

static int compare_addresses(const void *a, const void *b)
{
    return strcmp(a, b);
}

int fence_allow(struct fence *f, const struct sockaddr *address)
{
    _cleanup_free_ char *wanted = malloc(INET6_ADDRSTRLEN);

    if (!wanted)
        return -ENOMEM;
    if (!address_format(address, wanted, INET6_ADDRSTRLEN))
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
    char wanted[INET6_ADDRSTRLEN];

    if (address->sa_family == AF_UNIX)
        return true;
    return address_format(address, wanted, sizeof(wanted)) && tfind(wanted, &f->items, compare_addresses);
}

void fence_finish(struct fence *f)
{
    tdestroy(f->items, free);
    *f = (struct fence){0};
}
