/*
 * How the links of an inter-host communicator are made and closed, and messages between two ranks.
 *
 * The numbers of the two ranks and of the link identify a link at both ends; the host further back connects,
 * the host ahead claims. All ranks connect before they claim, and each rank's thread accepts connections
 * meanwhile, so no circle of ranks waits for each other.
 */

#include "base/cleanup.h"
#include "worker-runtime/net/inter_host_sock.h"

#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Numbers of links between two ranks. */
enum {
    LINK_RAIL = TOPOLOGY_ROUNDS_MAX, /* below: number of a round of the exchange */
    LINK_PAIR                        /* where the two ranks are neither before nor after each other */
};

static int world_rank(const struct inter_host *s, int rank)
{
    return s->world ? s->world[rank] : rank;
}

/* ---- coming to be ---- */

static bool allocate_buffers(struct inter_host *s, size_t world_size, size_t n_hosts)
{
    s->out = calloc(world_size, sizeof(void *));
    s->own = malloc(EXCHANGE_MAX);
    s->table = malloc(EXCHANGE_MAX);
    s->exchange.blocks = malloc(EXCHANGE_MAX);
    s->exchange.begins = calloc(n_hosts + 1, sizeof(*s->exchange.begins));
    s->locations = calloc(world_size, sizeof(*s->locations));
    s->views = calloc(world_size, sizeof(*s->views));
    s->targets = calloc(world_size, sizeof(*s->targets));
    return s->out && s->own && s->table && s->exchange.blocks && s->exchange.begins && s->locations &&
           s->views && s->targets;
}

static int allocate_inter_host(struct inter_host *s)
{
    if (!allocate_buffers(s, (size_t)s->topology.world_size, (size_t)s->topology.n_hosts))
        return -ENOMEM;
    s->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->interrupt_fd < 0 ? -errno : 0;
}

int inter_host_init(struct inter_host *s, struct net *net, uint32_t group, struct shm *shm, const int *keys,
                    int n_keys, int rank, int world_size, const int *world)
{
    *s = (struct inter_host){
        .shm = shm, .net = net_share(net), .group = group, .world = world, .interrupt_fd = -1};
    int r = net_add_group(net, group);
    if (r == 0)
        r = topology_init(&s->topology, keys, n_keys, world_size, rank);
    if (r == 0)
        r = allocate_inter_host(s);
    if (r < 0) {
        inter_host_finish(s);
        return crw_fail_errno(r, "cannot make a group of %d ranks", world_size);
    }
    s->wait = (struct net_wait){.interrupt_fd = s->interrupt_fd, .timeout_ms = shm->timeout_ms};
    s->exchange.flow.wait = &s->wait;
    s->exchange.topology = &s->topology;
    s->exchange.links = &s->links;
    shm->names = s->topology.ranks + s->topology.first[s->topology.host];
    return 0;
}

static void free_pairs(struct inter_host *s)
{
    for (int i = 0; s->pairs_out && s->pairs_in && i < s->topology.n_hosts; i++) {
        if (s->pairs_out[i] != s->after)
            net_link_close(s->pairs_out[i]);
        if (s->pairs_in[i] != s->before)
            net_link_close(s->pairs_in[i]);
    }
    free(s->pairs_out);
    free(s->pairs_in);
    s->pairs_out = s->pairs_in = NULL;
}

