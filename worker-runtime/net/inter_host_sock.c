/*
 * What the collectives are made of: agreement on the call, broadcast over hosts, failure. The
 * collectives themselves: inter_host_collectives_sock.c; links: inter_host_links_sock.c.
 *
 * A host with a single rank needs no barriers: it goes without shared memory, except that failures are
 * kept there.
 */

#include "worker-runtime/net/inter_host_sock.h"

#include "base/minmax.h"
#include "worker-runtime/net/chain_reduce_sock.h"
#include "worker-runtime/shm/call_signature.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>

enum {
    SIGNATURE_VERDICT = 0xf0,
    SIGNATURE_NONE,
    SIGNATURE_STAGE
}; /* top bytes, beside those of call_signature.h */

/* A connection closed, and the reason comes later: over another connection, through ranks that the
 * machine may keep waiting. When this time is over, no end of a rank was reported. */
enum { REASON_MS = 500 };

/* ---- the end ---- */

static void cut_link(const struct net_link *link)
{
    if (link)
        (void)shutdown(link->fd, SHUT_RDWR); /* closed when no thread can be in it any more */
}

int inter_host_break(struct inter_host *s, int r)
{
    for (int i = 0; i < TOPOLOGY_ROUNDS_MAX; i++) {
        cut_link(s->links.ahead[i]);
        cut_link(s->links.back[i]);
    }
    cut_link(s->before);
    cut_link(s->after);
    for (int i = 0; s->pairs_out && s->pairs_in && i < s->topology.n_hosts; i++) {
        cut_link(s->pairs_out[i]);
        cut_link(s->pairs_in[i]);
    }
    s->shm->over = true;
    return r;
}

/* The rank at the other end of a link; -1: it is none of them. */
static int rank_behind(const struct inter_host *s, const struct net_link *link)
{
    const struct topology *h = &s->topology;

    if (!link)
        return -1;
    for (int i = 0; i < TOPOLOGY_ROUNDS_MAX; i++) {
        if (link == s->links.ahead[i])
            return topology_rank(h, topology_ahead(h, h->host, 1 << i), 0);
        if (link == s->links.back[i])
            return topology_rank(h, topology_ahead(h, h->host, -(1 << i)), 0);
    }
    for (int i = 0; s->pairs_out && s->pairs_in && i < h->n_hosts; i++)
        if (link == s->pairs_out[i] || link == s->pairs_in[i])
            return topology_rank(h, i, h->local);
    if (link != s->after && link != s->before)
        return -1;
    return topology_rank(h, topology_ahead(h, h->host, link == s->after ? 1 : -1), h->local);
}

static int fail_lost(struct inter_host *s, int rank)
{
    const struct net_wait wait = {.interrupt_fd = s->interrupt_fd, .timeout_ms = REASON_MS};

    if (net_poll(&wait, NULL, 0) == NET_E_TIMEOUT)
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_LOST, .rank = rank});
    return inter_host_break(s, shm_fail_result(s->shm, s->shm->rank));
}

int inter_host_fail(struct inter_host *s, int r, const struct net_link *link)
{
    switch (r) {
    case 0:
        return 0;
    case NET_E_INTERRUPTED:
        return inter_host_break(s, shm_fail_result(s->shm, s->shm->rank));
    case NET_E_LOST:
        return fail_lost(s, rank_behind(s, link));
    case -EBADMSG:
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_LOST, .rank = rank_behind(s, link)});
        return inter_host_break(s, net_fail_changed(rank_behind(s, link)));
    case NET_E_TIMEOUT:
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_TIMEOUT, .rank = inter_host_own_rank(s)});
        return inter_host_break(s,
                                crw_fail(CRW_E_TIMEOUT,
                                         "ranks of other hosts did not come within %d ms, so this group is "
                                         "over",
                                         s->wait.timeout_ms));
    default:
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_LOST, .rank = inter_host_own_rank(s)});
        return inter_host_break(
            s, crw_fail_errno(r, "cannot exchange data with ranks of other hosts, so this group is over"));
    }
}

void inter_host_interrupt(void *data)
{
    struct inter_host *s = data;
    const uint64_t one = 1;

    (void)!write(s->interrupt_fd, &one, sizeof(one)); /* an eventfd far from its maximum takes it */
    net_wake(s->net);
}

