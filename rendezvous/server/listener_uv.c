/*
 * Sockets that listen. Accepting costs no name look-up and little else: the options of every connection
 * (TCP_NODELAY, keep-alive) are set once on the listener, and inherited by the kernel's accept().
 *
 * Connections are accepted in batches, so that ten thousand connections arriving together do not stall the
 * present clients. When file descriptors run out, accepting pauses: a new connection then waits in the
 * kernel's queue until another connection is closed, instead of being closed at once.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/own_user_os.h"
#include "base/unix_socket_os.h"
#include "proto/address.h"
#include "rendezvous/server/client_owner_os.h"
#include "rendezvous/server/server_impl_uv.h"

enum {
    ACCEPT_BATCH = 16,
    ACCEPT_RETRY_MS = 1000,
    KEEPALIVE_IDLE_S = 60,
    KEEPALIVE_INTERVAL_S = 10,
    KEEPALIVE_PROBES = 6,
    /* Bytes that the kernel takes beyond the sendable bytes. The default is 4 MiB for each client that does
     * not read, and a few hundred such clients use up the common memory of the host's TCP connections. */
    UNSENT_MAX = 128 * 1024,
};

struct listener {
    uv_poll_t poll;
    struct server *server;
    struct list link;
    int fd;
    char *unix_path;             /* NULL: TCP */
    char host[INET6_ADDRSTRLEN]; /* the address in numbers; "": a unix socket */
};

static void on_connection(uv_poll_t *poll, int status, int events);

/* ---- pausing ---- */

static void on_accept_timer(uv_timer_t *timer)
{
    listeners_resume(timer->data);
}

void listeners_pause(struct server *s, const char *why)
{
    if (s->accept_paused)
        return;
    s->accept_paused = true;
    server_log(s, -1, "%s with %u clients: new ones wait until others leave; raise the limit (ulimit -n)",
               why, s->n_peers);
    list_for_each(pos, &s->listeners)(void)
        uv_poll_stop(&list_entry(pos, struct listener, link)->poll);             /* always succeeds */
    (void)uv_timer_start(&s->accept_timer, on_accept_timer, ACCEPT_RETRY_MS, 0); /* has a callback */
}

static void start_polling(struct listener *l)
{
    /* Fails only when another handle watches the same fd, and the fd is ours. */
    (void)uv_poll_start(&l->poll, UV_READABLE, on_connection);
}

void listeners_resume(struct server *s)
{
    if (!s->accept_paused)
        return;
    s->accept_paused = false;
    (void)uv_timer_stop(&s->accept_timer); /* always succeeds */
    list_for_each(pos, &s->listeners) start_polling(list_entry(pos, struct listener, link));
}

/* ---- accepting ---- */

/* The first descriptor left to the process around the server. */
static uint64_t fd_limit(const struct server *s)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur > (rlim_t)s->reserve_fds ? limit.rlim_cur - (rlim_t)s->reserve_fds : 0;
}

/* For questions about the users of clients. */
static void open_diag(struct server *s)
{
    if (s->diag >= 0 || s->no_diag)
        return;
    s->diag = client_owner_open();
    s->no_diag = s->diag < 0;
    if (s->no_diag)
        server_log(s, -1, "the kernel does not name the users of clients (%s): %s", strerror(-s->diag),
                   s->security.require ? "all are refused" : "other users of this machine are not refused");
}

/* Zeros on failure. */
static int read_own_address(int fd, union address_endpoint *ret)
{
    socklen_t size = sizeof(*ret);

    *ret = (union address_endpoint){0};
    return getsockname(fd, &ret->any, &size) < 0 ? -errno : 0;
}

/* A process of the same machine has a loopback address, or in general the address of the listener. */
static bool may_be_local(int fd, const struct sockaddr *peer)
{
    union address_endpoint here;

    (void)read_own_address(fd, &here); /* zeros are no address of a peer */
    return conn_owner_is_local(address_network(peer)) || address_is_same_host(&here.any, peer);
}

/* 0, or -errno: the kernel names none. */
static int find_user(struct server *s, int fd, const struct sockaddr *peer, uid_t *ret)
{
    struct ucred user = {0};
    socklen_t size = sizeof(user);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size) == 0 && user.uid != (uid_t)-1) {
        *ret = user.uid;
        return 0;
    }
    if (s->diag < 0)
        return -EOPNOTSUPP;
    /* If all other users are refused, any address of the machine counts. */
    if (!s->security.own_user && !may_be_local(fd, peer))
        return -ENOENT;
    return client_owner_find(s->diag, fd, ret);
}

