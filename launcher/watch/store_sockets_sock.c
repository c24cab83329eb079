#include "launcher/watch/store_sockets_sock.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/proc_stat_os.h"
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
    struct inet_diag_bc_op filter[4]; /* two comparisons, each followed by an operand */
};

/* Sockets in `state` with the remote port `port`. A failed comparison jumps 4 bytes behind the end of the filter. */
static struct question write_question(uint8_t family, int state, uint16_t port)
{
    return (struct question){
        .head = {.nlmsg_len = sizeof(struct question),
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .about = {.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = 1u << state},
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

/* False: end of the list, or refused by the kernel. */
static bool take_messages(struct store_sockets *s, struct nlmsghdr *h, unsigned n)
{
    for (; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
        if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || h->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
            return false;
        add_socket(s, NLMSG_DATA(h));
    }
    return true;
}

static void list_family(struct store_sockets *s, int diag, uint8_t family, int state, uint16_t port)
{
    const struct question q = write_question(family, state, port);
    _Alignas(struct nlmsghdr) char bytes[16384];
    ssize_t n;

    if (send(diag, &q, sizeof(q), 0) < 0)
        return;
    do
        n = recv(diag, bytes, sizeof(bytes), 0);
    while (n > 0 && take_messages(s, (struct nlmsghdr *)bytes, (unsigned)n));
}

static void list_sockets(struct store_sockets *s, int state, uint16_t port)
{
    const struct timeval limit = {.tv_sec = 1};
    _cleanup_close_ int diag = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

    if (diag < 0 || setsockopt(diag, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
        return;
    list_family(s, diag, AF_INET, state, port);
    list_family(s, diag, AF_INET6, state, port);
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

/* NULL: not in the list. */
static const struct store_socket *find_socket(const struct store_sockets *s, uint64_t inode)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->items[i].inode == inode)
            return &s->items[i];
    return NULL;
}

/* Calls found() with each socket of the process; listed: its entry in the list, or NULL. */
static void visit_sockets(const struct store_sockets *s, pid_t pid,
                          void (*found)(void *data, const struct store_socket *listed), void *data)
{
    struct folder_list list;
    const char *name;

    if (hang_is_blocked((unsigned char)proc_sample_state(pid)) ||
        folder_list_open(&list, "/proc/%d/fd", (int)pid) != 0)
        return;
    for (int i = 0; i < FDS_MAX && (name = folder_list_next(&list)); i++) {
        char target[64] = "";

        if (readlinkat(list.fd, name, target, sizeof(target) - 1) > 0 && strncmp(target, "socket:[", 8) == 0)
            found(data, find_socket(s, strtoull(target + 8, NULL, 10)));
    }
    folder_list_close(&list);
}

static void on_client(void *data, const struct store_socket *listed)
{
    if (listed)
        add_client(data, listed->client);
}

void store_sockets_find(uint16_t port, const struct proc_tree *trees, int rank_base, struct hang_rank *ranks,
                        size_t n_ranks)
{
    struct store_sockets s = {.items = calloc(SOCKETS_MAX, sizeof(*s.items))};

    if (s.items && port)
        list_sockets(&s, TCP_ESTABLISHED, port);
    for (size_t i = 0; s.n > 0 && i < n_ranks; i++) {
        const struct proc_tree *tree = &trees[ranks[i].rank - rank_base];

        for (int k = 0; k < tree->n_pids && !ranks[i].has_ended; k++)
            visit_sockets(&s, tree->pids[k], on_client, &ranks[i]);
    }
    free(s.items);
}

/* ---- servers ---- */

struct server_sockets {
    int n_listening, n_others;
};

static void on_server_socket(void *data, const struct store_socket *listed)
{
    struct server_sockets *server = data;

    server->n_listening += listed != NULL;
    server->n_others += listed == NULL;
}

/* "tfd: 5 events: 19 data: 5 pos:0 ino:1c5a sdev:8" for each descriptor; as many as fit. */
static bool any_listens(const struct store_sockets *s, pid_t pid, int epoll)
{
    char text[PROC_FILE_SIZE];
    bool any = false;

    (void)proc_file_read(pid, text, "fdinfo/%d", epoll);
    for (const char *at = text; !any && (at = strstr(at, " ino:")); at++)
        any = find_socket(s, strtoull(at + strlen(" ino:"), NULL, 16));
    return any;
}

bool store_sockets_serves(pid_t pid, int epoll)
{
    struct store_sockets s = {.items = calloc(SOCKETS_MAX, sizeof(*s.items))};
    struct server_sockets server = {.n_listening = 0};

    if (s.items)
        list_sockets(&s, TCP_LISTEN, 0);
    if (s.n > 0 && epoll < 0)
        visit_sockets(&s, pid, on_server_socket, &server);
    bool serves =
        epoll < 0 ? server.n_listening > 0 && server.n_others == 0 : s.n > 0 && any_listens(&s, pid, epoll);
    free(s.items);
    return serves;
}
