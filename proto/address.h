#pragma once

#include <stdbool.h>

/* The host is an IPv4 or IPv6 address (without brackets), not a name that the resolver would have to look up. */
bool address_is_numeric(const char *host);