/* 0, or -errno: the owner is the peer's network. */
static int find_owner(struct server *s, int fd, struct conn_owner *ret)
{
    union address_endpoint peer = {0};
    socklen_t size = sizeof(peer);
    uid_t uid = 0;

    (void)getpeername(fd, &peer.any, &size); /* disconnected: as a peer on the machine */
    int r = find_user(s, fd, &peer.any, &uid);
    *ret =
        r == 0 ? conn_owner_user(uid, own_user_or_root(uid)) : conn_owner_network(address_network(&peer.any));
    return r;
}

/* With security.own_user; found: of find_owner(). */
static bool is_of_own_user(struct server *s, int fd, const struct conn_owner *owner, int found)
{
    if (found == 0 && owner->is_own)
        return true;
    if (found < 0 && s->no_diag)
        return !s->security.require;
    if (found == 0)
        server_log(s, fd, "belongs to user %u: refused (--security=open serves all users of this machine)",
                   (unsigned)conn_owner_uid(owner));
    else
        server_log(s, fd, "belongs to no process of this machine (%s): refused", strerror(-found));
    return false;
}

/* False: the caller closes fd. */
static bool admit_owner(struct server *s, int fd, struct conn_owner *ret)
{
    char from[64];

    if (s->security.own_user)
        open_diag(s);
    int found = find_owner(s, fd, ret);
    if (s->security.own_user && !is_of_own_user(s, fd, ret, found))
        return false;
    if (address_quota_take(&s->quota, fd, conn_owner_quota(ret)))
        return true;
    server_format_peer(fd, from, sizeof(from));
    server_log(s, -1,
               "%s: its address or user has %u connections, the limit (--max-connections-each): refused",
               from, s->quota.max);
    return false;
}

static void admit_client(struct server *s, int fd)
{
    enum admission_place place = admission_take(&s->admission, s->n_peers, (uint64_t)fd, fd_limit(s));
    bool for_agent = place != ADMISSION_OPEN && s->admission.reserved > 0;
    struct conn_owner owner;

    if (place == ADMISSION_NO_CONNECTION && !server_make_room(s, place)) {
        server_log(s, -1, "refused a client: %u are connected, the limit%s", s->n_peers,
                   server_option(s, " (--max-connections)"));
        (void)close(fd); /* nothing was sent on it */
        return;
    }
    if (!admit_owner(s, fd, &owner)) {
        (void)close(fd); /* nothing was sent on it */
        return;
    }
    int r = server_admit(s, NULL, fd, &owner, for_agent);
    if (r < 0) {
        address_quota_release(&s->quota, fd); /* fd is closed */
        server_log(s, -1, "refused a client: %s", strerror(-r));
    } else if (place != ADMISSION_NO_CONNECTION && !server_make_room(s, place) &&
               place == ADMISSION_NO_DESCRIPTOR) {
        listeners_pause(s, "file descriptors are nearly used up");
    }
}

void server_adopt(struct server *s, int fd)
{
    admit_client(s, fd);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct listener *l = poll->data;
    struct server *s = l->server;

    for (int i = 0; i < ACCEPT_BATCH && !s->accept_paused; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0)
            admit_client(s, fd);
        else if (errno == EAGAIN)
            return;
        else if (err_is_shortage(-errno) && !server_make_room(s, ADMISSION_NO_DESCRIPTOR))
            listeners_pause(s, strerror(errno));
        /* Any other error concerns a single connection. */
    }
}

/* ---- opening ---- */

static int set_listener_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {SOL_SOCKET, SO_REUSEADDR, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
        {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_MAX},
    };

    for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
        if (setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int)) < 0)
            return -errno;
    }
    return 0;
}

/* The kernel cuts the backlog to net.core.somaxconn. */
static int bind_and_listen(int fd, const struct sockaddr *address, socklen_t size)
{
    if (bind(fd, address, size) < 0 || listen(fd, INT_MAX) < 0)
        return -errno;
    return 0;
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct listener *l = handle->data;
    struct server *s = l->server;

    free(l->unix_path);
    free(l);
    server_handle_closed(s);
}

