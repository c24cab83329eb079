#include "proto/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/decimal.h"

bool address_is_numeric(const char *host)
{
    struct in6_addr address;

    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

bool address_is_loopback(const char *host)
{
    struct in6_addr v6;
    struct in_addr v4;

    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
    if (inet_pton(AF_INET6, host, &v6) != 1)
        return strcmp(host, "localhost") == 0;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

/* The bytes of the address and their family; AF_UNSPEC for a unix socket. */
static int host_bytes(const struct sockaddr *endpoint, const uint8_t **ret)
{
    const struct sockaddr_in6 *v6 = (const void *)endpoint;
    const struct sockaddr_in *v4 = (const void *)endpoint;

    *ret = NULL;
    if (endpoint->sa_family == AF_INET) {
        *ret = (const void *)&v4->sin_addr;
        return AF_INET;
    }
    if (endpoint->sa_family != AF_INET6)
        return AF_UNSPEC;
    *ret = v6->sin6_addr.s6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        return AF_INET6;
    *ret += 12;
    return AF_INET;
}

bool address_format(const struct sockaddr *endpoint, char *text, size_t size)
{
    const uint8_t *bytes;
    int family = host_bytes(endpoint, &bytes);

    if (family != AF_UNSPEC && inet_ntop(family, bytes, text, (socklen_t)size))
        return true;
    text[0] = '\0';
    return false;
}

bool address_is_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    const uint8_t *a_bytes, *b_bytes;
    int family = host_bytes(a, &a_bytes);

    return family != AF_UNSPEC && family == host_bytes(b, &b_bytes) &&
           memcmp(a_bytes, b_bytes, family == AF_INET ? sizeof(struct in_addr) : sizeof(struct in6_addr)) ==
               0;
}

uint16_t address_port(const struct sockaddr *endpoint)
{
    if (endpoint->sa_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)(const void *)endpoint)->sin_port);
    return endpoint->sa_family == AF_INET6
               ? ntohs(((const struct sockaddr_in6 *)(const void *)endpoint)->sin6_port)
               : 0;
}

uint64_t address_network(const struct sockaddr *endpoint)
{
    const uint8_t *bytes;
    int family = host_bytes(endpoint, &bytes);
    uint64_t network = 0;

    if (family != AF_UNSPEC)
        memcpy(&network, bytes, family == AF_INET ? 4 : sizeof(network));
    return network;
}

enum { LISTENER_HOST_SIZE = 64 };

bool address_parse_listener(const char *text, char host[64], uint16_t *ret_port)
{
    const char *port = strrchr(text, ':'), *end = port;
    uint64_t value;

    (void)snprintf(host, LISTENER_HOST_SIZE, "127.0.0.1");
    if (!decimal_parse(port ? port + 1 : text, 0, UINT16_MAX, &value))
        return false;
    *ret_port = (uint16_t)value;
    if (!port)
        return true;
    bool is_bracketed = text[0] == '[' && end > text && end[-1] == ']';
    int n = (int)(end - text) - (is_bracketed ? 2 : 0);
    if (n >= LISTENER_HOST_SIZE || (!is_bracketed && memchr(text, ':', (size_t)n)))
        return false;
    (void)snprintf(host, LISTENER_HOST_SIZE, "%.*s", n, text + is_bracketed); /* fits */
    if (n == 0)
        (void)snprintf(host, LISTENER_HOST_SIZE, "::");
    else if (strcmp(host, "localhost") == 0)
        (void)snprintf(host, LISTENER_HOST_SIZE, "127.0.0.1");
    return address_is_numeric(host);
}
