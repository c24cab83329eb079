#include "rendezvous/server/client_owner_os.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"

struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 about;
};

union answer {
    struct nlmsghdr head;
    char bytes[4096];
};

/* The kernel answers before send() returns, so that recv() never waits. Bytes of the answer, or -errno. */
static ssize_t ask(int diag, const struct question *q, union answer *ret)
{
    if (send(diag, q, sizeof(*q), 0) < 0)
        return -errno;
    ssize_t n = recv(diag, ret, sizeof(*ret), 0);
    if (n < 0)
        return -errno;
    return (size_t)n < sizeof(ret->head) ? -EPROTO : n;
}

/* A kernel that cannot list TCP sockets answers -ENOENT to every question, as if there were no such socket. A list of
 * sockets in no state at all costs nothing, and ends without an error where there are lists. */
static int try_list(int diag)
{
    const struct question q = {.head = {.nlmsg_len = sizeof(q),
                                        .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                                        .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                               .about = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP}};
    union answer answer = {0};
    ssize_t n = ask(diag, &q, &answer);

    if (n < 0)
        return (int)n;
    return answer.head.nlmsg_type == NLMSG_DONE ? 0 : -EOPNOTSUPP;
}

int client_owner_open(void)
{
    _cleanup_close_ int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);

    const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};

    /* Connected: the sandbox lets nothing be sent to an address. */
    if (fd < 0 || connect(fd, (const struct sockaddr *)&kernel, sizeof(kernel)) < 0)
        return -errno;
    TRY(try_list(fd));
    return steal_fd(&fd);
}

static int put_end(const struct sockaddr_storage *end, uint8_t *ret_family, __be32 *address, __be16 *port)
{
    if (end->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)end;
        memcpy(address, &in->sin_addr, sizeof(in->sin_addr));
        *port = in->sin_port;
    } else if (end->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)end;
        memcpy(address, &in6->sin6_addr, sizeof(in6->sin6_addr));
        *port = in6->sin6_port;
    } else {
        return -EAFNOSUPPORT;
    }
    *ret_family = (uint8_t)end->ss_family;
    return 0;
}

/* The question is about the client's socket, whose source is the server's peer. An IPv4 client of a socket of IPv6 is found
 * by its mapped address. */
static int write_question(int fd, struct question *q)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof(here), there_size = sizeof(there);

    if (getsockname(fd, (struct sockaddr *)&here, &here_size) < 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_size) < 0)
        return -errno;
    *q = (struct question){
        .head = {.nlmsg_len = sizeof(*q), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .about = {.sdiag_protocol = IPPROTO_TCP,
                  .idiag_states = UINT32_MAX,
                  .id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}};
    TRY(put_end(&there, &q->about.sdiag_family, q->about.id.idiag_src, &q->about.id.idiag_sport));
    return put_end(&here, &q->about.sdiag_family, q->about.id.idiag_dst, &q->about.id.idiag_dport);
}

/* Where there is no such connection the kernel names the socket that listens at the port of the client's end, if one does. */
static bool is_asked_for(const struct inet_diag_sockid *asked, const struct inet_diag_msg *socket)
{
    return socket->idiag_state != TCP_LISTEN && socket->id.idiag_sport == asked->idiag_sport &&
           socket->id.idiag_dport == asked->idiag_dport;
}

static int read_answer(const struct question *q, const union answer *answer, size_t n_bytes, uid_t *ret_uid)
{
    struct nlmsgerr error;
    struct inet_diag_msg socket = {0};

    if (answer->head.nlmsg_type == NLMSG_ERROR && n_bytes >= NLMSG_HDRLEN + sizeof(error)) {
        memcpy(&error, answer->bytes + NLMSG_HDRLEN, sizeof(error));
        return error.error < 0 ? error.error : -EPROTO;
    }
    if (answer->head.nlmsg_type != SOCK_DIAG_BY_FAMILY || n_bytes < NLMSG_HDRLEN + sizeof(socket))
        return -EPROTO;
    memcpy(&socket, answer->bytes + NLMSG_HDRLEN, sizeof(socket));
    if (!is_asked_for(&q->about.id, &socket))
        return -ENOENT;
    /* No process has it open any more. Newer kernels remember its user; older ones name root. */
    if (socket.idiag_inode == 0 && socket.idiag_uid == 0)
        return -ENOTCONN;
    *ret_uid = socket.idiag_uid;
    return 0;
}

int client_owner_find(int diag, int fd, uid_t *ret_uid)
{
    union answer answer = {0};
    struct question q = {0};

    TRY(write_question(fd, &q));
    ssize_t n = ask(diag, &q, &answer);
    return n < 0 ? (int)n : read_answer(&q, &answer, (size_t)n, ret_uid);
}
