#pragma once

/*
 * Addresses of this machine, by its interfaces. The name of the machine is never looked up: the name may not resolve, or may resolve
 * to an address that other machines do not see.
 */

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

/* Any address for local_address_in(). */
#define LOCAL_ADDRESS_ANY_V4 "0.0.0.0/0"
#define LOCAL_ADDRESS_ANY_V6 "::/0"

bool local_address_is_loopback(const struct sockaddr *address);

/* On an interface of this machine, or in 127.0.0.0/8. */
bool local_address_is_own(const struct sockaddr *address);

/* The numeric address from which this machine sends to a numeric host; for a host on this machine the
 * host itself. Nothing is sent. 0; -EINVAL: host is a name; -ENOBUFS: ret is too small; -errno: there is no route. */
int local_address_towards(const char *host, char *ret, size_t size);

/* The name of the interface with a numeric address, as if_nametoindex() takes the name. False: no interface has the address. */
bool local_address_interface(const char *host, char ret[IF_NAMESIZE]);

/* The first address of this machine in a network, 10.1.0.0/16 or fd00::/64, without addresses of loopback and of a single link
 * (fe80::/10). 0; -EINVAL: network is none; -EADDRNOTAVAIL: this machine has no address there; -ENOBUFS: ret is too small; -errno. */
int local_address_in(const char *network, char *ret, size_t size);