void inter_host_finish(struct inter_host *s)
{
    if (!s->net)
        return;
    free_pairs(s);
    for (int i = 0; i < TOPOLOGY_ROUNDS_MAX; i++) {
        net_link_close(s->links.ahead[i]);
        net_link_close(s->links.back[i]);
    }
    if (s->topology.local > 0) { /* else these are links of the exchange */
        net_link_close(s->before);
        net_link_close(s->after);
    }
    for (int i = 0; s->out && i < s->topology.world_size; i++)
        net_link_close(s->out[i]);
    net_forget_group(s->net, s->group);
    net_destroy(s->net);
    cleanup_close(&s->interrupt_fd); /* an eventfd: nothing is pending */
    if (s->shm->names)
        s->shm->names = NULL;
    if (s->shm->world_size == 1)
        free(s->staging);
    free(s->out);
    free(s->own);
    free(s->table);
    free(s->blocks);
    free(s->exchange.blocks);
    free(s->exchange.begins);
    free(s->locations);
    free(s->views);
    free(s->targets);
    free(s->ring);
    topology_finish(&s->topology);
    *s = (struct inter_host){0};
}

/* ---- links ---- */

/* The partner's rank on `host`, where hosts differ in size. */
static int partner_rank(const struct topology *h, int host, int local)
{
    return topology_rank(h, host, local % topology_host_size(h, host));
}

/* Number of ranks of a host further back with this rank as partner. */
static int n_partners(const struct topology *h, int host)
{
    int own = topology_host_size(h, h->host), theirs = topology_host_size(h, host);

    return h->local < theirs ? (theirs - 1 - h->local) / own + 1 : 0;
}

int inter_host_connect_controls(struct inter_host *s, int interrupt_fd)
{
    const struct net_wait wait = {.interrupt_fd = interrupt_fd, .timeout_ms = s->wait.timeout_ms};
    const struct topology *h = &s->topology;
    int n_expected = 0;

    for (int i = 0; i < topology_n_rounds(h->n_hosts); i++) {
        int rank = world_rank(s, partner_rank(h, topology_ahead(h, h->host, 1 << i), h->local));
        struct net_link *link;

        n_expected += n_partners(h, topology_ahead(h, h->host, -(1 << i)));
        TRY(net_connect(s->net, &wait, (struct net_hello){.purpose = NET_CONTROL}, rank, &link));
        TRY(net_add_control(s->net, rank, link));
    }
    return net_await_controls(s->net, &wait, n_expected);
}

/* ahead: we connect; else we claim. */
static int connect_link(struct inter_host *s, const struct net_wait *wait, int number, int distance,
                        bool ahead, struct net_link **ret)
{
    const struct topology *h = &s->topology;
    const struct net_hello hello = {.purpose = NET_DATA, .group = s->group, .link = (uint32_t)number};
    int local = number < LINK_RAIL ? 0 : h->local;
    int rank =
        world_rank(s, topology_rank(h, topology_ahead(h, h->host, ahead ? distance : -distance), local));

    return ahead ? net_connect(s->net, wait, hello, rank, ret) : net_claim(s->net, wait, hello, rank, ret);
}

static int connect_leader(struct inter_host *s, const struct net_wait *wait)
{
    int n = topology_n_rounds(s->topology.n_hosts);

    for (int i = 0; i < n; i++)
        TRY(connect_link(s, wait, i, 1 << i, true, &s->links.ahead[i]));
    for (int i = 0; i < n; i++)
        TRY(connect_link(s, wait, i, 1 << i, false, &s->links.back[i]));
    s->after = s->links.ahead[0];
    s->before = s->links.back[0];
    return 0;
}

static int connect_rail(struct inter_host *s, const struct net_wait *wait)
{
    TRY(connect_link(s, wait, LINK_RAIL, 1, true, &s->after));
    return connect_link(s, wait, LINK_RAIL, 1, false, &s->before);
}

int inter_host_connect(struct inter_host *s, int interrupt_fd)
{
    const struct net_wait wait = {.interrupt_fd = interrupt_fd, .timeout_ms = s->wait.timeout_ms};

    if (s->topology.local == 0)
        return connect_leader(s, &wait);
    return s->topology.local < s->topology.n_rails ? connect_rail(s, &wait) : 0;
}

