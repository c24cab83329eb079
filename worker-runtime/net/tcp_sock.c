/*
 * An address that is only reachable from this machine is fine: then all ranks are on it, in namespaces
 * or as several "nodes" of one. The listener is bound to that one address, so no other interface accepts
 * connections.
 */

#include "worker-runtime/net/tcp_sock.h"

#include "base/cleanup.h"
#include "proto/wait_sock.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { BACKLOG = 4096, FDS_MAX = NET_POLL_MAX };

/* Linux 6.15; not in the headers of older systems. */
enum { OPTION_RTO_MIN_US = 45, OPTION_DELACK_MAX_US = 46 };
enum { RTO_MIN_US = 20 * 1000, DELACK_MAX_US = 8 * 1000 };

static bool set_option(int fd, int level, int option, int value)
{
    /* Each of these only makes things better; the connection works without. */
    return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

static const void *address_of(const struct sockaddr_storage *a, size_t *ret_size)
{
    if (a->ss_family == AF_INET6) {
        *ret_size = sizeof(struct in6_addr);
        return &((const struct sockaddr_in6 *)a)->sin6_addr;
    }
    *ret_size = sizeof(struct in_addr);
    return &((const struct sockaddr_in *)a)->sin_addr;
}

static const char near_control[] = "reno";

/* Both ends have one address: nothing goes over a wire. */
static bool is_near(int fd)
{
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_size = sizeof(own), other_size = sizeof(other);
    size_t n_own, n_other;
    const void *a, *b;

    if (getsockname(fd, (struct sockaddr *)&own, &own_size) < 0 ||
        getpeername(fd, (struct sockaddr *)&other, &other_size) < 0 || own.ss_family != other.ss_family)
        return false;
    a = address_of(&own, &n_own);
    b = address_of(&other, &n_other);
    return n_own == n_other && memcmp(a, b, n_own) == 0;
}

/*
 * Probes find a dead host while nothing is to be sent. A stopped process is no dead host: its kernel
 * answers.
 *
 * While few packets are under way (a record, a hello, a block of the exchange), one that is lost twice is sent again at
 * steady intervals instead of ever longer ones: on a line that loses packets all ranks wait for the slowest one.
 *
 * The last packet of a message has none behind it that would make its loss known, so only the timer sends it again. The
 * kernel's shortest one, 200 ms, is there because a receiver may delay an acknowledgement for as long. Both ends are ours: they
 * delay no longer than 8 ms, and the shortest timer is 20 ms (of a longer line: its round trip and more). Kernels before 6.15
 * cannot do that for a single connection; there the administrator can: ip route change ... rto_min 20ms.
 *
 * What stays on the machine meets no congestion, and a congestion control that paces (BBR is the default
 * of many hosts) only delays it: long messages take twice as long, and their copies fall out of the
 * caches. Every kernel has Reno and allows it to every user. For traffic over a network the host's
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

static uint16_t port_of(const struct sockaddr_storage *address)
{
    /* clang 14 loses the zeros behind the cast. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

int net_listen(const char *address, int *ret_fd, uint16_t *ret_port)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof(bound);
    _cleanup_close_ int fd = -1;
    struct addrinfo *list;
    int r;

    if (getaddrinfo(address, "0", &hints, &list) != 0)
        return -EINVAL;
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0 ||
                getsockname(fd, (struct sockaddr *)&bound, &size) < 0
            ? -errno
            : 0;
    freeaddrinfo(list);
    if (r < 0)
        return r;
    *ret_port = port_of(&bound);
    *ret_fd = steal_fd(&fd);
    return 0;
}

static int await_dialled(int fd, const struct net_wait *wait)
{
    struct pollfd polled = {.fd = fd, .events = POLLOUT};
    socklen_t size = sizeof(int);
    int error, r = net_poll(wait, &polled, 1);

    if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        return -errno;
    return r == 0 ? -error : r;
}

int net_dial(const char *address, uint16_t port, const struct net_wait *wait, int *ret_fd)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    _cleanup_close_ int fd = -1;
    struct addrinfo *list;
    char service[8];
    int r = 0;

    (void)snprintf(service, sizeof(service), "%u", port); /* always fits */
    if (getaddrinfo(address, service, &hints, &list) != 0)
        return -EINVAL;
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen) < 0)
        r = -errno;
    freeaddrinfo(list);
    if (r == -EINPROGRESS)
        r = await_dialled(fd, wait);
    if (r == 0)
        *ret_fd = steal_fd(&fd);
    return r;
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

static bool passes(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

ssize_t net_send(int fd, const void *data, size_t n_bytes)
{
    ssize_t n = send(fd, data, n_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n >= 0)
        return n;
    return passes(errno) ? 0 : -errno;
}

ssize_t net_send_message(int fd, const struct msghdr *message)
{
    ssize_t n = sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n >= 0)
        return n;
    return passes(errno) ? 0 : -errno;
}

ssize_t net_receive(int fd, void *data, size_t n_bytes)
{
    ssize_t n = recv(fd, data, n_bytes, MSG_DONTWAIT);

    if (n > 0)
        return n;
    if (n == 0)
        return -EPIPE; /* the other end has closed */
    return passes(errno) ? 0 : -errno;
}

int net_result(ssize_t negative_errno)
{
    switch (-negative_errno) {
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
        return NET_E_LOST;
    default:
        return (int)negative_errno;
    }
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
        int n;

        if (left_ns <= 0)
            return NET_E_TIMEOUT;
        n = ppoll(all, 1 + (nfds_t)n_fds, &left, NULL);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0)
            break;
    }
    for (int i = 0; i < n_fds; i++)
        fds[i].revents = all[1 + i].revents;
    return all[0].revents ? NET_E_INTERRUPTED : 0;
}

int net_receive_all(const struct net_wait *wait, int fd, void *data, size_t n_bytes)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};

    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = net_receive(fd, (uint8_t *)data + done, n_bytes - done);
        int r;

        if (n < 0)
            return net_result(n);
        done += (size_t)n;
        r = n == 0 ? net_poll(wait, &polled, 1) : 0;
        if (r)
            return r;
    }
    return 0;
}

bool net_is_unreachable(ssize_t negative_errno)
{
    int error = (int)-negative_errno;

    return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
           error == EHOSTDOWN;
}
