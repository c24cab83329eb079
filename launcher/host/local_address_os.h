#pragma once

/*
 * Whether an address belongs to this machine, by its interfaces. Its own name is never looked up: that may not resolve, or
 * to an address that other machines do not see.
 */

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

bool local_address_is_loopback(const struct sockaddr *address);

/* On one of the interfaces of this machine; all of 127.0.0.0/8 is. */
bool local_address_is_own(const struct sockaddr *address);

/* The numeric address from which this machine sends to a numeric host, which is the host itself if that is one of this
 * machine's. Nothing is sent. 0; -EINVAL: host is a name; -ENOBUFS: ret is too small; -errno: there is no route. */
int local_address_towards(const char *host, char *ret, size_t size);
