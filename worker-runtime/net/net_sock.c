/* Creation, sharing and end of a rank's net. The other files: net_impl_sock.h. */

#include "worker-runtime/net/net_impl_sock.h"

#include "base/cond_os.h"
#include "base/thread_os.h"
#include "proto/key_memory_os.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void net_free(struct net *n)
{
    for (struct net_conn *c = n->conns; c; c = c->next)
        c->ended = true;
    net_free_ended(n);
    while (n->groups)
        net_remove_group(n, n->groups->id);
    net_pending_finish(n);
    cleanup_close(&n->listen_fd);
    cleanup_close(&n->wake_fd); /* an eventfd: nothing is pending */
    free(n->peers);
    free(n->polled);
    free(n->ended);
    free(n->left);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    key_memory_free(n->key, sizeof(*n->key));
    free(n);
}

static struct net *net_new(int rank, int world_size, struct failure_detector *detector)
{
    struct net *n = calloc(1, sizeof(*n));

    if (!n)
        return NULL;
    *n = (struct net){
        .rank = rank,
        .world_size = world_size,
        .detector = detector,
        .n_users = 1,
        .next_group = 1,
        .listen_fd = -1,
        .wake_fd = -1,
        .differs = -1,
        .peers = calloc((size_t)world_size, sizeof(*n->peers)),
        .ended = calloc((size_t)world_size, 1),
        .left = calloc((size_t)world_size, 1),
        .key = key_memory_new(sizeof(*n->key)),
    };
    pthread_mutex_init(&n->lock, NULL);
    cond_init(&n->changed);
    if (net_pending_init(n) && n->peers && n->ended && n->left && n->key)
        return n;
    net_free(n);
    return NULL;
}

static int open_listener(struct net *n, const char *address)
{
    n->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->wake_fd < 0)
        return crw_fail_errno(-errno, "cannot listen for ranks of other hosts");
    int r = net_listen(address, &n->listen_fd, &n->self.port);
    if (r < 0)
        return crw_fail_errno(r, "cannot listen for ranks of other hosts on address %s", address);
    (void)stpncpy(n->self.address, address, sizeof(n->self.address) - 1);
    return 0;
}

int net_create(const char *address, int rank, int world_size, struct failure_detector *detector,
               struct net **ret)
{
    struct net *n = net_new(rank, world_size, detector);

    if (!n)
        return crw_fail_errno(-ENOMEM, "cannot listen for ranks of other hosts");
    int r = open_listener(n, address);
    if (r)
        net_free(n);
    else
        *ret = n;
    return r;
}

struct net *net_share(struct net *n)
{
    hold_lock(&n->lock);
    n->n_users++;
    return n;
}

/* The record is sent before the connections close, so that their end is no failure. */
void net_destroy(struct net *n)
{
    const struct net_record goodbye = {NET_RECORD_LEAVES, n ? n->rank : 0, 0};

    if (!n)
        return;
    pthread_mutex_lock(&n->lock);
    bool last = --n->n_users == 0;
    n->closing = last;
    if (last)
        net_notify_all(n, &goodbye);
    pthread_mutex_unlock(&n->lock);
    if (!last)
        return;
    failure_detector_set_notifier(n->detector, NULL, NULL);
    if (n->running) {
        net_signal(n->wake_fd);
        pthread_join(n->thread, NULL);
    }
    net_free(n);
}

const struct net_peer *net_self(const struct net *n)
{
    return &n->self;
}

int net_start(struct net *n, const struct net_peer *peers, const uint8_t *token, const struct job_key *key)
{
    memcpy(n->peers, peers, (size_t)n->world_size * sizeof(*peers));
    memcpy(n->token, token, NET_TOKEN);
    *n->key = *key;
    int r = thread_start(&n->thread, net_run, n);
    if (r < 0)
        return crw_fail_errno(r, "cannot start a thread for ranks of other hosts");
    n->running = true;
    failure_detector_set_notifier(n->detector, net_notify_end, n);
    return 0;
}

uint32_t net_next_group(const struct net *n)
{
    return n->next_group;
}

void net_use_group(struct net *n, uint32_t group)
{
    if (group >= n->next_group)
        n->next_group = group + 1;
}

void net_wake(struct net *n)
{
    hold_lock(&n->lock);
    pthread_cond_broadcast(&n->changed);
}
