#pragma once

/*
 * One attempt to get a TCP connection: names are looked up, every address is tried once.
 */

#include <netdb.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wait_sock.h"

static inline void cleanup_addrinfo(struct addrinfo **list)
{
    if (*list)
        freeaddrinfo(*list);
}

/*
 * Connects to host (a numeric address, then nothing is looked up, or a name) and port. *ret_fd is
 * non-blocking, close-on-exec, without Nagle delay, and notices within half a minute that a silent peer is
 * gone. 0, CLIENT_E_TIMEOUT, CLIENT_E_INTERRUPTED, CLIENT_E_CLOSED (no address works now, it may later),
 * -errno (it makes no sense to try again). why: receives the reason, part of a sentence.
 *
 * The deadline does not cover a look-up: the resolver has its own (resolv.conf, 10 s and more).
 */
int sock_connect(const char *host, uint16_t port, int wake_fd, int64_t deadline_ns, int *ret_fd, char *why,
                 size_t why_size);

/* The same with one address, and without the options. 0, CLIENT_E_TIMEOUT, CLIENT_E_INTERRUPTED, -errno. */
int sock_connect_address(const struct addrinfo *address, int wake_fd, int64_t deadline_ns, int *ret_fd);