int inter_host_local_barrier(struct inter_host *s, const struct shm_slot *slot)
{
    if (inter_host_is_alone(s))
        return shm_has_failed(s->shm, 0) ? inter_host_break(s, shm_fail_result(s->shm, 0)) : 0;
    int r = shm_phase_barrier(s->shm, slot);
    return r == 0 || r == CRW_E_ARGUMENT ? r : inter_host_break(s, r);
}

/* ---- saying ---- */

/* 0: all hosts are in this call; else 1 + the first that is not. */
static int find_different(const struct inter_host *s, uint64_t signature)
{
    for (int host = 0; host < s->topology.n_hosts; host++) {
        const uint8_t *data;

        if (exchange_block_of(&s->exchange, host, &data).signature != signature)
            return 1 + host;
    }
    return 0;
}

/* Bytes of data in the block of a host. */
static size_t block_size_of(const struct inter_host *s, const struct inter_host_call *call, int host)
{
    if (call->combine)
        return 0;
    if (call->root >= 0)
        return host == s->topology.host_of[call->root] ? call->n_bytes : 0;
    return call->n_bytes * (size_t)topology_host_size(&s->topology, host);
}

static int check_sizes(const struct inter_host *s, const struct inter_host_call *call)
{
    for (int host = 0; host < s->topology.n_hosts; host++) {
        const uint8_t *data;

        if (exchange_block_of(&s->exchange, host, &data).n_bytes != block_size_of(s, call, host))
            return -EPROTO;
    }
    return 0;
}

static void sort_table(const struct inter_host *s, const struct inter_host_call *call, uint8_t *table)
{
    const struct topology *h = &s->topology;
    size_t n = call->n_bytes;

    for (int host = 0; host < h->n_hosts; host++) {
        const uint8_t *data;
        size_t size = exchange_block_of(&s->exchange, host, &data).n_bytes; /* its head was looked at */

        if (call->root >= 0 && size > 0)
            memcpy(table, data, size);
        for (int i = 0; call->root < 0 && n > 0 && i < topology_host_size(h, host); i++)
            memcpy(table + (size_t)topology_rank(h, host, i) * n, data + (size_t)i * n, n);
    }
}

static int make_table(struct inter_host *s, const struct inter_host_call *call, uint8_t *table)
{
    int r = check_sizes(s, call);

    if (r)
        return inter_host_fail(s, r, NULL);
    if (call->combine) {
        r = call->combine(s, call, table); /* first: it sets failed */
        return inter_host_fail(s, r, s->exchange.flow.failed);
    }
    sort_table(s, call, table);
    return 0;
}

const uint8_t *inter_host_data_of(const struct inter_host *s, const struct inter_host_call *call, int local)
{
    return inter_host_is_alone(s) ? call->data : shm_bounce(s->shm, local, call->parity);
}

/* What this host gives: its ranks' data one after the other, or root's. */
static const uint8_t *gather_own(const struct inter_host *s, const struct inter_host_call *call, size_t size)
{
    if (size == 0)
        return NULL;
    if (call->root >= 0)
        return inter_host_data_of(s, call, s->topology.local_of[call->root]);
    if (inter_host_is_alone(s))
        return call->data;
    for (int i = 0; i < s->shm->world_size; i++)
        memcpy(s->own + (size_t)i * call->n_bytes, inter_host_data_of(s, call, i), call->n_bytes);
    return s->own;
}

/* The leader's part between the two barriers; same: this host's ranks are in one call.
 * *ret_different: of find_different(). */
static int exchange_between_hosts(struct inter_host *s, const struct inter_host_call *call, bool same,
                                  uint8_t *table, int *ret_different)
{
    uint64_t nothing = (uint64_t)SIGNATURE_NONE << SIGNATURE_SHIFT;
    size_t n = same ? block_size_of(s, call, s->topology.host) : 0;
    int r = exchange_run(&s->exchange, same ? call->signature : nothing, gather_own(s, call, n), n);

    if (r)
        return inter_host_fail(s, r, s->exchange.flow.failed);
    *ret_different = same ? find_different(s, call->signature) : 1 + s->topology.host;
    return *ret_different ? 0 : make_table(s, call, table);
}

static int fail_different_hosts(const struct inter_host *s, int host)
{
    if (host == s->topology.host)
        return CRW_E_ARGUMENT; /* its message is set */
    return crw_fail(CRW_E_ARGUMENT,
                    "rank %d and rank %d called different collectives, or with different counts or "
                    "types: all ranks must make the same calls in the same order",
                    inter_host_own_rank(s), topology_rank(&s->topology, host, 0));
}

