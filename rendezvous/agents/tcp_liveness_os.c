#include "rendezvous/agents/tcp_liveness_os.h"

#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* A lost packet is sent again after two, and after as many again. */
enum { ROUND_TRIPS = 4 };

void tcp_liveness_tune(int fd)
{
    const int yes = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &yes, sizeof(yes)); /* see above */
}

void tcp_liveness_limit(int fd, unsigned silence_ms)
{
    const int yes = 1, probes = 2, interval_s = (int)(silence_ms / (1000 * (unsigned)(probes + 1)));

    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms)); /* see above */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

static struct tcp_info get_info(int fd)
{
    struct tcp_info info = {.tcpi_last_ack_recv = UINT32_MAX};
    socklen_t size = sizeof(info);

    (void)getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size); /* then it is as above */
    return info;
}

uint32_t tcp_liveness_acknowledged_ms(int fd)
{
    return get_info(fd).tcpi_last_ack_recv;
}

static bool has_unread(int fd)
{
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t size = sizeof(memory);

    return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) == 0 && memory[SK_MEMINFO_RMEM_ALLOC] > 0;
}

uint64_t tcp_liveness_slack_ns(int fd)
{
    return has_unread(fd) ? UINT64_MAX : get_info(fd).tcpi_rtt * UINT64_C(1000) * ROUND_TRIPS;
}
