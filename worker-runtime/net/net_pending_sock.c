#include "worker-runtime/net/net_impl_sock.h"

/*
 * A connection counts once its hello has the token. Until then it is one of a few slots; when they are full
 * the oldest goes. It never gets an answer.
 */

#include "proto/wait_sock.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGER_MS = 5000 };

void net_drop_stranger(struct stranger *s)
{
    (void)close(s->fd); /* a stranger's */
    s->fd = -1;
}

static bool keep(struct net *n, const struct net_hello *hello, int fd)
{
    bool kept = false;

    pthread_mutex_lock(&n->lock);
    if (hello->purpose == NET_CONTROL)
        kept = net_keep_control(n, (int)hello->from, fd, false);
    else if (hello->purpose == NET_MESSAGES)
        kept = net_keep_inbox(n, hello, fd);
    else
        kept = net_keep_waiting(n, hello, fd);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return kept;
}

/* The whole hello is here. */
static void receive_stranger(struct net *n, struct stranger *s)
{
    struct net_hello hello;

    if (!net_hello_decode(s->bytes, (uint32_t)n->world_size, &hello) || hello.to != (uint32_t)n->rank ||
        !net_token_equal(hello.token, n->token)) {
        net_drop_stranger(s);
        return;
    }
    net_tune(s->fd);
    /* A new connection has room for the answer. */
    if (net_send(s->fd, n->token + NET_TOKEN_HALF, NET_TOKEN_HALF) != NET_TOKEN_HALF ||
        !keep(n, &hello, s->fd))
        net_drop_stranger(s);
    else
        s->fd = -1;
}

void net_read_stranger(struct net *n, struct stranger *s)
{
    ssize_t got = net_receive(s->fd, s->bytes + s->n, sizeof(s->bytes) - s->n);

    if (got < 0) {
        net_drop_stranger(s);
        return;
    }
    s->n += (size_t)got;
    if (s->n == sizeof(s->bytes))
        receive_stranger(n, s);
}

/* A free slot, or that of the oldest. */
static struct stranger *find_slot(struct net *n)
{
    struct stranger *oldest = &n->strangers[0];

    for (int i = 0; i < STRANGERS_MAX; i++) {
        if (n->strangers[i].fd < 0)
            return &n->strangers[i];
        if (n->strangers[i].deadline_ns < oldest->deadline_ns)
            oldest = &n->strangers[i];
    }
    net_drop_stranger(oldest);
    return oldest;
}

void net_accept_all(struct net *n)
{
    for (;;) {
        int fd = accept4(n->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN)
                n->no_accept_ns = sock_deadline_ns(NO_ACCEPT_MS);
            return;
        }
        *find_slot(n) = (struct stranger){.fd = fd, .deadline_ns = sock_deadline_ns(STRANGER_MS)};
    }
}
