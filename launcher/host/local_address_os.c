#include "launcher/host/local_address_os.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/decimal.h"
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

bool local_address_interface(const char *host, char ret[IF_NAMESIZE])
{
    union address_endpoint address;
    struct ifaddrs *list;

    if (!parse_numeric(host, &address) || getifaddrs(&list) < 0)
        return false;
    const struct ifaddrs *i = list;
    while (i && !(i->ifa_addr && address_is_same_host(&address.any, i->ifa_addr)))
        i = i->ifa_next;
    if (i)
        (void)snprintf(ret, IF_NAMESIZE, "%s", i->ifa_name); /* fits */
    freeifaddrs(list);
    return i != NULL;
}

/* The bytes of an address, and *ret_bits of them in bits; NULL: neither IPv4 nor IPv6. */
static const uint8_t *address_bytes(const struct sockaddr *address, unsigned *ret_bits)
{
    bool is_v4 = address->sa_family == AF_INET;

    *ret_bits = is_v4 ? 32 : 128;
    return is_v4 ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr
           : address->sa_family == AF_INET6
               ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr.s6_addr
               : NULL;
}

static int parse_network(const char *text, union address_endpoint *ret, unsigned *ret_bits)
{
    size_t n = strcspn(text, "/");
    char host[INET6_ADDRSTRLEN];
    uint64_t bits;
    unsigned n_bits;

    if (n >= sizeof(host) || !text[n])
        return -EINVAL;
    (void)snprintf(host, sizeof(host), "%.*s", (int)n, text); /* fits */
    if (!parse_numeric(host, ret) || !address_bytes(&ret->any, &n_bits) ||
        !decimal_parse(text + n + 1, 0, n_bits, &bits))
        return -EINVAL;
    *ret_bits = (unsigned)bits;
    return 0;
}

static bool is_in_network(const struct ifaddrs *i, const union address_endpoint *network, unsigned n_bits)
{
    unsigned n_all;
    const uint8_t *own = i->ifa_addr ? address_bytes(i->ifa_addr, &n_all) : NULL;
    const uint8_t *of = address_bytes(&network->any, &n_all);
    unsigned n_bytes = n_bits / 8, n_rest = n_bits % 8;

    if (!own || i->ifa_addr->sa_family != network->any.sa_family || !(i->ifa_flags & IFF_UP) ||
        (i->ifa_flags & IFF_LOOPBACK))
        return false;
    bool is_of_link = i->ifa_addr->sa_family == AF_INET6 && own[0] == 0xfe && (own[1] & 0xc0) == 0x80;
    return !is_of_link && memcmp(own, of, n_bytes) == 0 &&
           (n_rest == 0 || (own[n_bytes] ^ of[n_bytes]) >> (8 - n_rest) == 0);
}

int local_address_in(const char *network, char *ret, size_t size)
{
    union address_endpoint of;
    struct ifaddrs *list;
    unsigned n_bits;
    int r = parse_network(network, &of, &n_bits);

    if (r)
        return r;
    if (getifaddrs(&list) < 0)
        return -errno;
    const struct ifaddrs *i = list;
    while (i && !is_in_network(i, &of, n_bits))
        i = i->ifa_next;
    if (!i)
        r = -EADDRNOTAVAIL;
    else if (!address_format(i->ifa_addr, ret, size))
        r = -ENOBUFS;
    freeifaddrs(list);
    return r;
}