static int agree_alone(struct inter_host *s, const struct inter_host_call *call, const uint8_t **ret_table)
{
    int different = 0, r = inter_host_local_barrier(s, NULL);

    s->locations[0] = call->location;
    if (r == 0)
        r = exchange_between_hosts(s, call, true, s->table, &different);
    if (ret_table)
        *ret_table = s->table;
    return r == 0 && different ? fail_different_hosts(s, different - 1) : r;
}

/* The second barrier: all ranks of the host take the leader's result and its table. */
static int take_verdict(struct inter_host *s, int result, struct shm_slot *verdict, const uint8_t **ret_table)
{
    int parity = shm_parity(s->shm), r;

    r = inter_host_local_barrier(s, verdict);
    if (result != 0 && result != CRW_E_ARGUMENT)
        return result; /* this rank's own message is the better one */
    if (r)
        return r;
    if (ret_table)
        *ret_table = shm_bounce(s->shm, 0, parity);
    if (result == 0 && shm_slot_of(s->shm, 0)->a != 0)
        return fail_different_hosts(s, (int)shm_slot_of(s->shm, 0)->a - 1);
    return result;
}

int inter_host_agree_on(struct inter_host *s, struct inter_host_call *call, const uint8_t **ret_table)
{
    const struct shm_slot slot = {.signature = call->signature, .a = call->location};
    struct shm_slot verdict = {.signature = (uint64_t)SIGNATURE_VERDICT << SIGNATURE_SHIFT};
    int different = 0;

    TRY(shm_begin(s->shm));
    if (inter_host_is_alone(s))
        return agree_alone(s, call, ret_table);
    call->parity = shm_parity(s->shm);
    if (call->n_bytes > 0 && (call->root < 0 || call->root == inter_host_own_rank(s)))
        memcpy(shm_bounce(s->shm, s->shm->rank, call->parity), call->data, call->n_bytes);
    int r = inter_host_local_barrier(s, &slot);
    if (r != 0 && r != CRW_E_ARGUMENT)
        return r;
    for (int i = 0; r == 0 && i < s->shm->world_size; i++)
        s->locations[i] = shm_slot_of(s->shm, i)->a;
    if (s->shm->rank == 0) {
        int result =
            exchange_between_hosts(s, call, r == 0, shm_bounce(s->shm, 0, shm_parity(s->shm)), &different);

        verdict.a = (uint64_t)different;
        r = result != 0 ? result : r;
    }
    return take_verdict(s, r, &verdict, ret_table);
}

int inter_host_agree(struct inter_host *s, uint64_t signature, uint64_t location, const void *data,
                     size_t n_bytes, const uint8_t **ret_table)
{
    struct inter_host_call call = {
        .signature = signature, .location = location, .data = data, .n_bytes = n_bytes, .root = -1};

    return inter_host_agree_on(s, &call, ret_table);
}

/* ---- rooms ---- */

int inter_host_need_ring(struct inter_host *s)
{
    if (!s->ring)
        s->ring = aligned_alloc(SHM_LINE, CHAIN_RING);
    return s->ring ? 0 : -ENOMEM;
}

int inter_host_stage(struct inter_host *s)
{
    void *room = NULL;
    int r;

    if (s->staging)
        return 0;
    if (!inter_host_is_alone(s)) {
        r = shm_alloc(s->shm, INTER_HOST_STAGING, &room);
    } else {
        room = aligned_alloc(SHM_LINE, INTER_HOST_STAGING);
        r = room ? 0 : crw_fail_errno(-ENOMEM, "cannot get %d bytes for data on its way", INTER_HOST_STAGING);
    }
    s->staging = room;
    /* Other hosts may have their rooms, and go on: the group cannot. */
    return r < 0 ? inter_host_fail(s, r, NULL) : r > 0 ? inter_host_break(s, r) : 0;
}

/* Parts of an arena are the same distance apart. */
uint8_t *inter_host_staging_of(const struct inter_host *s, int local)
{
    return inter_host_is_alone(s) ? s->staging : shm_same_place(s->shm, s->staging, local);
}

/* ---- spreading ---- */

struct host_broadcast {
    struct inter_host *s;
    const uint8_t *from; /* on the root */
    uint8_t *to;
    size_t n_bytes;
    bool is_root;
    int n_rails;
    size_t share; /* bytes of a rail in a piece */
    struct chain chain;
};

