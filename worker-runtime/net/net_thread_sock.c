/*
 * The thread polls all descriptors of the net without a time-out, except for those of pending
 * connections. An eventfd wakes the thread for changes. Nothing here blocks the thread: a record is a dozen
 * bytes, and a control connection without room for a record is dead.
 */

#include "base/array.h"
#include "worker-runtime/net/net_impl_sock.h"

#include "proto/wait_sock.h"

#include <poll.h>
#include <unistd.h>

/* The poll list is matched with the connections by walking them in the same order: only the thread removes connections,
 * and new connections are added in front. `first` is where the walk began. */
struct poll_turn {
    struct net_conn *first;
    size_t n;
    int timeout_ms;
};

static bool grow_polled(struct net *n)
{
    size_t wanted = 2 + (size_t)n->n_pending + n->n_conns;

    if (wanted <= n->n_polled_max)
        return true;
    if (!array_resize(n->polled, 2 * wanted))
        return false;
    n->n_polled_max = 2 * wanted;
    return true;
}

static void add_poll(struct net *n, struct poll_turn *t, int fd)
{
    n->polled[t->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void wake_at(struct poll_turn *t, int64_t deadline_ns)
{
    int left_ms = sock_left_ms(deadline_ns);

    if (t->timeout_ms < 0 || left_ms < t->timeout_ms)
        t->timeout_ms = left_ms;
}

static void poll_pending(struct net *n, struct poll_turn *t)
{
    for (int i = 0; i < n->n_pending; i++) {
        add_poll(n, t, n->pending[i].fd);
        if (n->pending[i].fd >= 0)
            wake_at(t, net_pending_deadline_ns(&n->pending[i]));
    }
}

static void poll_listener(struct net *n, struct poll_turn *t)
{
    int64_t accepts_ns = net_pending_free_ns(n);

    if (n->no_accept_ns > accepts_ns)
        accepts_ns = n->no_accept_ns;
    bool accepts = sock_now_ns() >= accepts_ns;
    add_poll(n, t, accepts ? n->listen_fd : -1);
    if (!accepts)
        wake_at(t, accepts_ns);
}

/* The thread is to receive on the connection. Caller holds the lock. */
static bool thread_receives(const struct net_conn *c)
{
    if (c->purpose == NET_MESSAGES)
        return c->link && !c->lent && c->came - c->taken < NET_MESSAGE_ROOM;
    return c->purpose != NET_DATA;
}

/* An inbox that was full, or lent, may have left decrypted bytes in the link: poll() does not report them. */
static void poll_conn(struct net *n, struct poll_turn *t, const struct net_conn *c)
{
    bool receives = thread_receives(c);

    add_poll(n, t, receives ? c->link->fd : -1);
    if (receives && c->purpose == NET_MESSAGES && net_link_holds(c->link))
        t->timeout_ms = 0;
}

/* False when the thread shall end. */
static bool net_collect_polled(struct net *n, struct poll_turn *t)
{
    *t = (struct poll_turn){.timeout_ms = -1};
    hold_lock(&n->lock);
    net_free_ended(n);
    bool goes_on = !n->closing;
    if (grow_polled(n)) /* without memory the newest are not polled until there is some */
        t->first = n->conns;
    else
        t->timeout_ms = ACCEPT_PAUSE_MS;
    add_poll(n, t, n->wake_fd);
    poll_listener(n, t);
    poll_pending(n, t);
    for (struct net_conn *c = t->first; c; c = c->next)
        poll_conn(n, t, c);
    return goes_on;
}

/* A borrower may use the link meanwhile. */
static bool inbox_link_holds(struct net *n, const struct net_conn *c)
{
    if (c->purpose != NET_MESSAGES || !c->link || !c->link->sealing)
        return false;
    hold_lock(&n->lock);
    return !c->lent && net_link_holds(c->link);
}

static void handle_pending(struct net *n, const struct pollfd *fds)
{
    for (int i = 0; i < n->n_pending; i++)
        if (fds[i].fd >= 0 && (fds[i].revents || sock_left_ms(net_pending_deadline_ns(&n->pending[i])) == 0))
            net_read_pending(n, &n->pending[i]);
}

static void (*const read_of[NET_PURPOSE_COUNT])(struct net *n, struct net_conn *c) = {
    [NET_CONTROL] = net_read_control,
    [NET_MESSAGES] = net_read_inbox,
    [NET_PRESENCE] = net_read_presence,
};

static void net_handle_polled(struct net *n, const struct poll_turn *t)
{
    const struct pollfd *fds = n->polled;
    size_t at = 2 + (size_t)n->n_pending;

    if (fds[0].revents) {
        uint64_t count;

        (void)!read(n->wake_fd, &count, sizeof(count)); /* only to empty the eventfd */
    }
    handle_pending(n, fds + 2);
    for (struct net_conn *c = t->first; c; c = c->next, at++)
        if (fds[at].revents || inbox_link_holds(n, c))
            read_of[c->purpose](n, c);
    if (fds[1].revents) /* last: a new connection may take the slot of a polled one */
        net_accept_all(n);
}

void *net_run(void *data)
{
    struct net *n = data;
    struct poll_turn poll_turn;

    while (net_collect_polled(n, &poll_turn)) {
        if (poll(n->polled, poll_turn.n, poll_turn.timeout_ms) < 0)
            continue; /* interrupted: signals are blocked here, but a debugger may stop the thread */
        net_handle_polled(n, &poll_turn);
    }
    return NULL;
}
