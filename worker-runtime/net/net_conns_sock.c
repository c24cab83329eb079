/* The list of verified connections, and the signal to the thread that polls them. */

#include "worker-runtime/net/net_impl_sock.h"

#include <stdlib.h>
#include <unistd.h>

void net_signal(int wake_fd)
{
    const uint64_t one = 1;

    (void)!write(wake_fd, &one, sizeof(one)); /* an eventfd far from the maximum takes the number */
}

bool net_keep(struct net *n, struct net_conn conn)
{
    struct net_conn *c = malloc(sizeof(*c));

    if (c && conn.purpose == NET_MESSAGES)
        conn.room = malloc(NET_MESSAGE_ROOM);
    if (!c || (conn.purpose == NET_MESSAGES && !conn.room)) {
        free(c);
        return false;
    }
    *c = conn;
    c->next = n->conns;
    n->conns = c;
    n->n_conns++;
    n->n_came += c->purpose == NET_CONTROL && !c->ours;
    return true;
}

struct net_conn *net_find(const struct net *n, const struct net_conn *like)
{
    struct net_conn *c = n->conns;

    while (c && (c->ended || c->purpose != like->purpose || c->group != like->group ||
                 c->number != like->number || c->rank != like->rank || c->ours != like->ours))
        c = c->next;
    return c;
}

void net_free_ended(struct net *n)
{
    for (struct net_conn **at = &n->conns; *at;) {
        struct net_conn *c = *at;

        if (!c->ended) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        n->n_conns--;
        net_link_close(c->link); /* at its end, or without a use */
        free(c->room);
        free(c);
    }
}