static int connect_pairs(struct inter_host *s, struct net_link **out, struct net_link **in)
{
    const struct topology *h = &s->topology;

    out[topology_ahead(h, h->host, 1)] = s->after;
    in[topology_ahead(h, h->host, -1)] = s->before;
    for (int i = 2; i < h->n_hosts; i++)
        TRY(connect_link(s, &s->wait, LINK_PAIR, i, true, &out[topology_ahead(h, h->host, i)]));
    for (int i = 2; i < h->n_hosts; i++)
        TRY(connect_link(s, &s->wait, LINK_PAIR, i, false, &in[topology_ahead(h, h->host, -i)]));
    return 0;
}

int inter_host_need_pairs(struct inter_host *s)
{
    size_t n = (size_t)s->topology.n_hosts;
    struct net_link **out, **in;

    if (s->pairs_out)
        return 0;
    /* Arrays of pointers are meant. NOLINTBEGIN(bugprone-sizeof-expression) */
    out = calloc(n, sizeof(*out));
    in = calloc(n, sizeof(*in)); /* NOLINTEND(bugprone-sizeof-expression) */
    int r = out && in ? connect_pairs(s, out, in) : crw_fail_errno(-ENOMEM, "cannot connect with all hosts");
    s->pairs_in = in; /* also what is not complete: it is cut and closed with the rest */
    s->pairs_out = out;
    return r == 0 ? 0 : inter_host_break(s, r);
}

/* ---- messages ---- */

static bool inter_host_has_failed(void *data)
{
    const struct inter_host *s = data;

    return shm_has_failed(s->shm, s->shm->rank);
}

/* A lost message does not end the group: what was sent before is still read. */
static int message_result(struct inter_host *s, int r, int peer)
{
    switch (r) {
    case 0:
        return 0;
    case NET_E_INTERRUPTED:
        return shm_fail_result(s->shm, s->shm->rank);
    case NET_E_LOST:
        return crw_fail(CRW_E_PEER, "rank %d left the group while rank %d still waits for it", peer,
                        inter_host_own_rank(s));
    case -EBADMSG:
        return net_fail_changed(peer);
    case NET_E_TIMEOUT:
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_TIMEOUT, .rank = inter_host_own_rank(s)});
        inter_host_interrupt(s);
        return inter_host_break(s, crw_fail(CRW_E_TIMEOUT,
                                            "rank %d did not come within %d ms, so this group is over", peer,
                                            s->wait.timeout_ms));
    default:
        return crw_fail_errno(r, "cannot exchange messages with rank %d", peer);
    }
}

static int open_message_link(struct inter_host *s, int to)
{
    const struct net_hello hello = {.purpose = NET_MESSAGES, .group = s->group};

    return s->out[to] ? 0 : net_connect(s->net, &s->wait, hello, world_rank(s, to), &s->out[to]);
}

int inter_host_send(struct inter_host *s, const void *data, size_t n_bytes, int to)
{
    const uint64_t size = n_bytes;

    TRY(inter_host_has_failed(s) ? shm_fail_result(s->shm, s->shm->rank) : open_message_link(s, to));
    int r = net_link_send_all(&s->wait, s->out[to], &size, sizeof(size));
    if (r == 0)
        r = net_link_send_all(&s->wait, s->out[to], data, n_bytes);
    return message_result(s, r, to);
}

int inter_host_receive(struct inter_host *s, void *data, size_t n_bytes, int from)
{
    int rank = world_rank(s, from), r;
    uint64_t size;

    r = net_take(s->net, &s->wait, s->group, rank, &size, sizeof(size), inter_host_has_failed, s);
    if (r == 0)
        r = net_take(s->net, &s->wait, s->group, rank, size == n_bytes ? data : NULL, size,
                     inter_host_has_failed, s);
    if (r == 0 && size != n_bytes)
        return crw_fail(CRW_E_ARGUMENT,
                        "rank %d sent %zu bytes where rank %d expected %zu; the message was dropped", from,
                        (size_t)size, inter_host_own_rank(s), n_bytes);
    return message_result(s, r, from);
}
