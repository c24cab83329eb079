#include "launcher/host/local_address_os.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "proto/address.h"

bool local_address_is_loopback(const struct sockaddr *address)
{
    char host[INET6_ADDRSTRLEN];

    return address_format(address, host, sizeof(host)) && address_is_loopback(host);
}

bool local_address_is_own(const struct sockaddr *address)
{
    struct ifaddrs *list;
    bool found = local_address_is_loopback(address);

    if (found || getifaddrs(&list) < 0)
        return found;
    for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next)
        found = i->ifa_addr && address_is_same_host(address, i->ifa_addr);
    freeifaddrs(list);
    return found;
}

static bool parse_numeric(const char *host, union address_endpoint *ret)
{
    *ret = (union address_endpoint){
        .v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9)}}; /* any port will do */
    if (inet_pton(AF_INET6, host, &ret->v6.sin6_addr) == 1)
        return true;
    *ret = (union address_endpoint){.v4 = {.sin_family = AF_INET, .sin_port = htons(9)}};
    return inet_pton(AF_INET, host, &ret->v4.sin_addr) == 1;
}

int local_address_towards(const char *host, char *ret, size_t size)
{
    union address_endpoint address;
    socklen_t length = sizeof(address);

    if (!parse_numeric(host, &address))
        return -EINVAL;
    /* To another address of 127.0.0.0/8 the kernel sends from 127.0.0.1. */
    bool own = local_address_is_own(&address.any);
    _cleanup_close_ int fd = own ? -1 : socket(address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!own && (fd < 0 || connect(fd, &address.any, sizeof(address)) < 0 ||
                 getsockname(fd, &address.any, &length) < 0))
        return -errno;
    return address_format(&address.any, ret, size) ? 0 : -ENOBUFS;
}
