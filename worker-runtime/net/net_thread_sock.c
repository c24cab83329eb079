/*
 * The thread polls all descriptors of the net without a time-out, except for those of pending
 * connections. An eventfd wakes it for changes. Nothing here blocks it: a record is a dozen bytes, and a
 * control connection that has no room for it is dead.
 */

#include "worker-runtime/net/net_impl_sock.h"

#include "proto/wait_sock.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

void net_signal(int wake_fd)
{
    const uint64_t one = 1;

    (void)!write(wake_fd, &one, sizeof(one)); /* an eventfd far from its maximum takes it */
}

/* The poll list is matched with the lists by walking them in the same order: only the thread removes
 * from the lists, and new entries are added in front. `first` is where the walk began. */
struct poll_turn {
    struct net_control *first_control;
    struct net_inbox *first_inbox;
    struct net_presence *first_presence;
    size_t n;
    int timeout_ms;
};

void net_free_ended(struct net *n)
{
    for (struct net_control **at = &n->controls; *at;) {
        struct net_control *c = *at;

        if (!c->ended) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        net_link_close(c->link); /* at its end */
        free(c);
    }
    for (struct net_inbox **at = &n->inboxes; *at;) {
        struct net_inbox *in = *at;

        if (!in->forgotten) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        net_free_inbox(in);
    }
    net_free_ended_presences(n);
}

static bool grow_polled(struct net *n)
{
    size_t wanted = 2 + (size_t)n->n_pending;
    struct pollfd *larger;

    for (struct net_control *c = n->controls; c; c = c->next)
        wanted++;
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        wanted++;
    for (struct net_presence *p = n->presences; p; p = p->next)
        wanted++;
    if (wanted <= n->n_polled_max)
        return true;
    larger = reallocarray(n->polled, 2 * wanted, sizeof(*larger));
    if (!larger)
        return false;
    n->polled = larger;
    n->n_polled_max = 2 * wanted;
    return true;
}

static int time_left_ms(int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - sock_now_ns();

    return left_ns > 0 ? (int)(left_ns / 1000000) + 1 : 0;
}

static void add_poll(struct net *n, struct poll_turn *t, int fd)
{
    n->polled[t->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void wake_at(struct poll_turn *t, int64_t deadline_ns)
{
    int left_ms = time_left_ms(deadline_ns);

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
    bool accepts;

    if (n->no_accept_ns > accepts_ns)
        accepts_ns = n->no_accept_ns;
    accepts = sock_now_ns() >= accepts_ns;
    add_poll(n, t, accepts ? n->listen_fd : -1);
    if (!accepts)
        wake_at(t, accepts_ns);
}

/* An inbox that was full, or lent, may have left decrypted bytes in the link, which poll() does not report. */
static void poll_inbox(struct net *n, struct poll_turn *t, const struct net_inbox *in)
{
    bool has_room = in->link && !in->lent && in->came - in->taken < NET_MESSAGE_ROOM;

    add_poll(n, t, has_room ? in->link->fd : -1);
    if (has_room && net_link_holds(in->link))
        t->timeout_ms = 0;
}

/* False when the thread shall end. */
static bool net_collect_polled(struct net *n, struct poll_turn *t)
{
    bool goes_on;

    *t = (struct poll_turn){.timeout_ms = -1};
    pthread_mutex_lock(&n->lock);
    net_free_ended(n);
    goes_on = !n->closing;
    if (grow_polled(n)) { /* without memory the newest are not polled until there is some */
        t->first_control = n->controls;
        t->first_inbox = n->inboxes;
        t->first_presence = n->presences;
    } else {
        t->timeout_ms = ACCEPT_PAUSE_MS;
    }
    add_poll(n, t, n->wake_fd);
    poll_listener(n, t);
    poll_pending(n, t);
    for (struct net_control *c = t->first_control; c; c = c->next)
        add_poll(n, t, c->link->fd);
    for (struct net_inbox *in = t->first_inbox; in; in = in->next)
        poll_inbox(n, t, in);
    for (struct net_presence *p = t->first_presence; p; p = p->next)
        add_poll(n, t, p->link->fd);
    pthread_mutex_unlock(&n->lock);
    return goes_on;
}

/* A borrower may use the link meanwhile. */
static bool inbox_link_holds(struct net *n, const struct net_inbox *in)
{
    bool holds;

    if (!in->link || !in->link->sealing)
        return false;
    pthread_mutex_lock(&n->lock);
    holds = !in->lent && net_link_holds(in->link);
    pthread_mutex_unlock(&n->lock);
    return holds;
}

static void handle_pending(struct net *n, const struct pollfd *fds)
{
    for (int i = 0; i < n->n_pending; i++)
        if (fds[i].fd >= 0 && (fds[i].revents || time_left_ms(net_pending_deadline_ns(&n->pending[i])) == 0))
            net_read_pending(n, &n->pending[i]);
}

static void net_handle_polled(struct net *n, const struct poll_turn *t)
{
    const struct pollfd *fds = n->polled;
    size_t at = 2 + (size_t)n->n_pending;

    if (fds[0].revents) {
        uint64_t count;

        (void)!read(n->wake_fd, &count, sizeof(count)); /* only to empty it */
    }
    handle_pending(n, fds + 2);
    for (struct net_control *c = t->first_control; c; c = c->next)
        if (fds[at++].revents)
            net_read_control(n, c);
    for (struct net_inbox *in = t->first_inbox; in; in = in->next, at++)
        if (fds[at].revents || inbox_link_holds(n, in))
            net_read_inbox(n, in);
    for (struct net_presence *p = t->first_presence; p; p = p->next)
        if (fds[at++].revents)
            net_read_presence(n, p);
    if (fds[1].revents) /* last: it may take slots from those that were polled */
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
