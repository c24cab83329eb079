#include "launcher/watch/store_sockets_sock.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/watch/hang_report.h"
#include "launcher/watch/proc_sample_os.h"
#include "launcher/watch/store_waits.h"
#include "proto/address.h"

enum { SOCKETS_MAX = 1024 /* of all workers */, FDS_MAX = 4096 /* of a process */ };

struct store_sockets {
    struct store_socket {
        uint64_t inode, client;
    } * items;
    size_t n;
};

/* ---- the kernel's list ---- */

struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 about;
    struct nlattr attribute;
    struct inet_diag_bc_op filter[4]; /* two comparisons, each with its operand behind it */
};

/* Sockets with that remote port. A comparison that fails jumps 4 bytes behind the end of the filter. */
static struct question write_question(uint8_t family, uint16_t port)
{
    return (struct question){
        .head = {.nlmsg_len = sizeof(struct question),
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .about = {.sdiag_family = family,
                  .sdiag_protocol = IPPROTO_TCP,
                  .idiag_states = 1u << TCP_ESTABLISHED},
        .attribute = {.nla_len = 4 + 4 * sizeof(struct inet_diag_bc_op), .nla_type = INET_DIAG_REQ_BYTECODE},
        .filter = {{INET_DIAG_BC_D_GE, 8, 20}, {0, 0, port}, {INET_DIAG_BC_D_LE, 8, 12}, {0, 0, port}}};
}

static void add_socket(struct store_sockets *s, const struct inet_diag_msg *m)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6};
    uint8_t *to = at.sin6_addr.s6_addr;
    char host[64];

    if (m->idiag_family == AF_INET)
        to[10] = to[11] = 0xff; /* IPv4 as IPv6 */
    memcpy(m->idiag_family == AF_INET ? to + 12 : to, m->id.idiag_src, m->idiag_family == AF_INET ? 4 : 16);
    if (s->n < SOCKETS_MAX && m->idiag_inode && address_format((struct sockaddr *)&at, host, sizeof(host)))
        s->items[s->n++] = (struct store_socket){.inode = m->idiag_inode,
                                                 .client = store_client_of(host, ntohs(m->id.idiag_sport))};
}

/* False: the list has ended, or the kernel refuses it. */
static bool take_messages(struct store_sockets *s, struct nlmsghdr *h, unsigned n)
{
    for (; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
        if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || h->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
            return false;
        add_socket(s, NLMSG_DATA(h));
    }
    return true;
}

static void list_family(struct store_sockets *s, int diag, uint8_t family, uint16_t port)
{
    const struct question q = write_question(family, port);
    _Alignas(struct nlmsghdr) char bytes[16384];
    ssize_t n;

    if (send(diag, &q, sizeof(q), 0) < 0)
        return;
    do
        n = recv(diag, bytes, sizeof(bytes), 0);
    while (n > 0 && take_messages(s, (struct nlmsghdr *)bytes, (unsigned)n));
}

static void list_sockets(struct store_sockets *s, uint16_t port)
{
    const struct timeval limit = {.tv_sec = 1};
    _cleanup_close_ int diag = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

    if (diag < 0 || setsockopt(diag, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
        return;
    list_family(s, diag, AF_INET, port);
    list_family(s, diag, AF_INET6, port);
}

/* ---- descriptors ---- */

static void add_client(struct hang_rank *rank, uint64_t client)
{
    int i = 0;

    while (i < HANG_STORE_CLIENTS_MAX && rank->store_clients[i] && rank->store_clients[i] != client)
        i++;
    if (i < HANG_STORE_CLIENTS_MAX)
        rank->store_clients[i] = client;
}

static void look_at_descriptor(const struct store_sockets *s, int folder, const char *name,
                               struct hang_rank *rank)
{
    char target[64] = "";

    if (readlinkat(folder, name, target, sizeof(target) - 1) <= 0 || strncmp(target, "socket:[", 8) != 0)
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->items[i].inode == strtoull(target + 8, NULL, 10))
            add_client(rank, s->items[i].client);
}

static void look_at_process(const struct store_sockets *s, pid_t pid, struct hang_rank *rank)
{
    struct folder_list list;
    const char *name;
    char path[48];

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid); /* fits */
    if (hang_is_blocked((unsigned char)proc_sample_state(pid)) || folder_list_open(&list, path) != 0)
        return;
    for (int i = 0; i < FDS_MAX && (name = folder_list_next(&list)); i++)
        look_at_descriptor(s, list.fd, name, rank);
    folder_list_close(&list);
}

void store_sockets_find(uint16_t port, const struct proc_tree *trees, int rank_base, struct hang_rank *ranks,
                        size_t n_ranks)
{
    struct store_sockets s = {.items = calloc(SOCKETS_MAX, sizeof(*s.items))};

    if (s.items && port)
        list_sockets(&s, port);
    for (size_t i = 0; s.n > 0 && i < n_ranks; i++) {
        const struct proc_tree *tree = &trees[ranks[i].rank - rank_base];

        for (int k = 0; k < tree->n_pids && !ranks[i].has_ended; k++)
            look_at_process(&s, tree->pids[k], &ranks[i]);
    }
    free(s.items);
}