static struct chain make_chain(const struct inter_host *s, int distance, int last)
{
    return (struct chain){
        .flow.wait = &s->wait,
        .before = distance == last ? NULL : s->before,
        .after = distance == 0 ? NULL : s->after,
    };
}

/* One rank on this host: from its array, or into it, without pieces. (Then there is one rail.) */
static int broadcast_whole(struct host_broadcast *p)
{
    void *target = p->is_root ? (void *)(uintptr_t)p->from : p->to; /* a source is only read */
    int r = chain_broadcast(&p->chain, &target, 1, p->n_bytes);

    return inter_host_fail(p->s, r, p->chain.flow.failed);
}

static uint8_t *broadcast_room(const struct host_broadcast *p, int rail)
{
    return inter_host_staging_of(p->s, 0) + (p->s->n_broadcast_pieces & 1) * (INTER_HOST_STAGING / 2) +
           (size_t)rail * p->share;
}

struct topology_slice inter_host_range(struct topology_slice slice, size_t share, size_t number)
{
    size_t begin = min_size(slice.begin + number * share, slice.end);

    return (struct topology_slice){begin, min_size(begin + share, slice.end)};
}

static struct topology_slice broadcast_range(const struct host_broadcast *p, size_t number, int rail)
{
    return inter_host_range(topology_slice(p->n_bytes, p->n_rails, rail), p->share, number);
}

static void copy_broadcast_piece(const struct host_broadcast *p, size_t number)
{
    for (int rail = 0; rail < p->n_rails; rail++) {
        struct topology_slice range = broadcast_range(p, number, rail);

        if (p->is_root)
            memcpy(broadcast_room(p, rail), p->from + range.begin, range.end - range.begin);
        else if (p->to)
            memcpy(p->to + range.begin, broadcast_room(p, rail), range.end - range.begin);
    }
}

static int broadcast_piece(struct host_broadcast *p, size_t number)
{
    int rail = p->s->shm->rank;

    if (rail >= p->n_rails)
        return 0;
    struct topology_slice range = broadcast_range(p, number, rail);
    void *target = broadcast_room(p, rail);
    int r = chain_broadcast(&p->chain, &target, 1, range.end - range.begin);
    return inter_host_fail(p->s, r, p->chain.flow.failed);
}

/* Pieces use the two halves of the leader's staging room in turn: while one is copied out, the next
 * can come, and before the first half is used again there was a barrier, also when that is in the
 * next broadcast. */
static int broadcast_pieces(struct host_broadcast *p)
{
    const struct shm_slot slot = {.signature = (uint64_t)SIGNATURE_STAGE << SIGNATURE_SHIFT};
    struct topology_slice longest = topology_slice(p->n_bytes, p->n_rails, p->n_rails - 1);
    int r = 0;

    for (size_t i = 0; r == 0 && i * p->share < longest.end - longest.begin + TOPOLOGY_SLICE_UNIT; i++) {
        if (p->is_root)
            copy_broadcast_piece(p, i);
        r = inter_host_local_barrier(p->s, &slot);
        if (r == 0)
            r = broadcast_piece(p, i);
        if (r == 0)
            r = inter_host_local_barrier(p->s, &slot);
        if (r == 0 && !p->is_root)
            copy_broadcast_piece(p, i);
        p->s->n_broadcast_pieces++;
    }
    return r;
}

int inter_host_chain_broadcast(struct inter_host *s, const void *from, void *to, size_t n_bytes, int root,
                               int last)
{
    const struct topology *h = &s->topology;
    int distance = topology_ahead(h, h->host_of[root], -h->host),
        end = topology_ahead(h, h->host_of[root], -last);
    struct host_broadcast p = {
        .s = s,
        .from = from,
        .to = to,
        .n_bytes = n_bytes,
        .is_root = inter_host_own_rank(s) == root,
        .n_rails = topology_rails_for(h, n_bytes),
    };

    if (distance > end || n_bytes == 0)
        return 0;
    p.chain = make_chain(s, distance, end);
    if (inter_host_is_alone(s) && (p.is_root || to))
        return broadcast_whole(&p);
    TRY(inter_host_stage(s));
    p.share = INTER_HOST_STAGING / 2 / (size_t)p.n_rails / TOPOLOGY_SLICE_UNIT * TOPOLOGY_SLICE_UNIT;
    return broadcast_pieces(&p);
}
