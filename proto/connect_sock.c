/*
 * Name, addresses, connection. IPv4 and IPv6 addresses are tried in the resolver's order, each for a few
 * seconds at most, so that one that drops packets does not use up the time of the others.
 *
 * Ways it fails: no such name, connection refused, no route, no answer: CLIENT_E_CLOSED, as all of these pass
 * when the other host has come up. No descriptors or memory left: -errno.
 */

#include "proto/connect_sock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "proto/client.h"

enum { ADDRESS_TIMEOUT_MS = 5000 };

static int resolve_host(const char *host, uint16_t port, struct addrinfo **ret_list, char *why,
                        size_t why_size)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[8];

    (void)snprintf(service, sizeof(service), "%u", port); /* always fits */
    int r = getaddrinfo(host, service, &hints, ret_list);
    if (r == EAI_MEMORY)
        return -ENOMEM;
    if (r) {
        (void)snprintf(why, why_size, "%s", r == EAI_SYSTEM ? strerror(errno) : gai_strerror(r));
        *ret_list = NULL;
        return CLIENT_E_CLOSED;
    }
    return 0;
}

static void set_int_option(int fd, int level, int option, int value)
{
    /* Each of these only makes things better; the connection works without. */
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

/* A blocked WAIT is silent for minutes. Without probes a peer that lost its power would look the same. */
static void set_socket_options(int fd)
{
    set_int_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set_int_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 4);
    set_int_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
    set_int_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30000);
}

/* connect() is under way: how did it end? */
static int await_connection(int fd, int wake_fd, int64_t deadline_ns)
{
    socklen_t size = sizeof(int);
    int error = 0;

    TRY(sock_wait(wake_fd, fd, POLLOUT, deadline_ns));
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        return -errno;
    return -error;
}

int sock_connect_address(const struct addrinfo *address, int wake_fd, int64_t deadline_ns, int *ret_fd)
{
    _cleanup_close_ int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int r = 0;

    if (fd < 0)
        return -errno;
    if (connect(fd, address->ai_addr, address->ai_addrlen) < 0)
        r = errno == EINPROGRESS ? await_connection(fd, wake_fd, deadline_ns) : -errno;
    if (r)
        return r;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* These are about us, not about the address, and do not pass by waiting for the peer. */
static bool is_ours(int r)
{
    return err_is_shortage(r) || r == -EFAULT;
}

int sock_connect(const char *host, uint16_t port, int wake_fd, int64_t deadline_ns, int *ret_fd, char *why,
                 size_t why_size)
{
    _cleanup_(cleanup_addrinfo) struct addrinfo *list = NULL;
    int r = resolve_host(host, port, &list, why, why_size);

    if (r)
        return r;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int64_t address_deadline_ns = sock_deadline_ns(ADDRESS_TIMEOUT_MS);

        if (address_deadline_ns > deadline_ns)
            address_deadline_ns = deadline_ns;
        r = sock_connect_address(a, wake_fd, address_deadline_ns, ret_fd);
        if (r == 0)
            set_socket_options(*ret_fd);
        if (r == 0 || r == CLIENT_E_INTERRUPTED || is_ours(r))
            return r;
        (void)snprintf(why, why_size, "%s", strerror(r == CLIENT_E_TIMEOUT ? ETIMEDOUT : -r));
        if (sock_now_ns() >= deadline_ns)
            return CLIENT_E_TIMEOUT;
    }
    return CLIENT_E_CLOSED;
}
