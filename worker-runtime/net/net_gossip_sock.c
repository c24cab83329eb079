/* Control connections and the gossip of failures on them. A rank that learns of an end first notifies
 * all ranks that it is connected to, so that each rank learns of it over the shortest way and passes
 * it on once. */

#include "base/lock_os.h"
#include "worker-runtime/net/net_impl_sock.h"

#include "proto/wait_sock.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/network_cut_os.h"

#include <errno.h>
#include <unistd.h>

void net_notify_all(struct net *n, const struct net_record *record)
{
    uint8_t bytes[NET_RECORD_SIZE];

    net_record_encode(record, bytes);
    for (struct net_conn *c = n->conns; c; c = c->next)
        if (c->purpose == NET_CONTROL && !c->ended)
            (void)net_link_send(c->link, bytes,
                                sizeof(bytes)); /* a connection without room is dead, and will end */
}

/* Caller holds the lock. False: known before. */
static bool notify_end_once(struct net *n, int rank, int detail)
{
    const struct net_record record = {NET_RECORD_ENDED, rank, detail};

    if (n->ended[rank] || n->closing)
        return false;
    n->ended[rank] = true;
    net_notify_all(n, &record);
    pthread_cond_broadcast(&n->changed);
    return true;
}

/* From the network. Caller does not hold the lock. */
static void take_end_record(struct net *n, int rank, int detail)
{
    if (rank == n->rank)
        return; /* another rank takes this one for dead: it will close the connections, and that ends the group */
    pthread_mutex_lock(&n->lock);
    bool is_new = notify_end_once(n, rank, detail);
    pthread_mutex_unlock(&n->lock);
    if (is_new)
        failure_detector_note_end(n->detector, (struct shm_failure){SHM_FAILURE_DIED, rank, detail});
}

void net_notify_end(void *data, int rank)
{
    struct net *n = data;

    hold_lock(&n->lock);
    (void)notify_end_once(n, rank, 0);
}

static void take_leave_record(struct net *n, struct net_conn *c)
{
    hold_lock(&n->lock);
    c->left = true;
    n->left[c->rank] = true;
    pthread_cond_broadcast(&n->changed);
}

static void take_record(struct net *n, struct net_conn *c)
{
    struct net_record record;

    c->n_record = 0;
    if (!net_record_decode(c->record, (uint32_t)n->world_size, &record))
        return; /* of an unknown kind: ignored */
    if (record.kind == NET_RECORD_LEAVES)
        take_leave_record(n, c);
    else
        take_end_record(n, record.rank, record.detail);
}

static int end_detail(ssize_t negative_errno)
{
    if (negative_errno == -EBADMSG)
        return SHM_DETAIL_CHANGED;
    return net_is_unreachable(negative_errno) ? SHM_DETAIL_UNREACHABLE : 0;
}

void net_read_control(struct net *n, struct net_conn *c)
{
    ssize_t got;

    for (;;) {
        got = net_link_receive(c->link, c->record + c->n_record, sizeof(c->record) - c->n_record);

        if (got == 0)
            return;
        if (got < 0)
            break;
        c->n_record += (size_t)got;
        if (c->n_record == sizeof(c->record))
            take_record(n, c);
    }
    pthread_mutex_lock(&n->lock);
    c->ended = true;
    pthread_mutex_unlock(&n->lock);
    if (!c->left && net_is_unreachable(got))
        network_cut_note(c->rank);
    if (!c->left)
        take_end_record(n, c->rank, end_detail(got));
}

int net_add_control(struct net *n, int rank, struct net_link *link)
{
    pthread_mutex_lock(&n->lock);
    bool kept =
        net_keep(n, (struct net_conn){.purpose = NET_CONTROL, .rank = rank, .link = link, .ours = true});
    pthread_mutex_unlock(&n->lock);
    if (!kept) {
        net_link_close(link); /* unused */
        return crw_fail_errno(-ENOMEM, "cannot keep a connection to rank %d", rank);
    }
    net_signal(n->wake_fd);
    return 0;
}

int net_await_controls(struct net *n, const struct net_wait *wait, int n_controls)
{
    int64_t deadline_ns = sock_deadline_ns(wait->timeout_ms);
    int r = 0;

    hold_lock(&n->lock);
    while (r == 0 && n->n_came < n_controls)
        r = net_await_change(n, wait, deadline_ns);
    if (r == NET_E_INTERRUPTED)
        return crw_fail(CRW_E_PEER, "a peer failed while this rank waited for ranks of other hosts");
    return r ? crw_fail(CRW_E_TIMEOUT, "ranks of other hosts did not connect within %d ms", wait->timeout_ms)
             : 0;
}