/* Takes *fd and unix_path (may be NULL) only on success. */
static int listener_create(struct server *s, int *fd, char *unix_path)
{
    union address_endpoint own;
    struct listener *l = calloc(1, sizeof(*l));
    int r = l ? read_own_address(*fd, &own) : -ENOMEM;

    if (r == 0)
        r = uv_poll_init(s->loop, &l->poll, *fd);
    if (r < 0) {
        free(l);
        return r;
    }
    (void)address_format(&own.any, l->host, sizeof(l->host)); /* "" for a unix socket */
    l->poll.data = l;
    l->server = s;
    l->fd = steal_fd(fd);
    l->unix_path = unix_path;
    server_handle_opened(s);
    list_append(&s->listeners, &l->link);
    if (!s->accept_paused)
        start_polling(l);
    return 0;
}

void listeners_close(struct server *s)
{
    list_for_each_entry_safe(struct listener, l, &s->listeners, link)
    {
        list_unlink(&l->link);
        if (l->unix_path)
            (void)unlink(l->unix_path); /* perhaps removed already */
        uv_close((uv_handle_t *)&l->poll, on_listener_closed);
        (void)close(l->fd); /* not polled any more */
    }
}

static int parse_address(const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *ret_size)
{
    *ret_size = sizeof(struct sockaddr_in6);
    if (uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret) == 0)
        return 0;
    *ret_size = sizeof(struct sockaddr_in);
    return uv_ip4_addr(host, port, (struct sockaddr_in *)ret) == 0 ? 0 : -EINVAL;
}

/* "::" takes IPv4 as well. */
static int open_dual_stack(int fd)
{
    int off = 0;

    return setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) < 0 ? -errno : 0;
}

static int open_tcp(const char *host, uint16_t port, int *ret_fd)
{
    struct sockaddr_storage address;
    socklen_t size;

    TRY(parse_address(host, port, &address, &size));
    _cleanup_close_ int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    TRY(set_listener_options(fd));
    if (strcmp(host, "::") == 0)
        TRY(open_dual_stack(fd));
    TRY(bind_and_listen(fd, (struct sockaddr *)&address, size));
    *ret_fd = steal_fd(&fd);
    return 0;
}

int server_open_tcp(const char *host, uint16_t port, int *ret_fd, uint16_t *ret_port)
{
    union address_endpoint own;
    _cleanup_close_ int fd = -1;
    int r = open_tcp(host, port, &fd);

    /* IPv6 is not built into the kernel, or switched off. */
    if ((r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL) && strcmp(host, "::") == 0)
        r = open_tcp("0.0.0.0", port, &fd);
    TRY(r);
    TRY(read_own_address(fd, &own));
    *ret_port = address_port(&own.any);
    *ret_fd = steal_fd(&fd);
    return 0;
}

int server_listen_tcp(struct server *s, const char *host, uint16_t port, uint16_t *ret_port)
{
    _cleanup_close_ int fd = -1;

    TRY(server_open_tcp(host, port, &fd, ret_port));
    return listener_create(s, &fd, NULL);
}

static bool takes_connections_to(const struct listener *l, const char *host)
{
    return strcmp(l->host, host) == 0 || strcmp(l->host, "::") == 0 || strcmp(l->host, "0.0.0.0") == 0;
}

bool server_listens_at(const struct server *s, const char *host)
{
    list_for_each(pos, &s->listeners)
    {
        if (takes_connections_to(list_entry(pos, struct listener, link), host))
            return true;
    }
    return false;
}

int server_listen_fd(struct server *s, int fd, uint16_t *ret_port)
{
    int flags = fcntl(fd, F_GETFL), is_listening = 0;
    socklen_t size = sizeof(is_listening);

    *ret_port = 0;
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) < 0)
        return -errno;
    if (!is_listening)
        return -EINVAL;
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    union address_endpoint own;
    TRY(read_own_address(fd, &own));
    if (own.any.sa_family != AF_UNIX)
        TRY(set_listener_options(fd));  /* else the options of the service manager */
    *ret_port = address_port(&own.any); /* 0 of a unix socket */
    return listener_create(s, &fd, NULL);
}

/* Removes a socket file without a listener behind it; other files are left alone. */
static int remove_stale(const struct sockaddr_un *address)
{
    struct stat st;

    if (lstat(address->sun_path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -EADDRINUSE;
    int is_stale = unix_socket_is_stale(address);
    if (is_stale <= 0)
        return is_stale ? is_stale : -EADDRINUSE;
    return unlink(address->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

int server_listen_unix(struct server *s, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (path[0] == '\0')
        return -EINVAL;
    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path));
    _cleanup_free_ char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    TRY(remove_stale(&address));
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    TRY(bind_and_listen(fd, (struct sockaddr *)&address, sizeof(address)));
    TRY(listener_create(s, &fd, copy));
    (void)steal_ptr(copy);
    return 0;
}
