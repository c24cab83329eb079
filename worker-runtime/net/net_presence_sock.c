/*
 * How a rank that waits for a message learns that the sender has left the group in order.
 *
 * The gossip of net_gossip_sock.c publishes the end of a process. It does not publish that a rank destroyed its group
 * and goes on running: such a record would have to reach every member over connections of which the leaving rank is one
 * end, and every rank that relays it would have to store it. Instead a receiver that has waited for a while, and to which the sender
 * has never sent, connects to the sender (purpose NET_PRESENCE). The sender keeps that connection until it leaves the
 * group and then writes one byte; one that has left before refuses the hello.
 *
 *   receiver                        sender
 *   hello(group)          ->
 *                         <-        answer; or "left", and the end
 *                         <-        one byte, and the end: left the group
 *
 * An end without that byte is the end of the process or of the network: the gossip has its reason, and the receiver
 * connects again if it has not.
 */

#include "worker-runtime/net/net_impl_sock.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static const uint8_t left_record = 1;

/* ---- groups ---- */

struct net_group *net_find_group(const struct net *n, uint32_t id)
{
    struct net_group *group = n->groups;

    while (group && group->id != id)
        group = group->next;
    return group;
}

int net_add_group(struct net *n, uint32_t id)
{
    struct net_group *group = calloc(1, sizeof(*group) + (size_t)n->world_size);

    if (!group)
        return -ENOMEM;
    group->id = id;
    hold_lock(&n->lock);
    group->next = n->groups;
    n->groups = group;
    return 0;
}

void net_remove_group(struct net *n, uint32_t id)
{
    for (struct net_group **at = &n->groups; *at; at = &(*at)->next) {
        struct net_group *group = *at;

        if (group->id != id)
            continue;
        *at = group->next;
        free(group);
        return;
    }
}

bool net_has_left(const struct net *n, uint32_t id, int rank)
{
    const struct net_group *group = net_find_group(n, id);

    return n->left[rank] || (group && group->left[rank]);
}

void net_mark_left(struct net *n, uint32_t id, int rank)
{
    struct net_group *group = net_find_group(n, id);

    if (group)
        group->left[rank] = true;
    pthread_cond_broadcast(&n->changed);
}

/* ---- connections ---- */

void net_read_presence(struct net *n, struct net_conn *c)
{
    uint8_t byte;
    ssize_t got = net_link_receive(c->link, &byte, sizeof(byte));

    if (got == 0)
        return;
    hold_lock(&n->lock);
    c->ended = true;
    if (got > 0 && c->ours && byte == left_record)
        net_mark_left(n, c->group, c->rank);
    pthread_cond_broadcast(&n->changed);
}

void net_forget_group(struct net *n, uint32_t group)
{
    pthread_mutex_lock(&n->lock);
    for (struct net_conn *c = n->conns; c; c = c->next) {
        if (c->group != group || c->purpose == NET_CONTROL || c->ended)
            continue;
        if (c->purpose == NET_PRESENCE && !c->ours)
            (void)net_link_send(c->link, &left_record,
                                sizeof(left_record)); /* the first byte on it: there is room */
        c->ended = true;
    }
    net_remove_group(n, group);
    pthread_mutex_unlock(&n->lock);
    net_signal(n->wake_fd);
}
