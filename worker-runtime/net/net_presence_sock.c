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
    pthread_mutex_lock(&n->lock);
    group->next = n->groups;
    n->groups = group;
    pthread_mutex_unlock(&n->lock);
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

bool net_keep_presence(struct net *n, uint32_t group, int rank, struct net_link *link, bool ours)
{
    struct net_presence *p = malloc(sizeof(*p));

    if (!p)
        return false;
    *p =
        (struct net_presence){.link = link, .group = group, .rank = rank, .ours = ours, .next = n->presences};
    n->presences = p;
    return true;
}

bool net_watches_presence(const struct net *n, uint32_t group, int rank)
{
    const struct net_presence *p = n->presences;

    while (p && !(p->ours && !p->ended && p->group == group && p->rank == rank))
        p = p->next;
    return p;
}

void net_read_presence(struct net *n, struct net_presence *p)
{
    uint8_t byte;
    ssize_t got = net_link_receive(p->link, &byte, sizeof(byte));

    if (got == 0)
        return;
    pthread_mutex_lock(&n->lock);
    p->ended = true;
    if (got > 0 && p->ours && byte == left_record)
        net_mark_left(n, p->group, p->rank);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

void net_end_presences(struct net *n, uint32_t group)
{
    for (struct net_presence *p = n->presences; p; p = p->next) {
        if (p->group != group || p->ended)
            continue;
        if (!p->ours)
            (void)net_link_send(p->link, &left_record,
                                sizeof(left_record)); /* the first byte on it: there is room */
        p->ended = true;
    }
}

void net_free_ended_presences(struct net *n)
{
    for (struct net_presence **at = &n->presences; *at;) {
        struct net_presence *p = *at;

        if (!p->ended) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        net_link_close(p->link); /* at its end */
        free(p);
    }
}
