#include "worker-runtime/net/net_impl_sock.h"

/*
 * Control connections and the news that go along them. Whoever hears of an end first tells it to all that it is
 * connected to, so that each rank hears of it over the shortest way and tells it once.
 */

#include "proto/wait_sock.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static void send_news(const struct net_control *c, const struct net_news *news)
{
    uint8_t bytes[NET_NEWS_SIZE];

    net_news_encode(news, bytes);
    if (!c->gone)
        (void)net_send(c->fd, bytes, sizeof(bytes)); /* it is dead if it has no room, and we will know */
}

void net_tell_all(struct net *n, const struct net_news *news)
{
    for (struct net_control *c = n->controls; c; c = c->next)
        send_news(c, news);
}

/* With the lock. False: known before. */
static bool spread_end(struct net *n, int rank, int detail)
{
    const struct net_news news = {NET_NEWS_ENDED, rank, detail};

    if (n->ended[rank] || n->closing)
        return false;
    n->ended[rank] = true;
    net_tell_all(n, &news);
    pthread_cond_broadcast(&n->changed);
    return true;
}

/* From the network, without the lock. */
static void hear_of_end(struct net *n, int rank, int detail)
{
    bool is_new;

    if (rank == n->rank)
        return; /* others think so: they will end the connections, and that tells us what it means */
    pthread_mutex_lock(&n->lock);
    is_new = spread_end(n, rank, detail);
    pthread_mutex_unlock(&n->lock);
    if (is_new)
        watch_note_end(n->watch, (struct shm_failure){SHM_FAILURE_DIED, rank, detail});
}

void net_tell_end(void *data, int rank)
{
    struct net *n = data;

    pthread_mutex_lock(&n->lock);
    (void)spread_end(n, rank, 0);
    pthread_mutex_unlock(&n->lock);
}

static void hear_goodbye(struct net *n, struct net_control *c)
{
    pthread_mutex_lock(&n->lock);
    c->left = true;
    n->left[c->rank] = true;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void hear(struct net *n, struct net_control *c)
{
    struct net_news news;

    c->n = 0;
    if (!net_news_decode(c->bytes, (uint32_t)n->world_size, &news))
        return; /* of no kind that we know: nothing to do about it */
    if (news.kind == NET_NEWS_LEAVES)
        hear_goodbye(n, c);
    else
        hear_of_end(n, news.rank, news.detail);
}

void net_read_control(struct net *n, struct net_control *c)
{
    for (;;) {
        ssize_t got = net_receive(c->fd, c->bytes + c->n, sizeof(c->bytes) - c->n);

        if (got == 0)
            return;
        if (got < 0)
            break;
        c->n += (size_t)got;
        if (c->n == sizeof(c->bytes))
            hear(n, c);
    }
    pthread_mutex_lock(&n->lock);
    c->gone = true;
    pthread_mutex_unlock(&n->lock);
    if (!c->left)
        hear_of_end(n, c->rank, 0);
}

bool net_keep_control(struct net *n, int rank, int fd, bool ours)
{
    struct net_control *c = calloc(1, sizeof(*c));

    if (!c)
        return false;
    *c = (struct net_control){.fd = fd, .rank = rank, .next = n->controls};
    n->controls = c;
    n->n_came += !ours;
    return true;
}

int net_add_control(struct net *n, int rank, int fd)
{
    bool kept;

    pthread_mutex_lock(&n->lock);
    kept = net_keep_control(n, rank, fd, true);
    pthread_mutex_unlock(&n->lock);
    if (!kept) {
        (void)close(fd); /* unused */
        return crw_fail_errno(-ENOMEM, "cannot keep a connection to rank %d", rank);
    }
    net_signal(n->wake_fd);
    return 0;
}

int net_await_controls(struct net *n, const struct net_wait *wait, int n_controls)
{
    int64_t deadline_ns = sock_deadline_ns(wait->timeout_ms);
    int r = 0;

    pthread_mutex_lock(&n->lock);
    while (r == 0 && n->n_came < n_controls) {
        if (net_is_interrupted(wait))
            r = NET_E_INTERRUPTED;
        else if (sock_now_ns() >= deadline_ns)
            r = NET_E_TIMEOUT;
        else
            net_wait_a_while(n, deadline_ns);
    }
    pthread_mutex_unlock(&n->lock);
    if (r == NET_E_INTERRUPTED)
        return crw_fail(CRW_E_PEER, "a peer failed while this rank waited for ranks of other hosts");
    return r ? crw_fail(CRW_E_TIMEOUT, "ranks of other hosts did not connect within %d ms", wait->timeout_ms)
             : 0;
}
