#include "worker-runtime/net_inside.h"

/*
 * What ranks of other hosts sent us waits in an inbox, a ring of bytes, one for each sender and group. The thread fills
 * it, whoever receives empties it.
 */

#include "proto/wait_sock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t stretch(uint64_t position, size_t n)
{
    size_t to_end = NET_MESSAGE_ROOM - (size_t)(position % NET_MESSAGE_ROOM);

    return n < to_end ? n : to_end;
}

/* Only the thread writes to the room, so that needs no lock. */
void net_read_inbox(struct net *n, struct net_inbox *in)
{
    for (;;) {
        size_t room;
        ssize_t got;

        pthread_mutex_lock(&n->lock);
        room = NET_MESSAGE_ROOM - (size_t)(in->came - in->taken);
        pthread_mutex_unlock(&n->lock);
        if (room == 0)
            return;
        got = net_receive(in->fd, in->room + in->came % NET_MESSAGE_ROOM, stretch(in->came, room));
        if (got == 0)
            return;
        pthread_mutex_lock(&n->lock);
        if (got > 0) {
            in->came += (uint64_t)got;
        } else {
            (void)close(in->fd); /* read to its end */
            in->fd = -1;
        }
        pthread_cond_broadcast(&n->changed);
        pthread_mutex_unlock(&n->lock);
        if (got < 0)
            return;
    }
}

void net_free_inbox(struct net_inbox *in)
{
    if (in->fd >= 0)
        (void)close(in->fd); /* nobody wants what comes */
    free(in->room);
    free(in);
}

bool net_keep_inbox(struct net *n, const struct net_hello *hello, int fd)
{
    struct net_inbox *in = calloc(1, sizeof(*in));
    uint8_t *room = malloc(NET_MESSAGE_ROOM);

    if (!in || !room) {
        free(in);
        free(room);
        return false;
    }
    *in = (struct net_inbox){
        .group = hello->group, .from = (int)hello->from, .fd = fd, .room = room, .next = n->inboxes};
    n->inboxes = in;
    return true;
}

static struct net_inbox *find_inbox(struct net *n, uint32_t group, int from)
{
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        if (in->group == group && in->from == from && !in->forgotten)
            return in;
    return NULL;
}

/* With the lock: until there is something in the inbox. */
static int await_bytes(struct net *n, uint32_t group, int from, int timeout_ms, bool (*is_over)(void *data),
                       void *over_data, struct net_inbox **ret_inbox)
{
    int64_t deadline_ns = sock_deadline_ns(timeout_ms);
    const struct timespec until = net_timespec(deadline_ns);

    for (;;) {
        struct net_inbox *in = find_inbox(n, group, from);

        if (in && in->came > in->taken) {
            *ret_inbox = in;
            return 0;
        }
        if (is_over(over_data))
            return NET_E_INTERRUPTED;
        /* What it sent before it left comes on another connection, until that ends, too. */
        if (in ? in->fd < 0 : n->left[from])
            return NET_E_LOST;
        if (sock_now_ns() >= deadline_ns)
            return NET_E_TIMEOUT;
        (void)pthread_cond_timedwait(&n->changed, &n->lock, &until); /* looks again, whatever it was */
    }
}

/* What was full is polled again. */
static void give_room(struct net *n, struct net_inbox *in, size_t taken)
{
    bool was_full = in->came - in->taken == NET_MESSAGE_ROOM;

    in->taken += taken;
    if (was_full)
        net_signal(n->wake_fd);
}

int net_take(struct net *n, uint32_t group, int from, void *data, size_t n_bytes, int timeout_ms,
             bool (*is_over)(void *data), void *over_data)
{
    size_t done = 0;
    int r = 0;

    pthread_mutex_lock(&n->lock);
    while (r == 0 && done < n_bytes) {
        struct net_inbox *in;
        size_t there, piece;

        r = await_bytes(n, group, from, timeout_ms, is_over, over_data, &in);
        if (r != 0)
            break;
        there = (size_t)(in->came - in->taken);
        piece = stretch(in->taken, n_bytes - done < there ? n_bytes - done : there);
        pthread_mutex_unlock(&n->lock); /* one taker at a time, and the thread does not write here */
        if (data)
            memcpy((uint8_t *)data + done, in->room + in->taken % NET_MESSAGE_ROOM, piece);
        pthread_mutex_lock(&n->lock);
        give_room(n, in, piece);
        done += piece;
    }
    pthread_mutex_unlock(&n->lock);
    return r;
}

void net_forget_group(struct net *n, uint32_t group)
{
    pthread_mutex_lock(&n->lock);
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        in->forgotten = in->forgotten || in->group == group;
    net_forget_waiting(n, group);
    pthread_mutex_unlock(&n->lock);
    net_signal(n->wake_fd);
}
