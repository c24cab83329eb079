/*
 * Everything here is positions that only grow: sent and came, by host, and combined: bytes of the result that are done.
 * What came of a host is in a ring of its own until all others have sent as much.
 */

#include "worker-runtime/net/pairwise_reduce_sock.h"

#include "base/err.h"
#include "base/minmax.h"
#include "worker-runtime/shm/reduce_ops.h"

#include <assert.h>

enum {
    LINE = 64,
    BLOCK = 16 * 1024,     /* bytes that are combined at once */
    SEND_MAX = 128 * 1024, /* at once: do not keep the other hosts waiting */
};

struct pairwise_state {
    struct pairwise *p;
    const uint8_t *data;
    uint8_t *result;
    size_t n_bytes, element; /* of a part; of an element */
    enum crw_dtype dtype;
    enum crw_op op;
    size_t ring; /* bytes of one host's */
    size_t sent[PAIRWISE_HOSTS_MAX], came[PAIRWISE_HOSTS_MAX];
    size_t combined;
};

static uint8_t *ring_of(const struct pairwise_state *st, int host)
{
    return st->p->room + (size_t)host * st->ring;
}

static size_t pullable(const struct pairwise_state *st, int host)
{
    return min_size(st->n_bytes - st->came[host], st->ring - (st->came[host] - st->combined));
}

static int push_to(struct pairwise_state *st, int host)
{
    const uint8_t *from = st->data + (size_t)host * st->n_bytes + st->sent[host];
    size_t n = min_size(st->n_bytes - st->sent[host], SEND_MAX);
    struct net_link *link = st->p->out[host];

    return n > 0 ? net_flow_note(&st->p->flow, link, net_link_send(link, from, n), &st->sent[host]) : 0;
}

static int pull_from(struct pairwise_state *st, int host)
{
    size_t at = st->came[host] % st->ring, n = min_size(pullable(st, host), st->ring - at);
    struct net_link *link = st->p->in[host];

    return n > 0 ? net_flow_note(&st->p->flow, link, net_link_receive(link, ring_of(st, host) + at, n),
                                 &st->came[host])
                 : 0;
}

/* Bytes of the result that all parts are there for, in one stretch of the rings. */
static size_t combinable_parts(const struct pairwise_state *st)
{
    size_t n = min_size(BLOCK, st->ring - st->combined % st->ring);

    n = min_size(n, st->n_bytes - st->combined);
    for (int i = 0; i < st->p->n_hosts; i++)
        if (i != st->p->host)
            n = min_size(n, st->came[i] - st->combined);
    return n / st->element * st->element;
}

static void combine_parts(struct pairwise_state *st)
{
    const void *sources[PAIRWISE_HOSTS_MAX];
    size_t n = combinable_parts(st);
    void *target = st->result + st->combined;

    if (n == 0)
        return;
    for (int i = 0; i < st->p->n_hosts; i++)
        sources[i] = i == st->p->host ? st->data + (size_t)i * st->n_bytes + st->combined
                                      : ring_of(st, i) + st->combined % st->ring;
    reduce(st->dtype, st->op, sources, st->p->n_hosts, &target, 1, 0, n / st->element);
    st->combined += n;
    st->p->flow.moved = true;
}

static bool pairwise_is_done(const struct pairwise_state *st)
{
    for (int i = 0; i < st->p->n_hosts; i++)
        if (i != st->p->host && st->sent[i] < st->n_bytes)
            return false;
    return st->combined == st->n_bytes;
}

/* The hosts ahead first, so that not all send to host 0 at once. */
static int move_all(struct pairwise_state *st)
{
    int n = st->p->n_hosts;

    for (int i = 1; i < n; i++)
        TRY(push_to(st, (st->p->host + i) % n));
    for (int i = 1; i < n; i++)
        TRY(pull_from(st, (st->p->host + n - i) % n));
    combine_parts(st);
    return 0;
}

static int wait_for_any(struct pairwise_state *st)
{
    struct pollfd fds[2 * PAIRWISE_HOSTS_MAX];
    int n = 0;

    for (int i = 0; i < st->p->n_hosts; i++) {
        if (i != st->p->host && st->sent[i] < st->n_bytes)
            fds[n++] = (struct pollfd){.fd = net_link_fd(st->p->out[i]), .events = POLLOUT};
        if (i != st->p->host && pullable(st, i) > 0)
            fds[n++] = (struct pollfd){.fd = net_link_fd(st->p->in[i]), .events = POLLIN};
    }
    return net_poll(st->p->flow.wait, fds, n);
}

int pairwise_reduce_scatter(struct pairwise *p, const void *data, void *result, size_t count,
                            enum crw_dtype dtype, enum crw_op op)
{
    struct pairwise_state st = {.p = p, .data = data, .result = result, .dtype = dtype, .op = op};

    assert(p->n_hosts <= PAIRWISE_HOSTS_MAX);
    st.element = reduce_element_size(dtype);
    st.n_bytes = count * st.element;
    st.ring = p->room_size / (size_t)p->n_hosts / LINE * LINE;
    p->flow.failed = NULL;
    while (!pairwise_is_done(&st)) {
        p->flow.moved = false;
        TRY(move_all(&st));
        if (!p->flow.moved)
            TRY(wait_for_any(&st));
    }
    return 0;
}
