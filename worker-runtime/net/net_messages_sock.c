/*
 * Messages of ranks of other hosts wait in an inbox, a ring of bytes, one for each sender and group. The
 * thread fills it, the receiver empties it. A receiver of a long message borrows the connection, and
 * receives where the bytes belong, without the thread and without a second copy.
 */

#include "worker-runtime/net/net_impl_sock.h"

#include "base/cond_os.h"
#include "base/err.h"
#include "proto/wait_sock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BORROW_MIN = 128 * 1024 }; /* bytes worth two wake-ups of the thread */

/* Of the presence of a sender without a connection so far (net_presence_sock.c). */
enum {
    PRESENCE_FIRST_MS = 100, /* the time in which a sender on the way connects */
    PRESENCE_LAST_MS = 10 * 1000,
    PRESENCE_ATTEMPT_MS = 1000,
    REASON_MS =
        500, /* a refused connection means the end of a process or of a group; the gossip has the reason */
};

static size_t inbox_stretch(uint64_t position, size_t n)
{
    size_t to_end = NET_MESSAGE_ROOM - (size_t)(position % NET_MESSAGE_ROOM);

    return n < to_end ? n : to_end;
}

/* Bytes to be read by the thread now; then `reading` is set until end_reading(). */
static size_t begin_reading(struct net *n, struct net_conn *in)
{
    hold_lock(&n->lock);
    size_t room = in->lent ? 0 : NET_MESSAGE_ROOM - (size_t)(in->came - in->taken);
    in->reading = room > 0;
    return room;
}

static void end_reading(struct net *n, struct net_conn *in, ssize_t got)
{
    hold_lock(&n->lock);
    in->reading = false;
    if (got > 0) {
        in->came += (uint64_t)got;
    } else if (got < 0) {
        net_link_close(in->link); /* read to the end */
        in->link = NULL;
        in->error = got == -EBADMSG ? -EBADMSG : 0;
    }
    if (got != 0 || in->lent)
        pthread_cond_broadcast(&n->changed);
}

/* Only the thread writes to the room, so writing needs no lock. */
void net_read_inbox(struct net *n, struct net_conn *in)
{
    ssize_t got = 1;

    while (got > 0) {
        size_t room = begin_reading(n, in);

        if (room == 0)
            return;
        got =
            net_link_receive(in->link, in->room + in->came % NET_MESSAGE_ROOM, inbox_stretch(in->came, room));
        end_reading(n, in, got);
    }
}

static struct net_conn *find_inbox(struct net *n, uint32_t group, int from)
{
    return net_find(n, &(struct net_conn){.purpose = NET_MESSAGES, .group = group, .rank = from});
}

struct message_taking {
    struct net *n;
    const struct net_wait *wait;
    uint32_t group;
    int from;
    uint8_t *data; /* NULL: to nowhere */
    size_t done;
    bool (*is_over)(void *data);
    void *over_data;
};

/* When to look after a sender without a connection. */
struct absence {
    int64_t ask_ns,
        absent_ns; /* absent_ns: the sender's listener is closed; the end of the wait for a reason */
    int pause_ms;
};

static struct net_conn watch_of(const struct message_taking *t, struct net_link *link)
{
    return (struct net_conn){
        .purpose = NET_PRESENCE, .group = t->group, .rank = t->from, .link = link, .ours = true};
}

/* Caller holds the lock; the call releases the lock meanwhile: a live sender answers after a round trip. */
static void ask_for_presence(const struct message_taking *t, struct absence *a)
{
    const struct net_wait wait = {.interrupt_fd = t->wait->interrupt_fd, .timeout_ms = PRESENCE_ATTEMPT_MS};
    const struct net_hello hello = {.purpose = NET_PRESENCE, .group = t->group};
    struct net *n = t->n;
    struct net_link *link = NULL;

    pthread_mutex_unlock(&n->lock);
    int r = net_connect_once(n, &wait, hello, t->from, &link);
    pthread_mutex_lock(&n->lock);
    if (r == 0 && net_keep(n, watch_of(t, link)))
        net_signal(n->wake_fd);
    else if (r == 0)
        net_link_close(link); /* no memory: asked again later */
    else if (r == NET_E_LEFT)
        net_mark_left(n, t->group, t->from);
    else if (r == -ECONNREFUSED && a->absent_ns == INT64_MAX)
        a->absent_ns = sock_deadline_ns(REASON_MS);
    a->ask_ns = sock_deadline_ns(a->pause_ms);
    a->pause_ms = 2 * a->pause_ms < PRESENCE_LAST_MS ? 2 * a->pause_ms : PRESENCE_LAST_MS;
}

