#include "proto/address.h"

#include <arpa/inet.h>

bool address_is_numeric(const char *host)
{
    struct in6_addr address;

    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}
