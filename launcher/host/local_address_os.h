#pragma once

/*
 * Whose address is it? Asked of this machine's interfaces, never by looking up its own name, which may not
 * resolve, or to something else than what others see.
 */

#include <stdbool.h>

struct sockaddr;

bool local_address_is_loopback(const struct sockaddr *address);

/* On one of the interfaces of this machine; all of 127.0.0.0/8 is. */
bool local_address_is_own(const struct sockaddr *address);