static int64_t min_ns(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Caller holds the lock. Bytes sent by a rank before leaving are in an inbox by now, since the rank waited for the answer to the
 * hello. */
static int await_bytes(const struct message_taking *t, struct net_conn **ret_inbox)
{
    struct net *n = t->n;
    int64_t deadline_ns = sock_deadline_ns(t->wait->timeout_ms);
    const struct net_conn watched = watch_of(t, NULL);
    struct absence absence = {sock_deadline_ns(PRESENCE_FIRST_MS), INT64_MAX, PRESENCE_FIRST_MS};

    for (;;) {
        struct net_conn *in = find_inbox(n, t->group, t->from);
        bool asks = !in && !net_find(n, &watched);
        int64_t now_ns = sock_now_ns();

        if (in && in->came > in->taken) {
            *ret_inbox = in;
            return 0;
        }
        if (t->is_over(t->over_data))
            return NET_E_INTERRUPTED;
        if (in ? !in->link : net_has_left(n, t->group, t->from) || now_ns >= absence.absent_ns)
            return in && in->error ? in->error : NET_E_LOST;
        if (now_ns >= deadline_ns)
            return NET_E_TIMEOUT;
        if (asks && now_ns >= absence.ask_ns) {
            ask_for_presence(t, &absence);
            continue;
        }
        int64_t until_ns =
            asks ? min_ns(deadline_ns, min_ns(absence.ask_ns, absence.absent_ns)) : deadline_ns;
        (void)cond_wait_until(&n->changed, &n->lock,
                              (uint64_t)until_ns); /* looks again, whatever the reason */
    }
}

/* A full inbox is polled again. */
static void give_room(struct net *n, struct net_conn *in, size_t taken)
{
    bool was_full = in->came - in->taken == NET_MESSAGE_ROOM;

    in->taken += taken;
    if (was_full && !in->lent)
        net_signal(n->wake_fd);
}

/* With the lock: out of the inbox, until t->done is `end`. */
static int take_stored(struct message_taking *t, size_t end)
{
    while (t->done < end) {
        struct net_conn *in;

        TRY(await_bytes(t, &in));
        size_t there = (size_t)(in->came - in->taken);
        size_t piece = inbox_stretch(in->taken, end - t->done < there ? end - t->done : there);
        pthread_mutex_unlock(&t->n->lock); /* one taker at a time, and the thread does not write here */
        if (t->data)
            memcpy(t->data + t->done, in->room + in->taken % NET_MESSAGE_ROOM, piece);
        pthread_mutex_lock(&t->n->lock);
        give_room(t->n, in, piece);
        t->done += piece;
    }
    return 0;
}

/* With the lock. From now on the inbox gets nothing more; NULL: there is no connection to borrow. */
static struct net_conn *borrow_inbox(const struct message_taking *t)
{
    struct net_conn *in = find_inbox(t->n, t->group, t->from);

    if (!in || !in->link)
        return NULL;
    in->lent = true;
    while (in->reading) /* the thread waits for nothing meanwhile */
        (void)pthread_cond_wait(&t->n->changed, &t->n->lock);
    return in;
}

/* Bytes that have come are taken before the end of the wait is reported. */
static int receive_borrowed(struct message_taking *t, struct net_link *link, size_t end)
{
    struct pollfd polled = {.fd = link->fd, .events = POLLIN};
    int r = 0;

    while (t->done < end) {
        ssize_t got = net_link_receive(link, t->data + t->done, end - t->done);

        if (got < 0)
            return net_result(got);
        if (got == 0 && r != 0)
            return r;
        t->done += (size_t)got;
        r = got == 0 ? net_poll(t->wait, &polled, 1) : 0;
    }
    return 0;
}

/* With the lock: the stored bytes, and the rest from the connection. */
static int take_borrowed(struct message_taking *t, struct net_conn *in, size_t end)
{
    size_t stored = (size_t)(in->came - in->taken);
    int r = take_stored(t, stored < end ? stored : end);

    if (r == 0 && t->done < end && in->link) {
        pthread_mutex_unlock(&t->n->lock);
        r = receive_borrowed(t, in->link, end);
        pthread_mutex_lock(&t->n->lock);
    }
    in->lent = false; /* the end is for the thread to find */
    net_signal(t->n->wake_fd);
    return r;
}

int net_take(struct net *n, const struct net_wait *wait, uint32_t group, int from, void *data, size_t n_bytes,
             bool (*is_over)(void *data), void *over_data)
{
    struct message_taking t = {.n = n,
                               .wait = wait,
                               .group = group,
                               .from = from,
                               .data = data,
                               .is_over = is_over,
                               .over_data = over_data};

    hold_lock(&n->lock);
    struct net_conn *in = data && n_bytes >= BORROW_MIN ? borrow_inbox(&t) : NULL;
    if (in)
        TRY(take_borrowed(&t, in, n_bytes));
    return take_stored(&t, n_bytes);
}
