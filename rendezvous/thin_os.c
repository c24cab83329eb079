#include "rendezvous/thin_os.h"

#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

void thin_tune(int fd)
{
    const int yes = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &yes, sizeof(yes)); /* see above */
}

static uint32_t count_segments(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_data_segs_in : 0;
}

bool thin_stirs(int fd, uint32_t *ret_segments)
{
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t size = sizeof(memory);

    *ret_segments = count_segments(fd);
    return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) == 0 && memory[SK_MEMINFO_RMEM_ALLOC] > 0;
}
