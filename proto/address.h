#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Addresses in numbers. IPv4 that is written as IPv6 (::ffff:10.0.0.1) is IPv4 everywhere here. */

/* Room for every end of a connection. */
union address_endpoint {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage storage;
};

/* The host is an IPv4 or IPv6 address (without brackets), not a name that the resolver would have to look up. */
bool address_is_numeric(const char *host);

/* The host is a loopback address, or localhost. */
bool address_is_loopback(const char *host);

/* The host in numbers, without the port: false, and "" in text, for a unix socket and where it does not fit. */
bool address_format(const struct sockaddr *endpoint, char *text, size_t size);

/* Both have the same host; false for unix sockets. */
bool address_is_same_host(const struct sockaddr *a, const struct sockaddr *b);

/* 0 for a unix socket. */
uint16_t address_port(const struct sockaddr *endpoint);

/* What can be told apart of the sender's network: an IPv4 address, or the first half of an IPv6 address, the rest of which a host
 * chooses itself; 0 for a unix socket. */
uint64_t address_network(const struct sockaddr *endpoint);

/* "PORT", "HOST:PORT" or "[IPV6]:PORT", numeric; without a host it is 127.0.0.1, and an empty one (":PORT") all addresses.
 * Port 0: a free one. */
bool address_parse_listener(const char *text, char host[64], uint16_t *ret_port);
