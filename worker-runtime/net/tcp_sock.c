/*
 * A loopback address is fine: then all ranks are on one machine, in namespaces or as several "nodes" of one host.
 * The listener is bound to one address, so no other interface accepts
 * connections.
 */

#include "worker-runtime/net/tcp_sock.h"

#include "base/cleanup.h"
#include "proto/address.h"
#include "proto/client.h"
#include "proto/connect_sock.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

enum { BACKLOG = 4096, FDS_MAX = NET_POLL_MAX };

/* Linux 6.15; not in the headers of older systems. */
enum { OPTION_RTO_MIN_US = 45, OPTION_DELACK_MAX_US = 46 };
enum { RTO_MIN_US = 20 * 1000, DELACK_MAX_US = 8 * 1000 };

static bool set_option(int fd, int level, int option, int value)
{
    /* Each option only makes things better; the connection works without. */
    return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

static const char near_control[] = "reno";

/* Both ends have one address: nothing goes over a wire. */
static bool is_near(int fd)
{
    union address_endpoint own, other;
    socklen_t own_size = sizeof(own), other_size = sizeof(other);

    return getsockname(fd, &own.any, &own_size) == 0 && getpeername(fd, &other.any, &other_size) == 0 &&
           address_is_same_host(&own.any, &other.any);
}

/*
 * Probes find a dead host while nothing is to be sent. A stopped process is no dead host: its kernel
 * answers.
 *
 * While few packets are under way (a record, a hello, a block of the exchange), a packet that is lost twice is sent again at
 * steady intervals instead of growing intervals: on a line with packet loss all ranks wait for the slowest rank.
 *
 * No packet follows the last one of a message and makes the loss known, so only the timer sends the last packet again. The
 * kernel's shortest timer is 200 ms, because a receiver may delay an acknowledgement for as long. Both ends are ranks: a rank
 * delays no longer than 8 ms, and the shortest timer is 20 ms (of a longer line: the round trip and more). Kernels before 6.15
 * have no such option for a single connection; there the administrator can: ip route change ... rto_min 20ms.
 *
 * Data between ranks of one machine meets no congestion, and a congestion control with pacing (BBR is the default
 * of many hosts) only delays the data: long messages take twice as long, and the copies fall out of the
 * caches. Every kernel has Reno and allows Reno to every user. For traffic over a network the host's
 * default stays.
 */
void net_tune(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_option(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
    if (set_option(fd, IPPROTO_TCP, OPTION_DELACK_MAX_US, DELACK_MAX_US))
        set_option(fd, IPPROTO_TCP, OPTION_RTO_MIN_US, RTO_MIN_US);
    if (is_near(fd))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, near_control,
                         sizeof(near_control) - 1); /* as above */
}

void net_limit_silence(int fd, bool on)
{
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, on ? NET_SILENCE_MS : 0);
}

int net_listen(const char *address, int *ret_fd, uint16_t *ret_port)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    union address_endpoint bound;
    socklen_t size = sizeof(bound);
    _cleanup_(cleanup_addrinfo) struct addrinfo *list = NULL;

    if (getaddrinfo(address, "0", &hints, &list) != 0)
        return -EINVAL;
    _cleanup_close_ int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, &bound.any, &size) < 0)
        return -errno;
    *ret_port = address_port(&bound.any);
    *ret_fd = steal_fd(&fd);
    return 0;
}

int net_dial(const char *address, uint16_t port, const struct net_wait *wait, int *ret_fd)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    _cleanup_(cleanup_addrinfo) struct addrinfo *list = NULL;
    char service[8];

    (void)snprintf(service, sizeof(service), "%u", port); /* always fits */
    if (getaddrinfo(address, service, &hints, &list) != 0)
        return -EINVAL;
    int r = sock_connect_address(list, wait->interrupt_fd, sock_deadline_ns(wait->timeout_ms), ret_fd);
    if (r == CLIENT_E_INTERRUPTED)
        return NET_E_INTERRUPTED;
    return r == CLIENT_E_TIMEOUT ? -ETIMEDOUT : r;
}

int net_own_address(int fd, char address[NET_ADDRESS_SIZE])
{
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);

    if (getsockname(fd, (struct sockaddr *)&own, &size) < 0)
        return -errno;
    if (getnameinfo((struct sockaddr *)&own, size, address, NET_ADDRESS_SIZE, NULL, 0, NI_NUMERICHOST) != 0)
        return -EAFNOSUPPORT;
    return 0;
}

/* n: the result of a call that must not wait. */
static ssize_t moved(ssize_t n)
{
    if (n >= 0)
        return n;
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

ssize_t net_send(int fd, const void *data, size_t n_bytes)
{
    return moved(send(fd, data, n_bytes, MSG_DONTWAIT | MSG_NOSIGNAL));
}

ssize_t net_send_message(int fd, const struct msghdr *message)
{
    return moved(sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

ssize_t net_receive(int fd, void *data, size_t n_bytes)
{
    ssize_t n = recv(fd, data, n_bytes, MSG_DONTWAIT);

    return n == 0 ? -EPIPE : moved(n); /* 0: the other end has closed */
}

int net_result(ssize_t negative_errno)
{
    bool is_closed =
        negative_errno == -EPIPE || negative_errno == -ECONNRESET || negative_errno == -ECONNABORTED;

    return is_closed || net_is_unreachable(negative_errno) ? NET_E_LOST : (int)negative_errno;
}

int net_poll(const struct net_wait *wait, struct pollfd *fds, int n_fds)
{
    struct pollfd all[FDS_MAX + 1];
    int64_t deadline_ns = sock_deadline_ns(wait->timeout_ms);

    assert(n_fds <= FDS_MAX);
    all[0] = (struct pollfd){.fd = wait->interrupt_fd, .events = POLLIN};
    for (int i = 0; i < n_fds; i++)
        all[1 + i] = (struct pollfd){.fd = fds[i].events ? fds[i].fd : -1, .events = fds[i].events};
    for (;;) {
        int64_t left_ns = deadline_ns - sock_now_ns();
        struct timespec left = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};

        if (left_ns <= 0)
            return NET_E_TIMEOUT;
        int n = ppoll(all, 1 + (nfds_t)n_fds, &left, NULL);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0)
            break;
    }
    for (int i = 0; i < n_fds; i++)
        fds[i].revents = all[1 + i].revents;
    return all[0].revents ? NET_E_INTERRUPTED : 0;
}

bool net_is_unreachable(ssize_t negative_errno)
{
    int error = (int)-negative_errno;

    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
           error == EHOSTDOWN;
}
