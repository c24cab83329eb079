#include "worker-runtime/net/inter_host_sock.h"

/*
 * What the collectives are made of: saying, spreading, ending. The collectives themselves:
 * inter_host_collectives.c; links: inter_host_links_sock.c.
 *
 * A host where only one rank is needs no meetings: it goes without shared memory altogether, except that
 * failures are kept there.
 */

#include "worker-runtime/net/chain_reduce.h"
#include "worker-runtime/shm/call_signature.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>

enum { WHAT_VERDICT = 0xf0, WHAT_NOTHING, WHAT_STAGE }; /* top bytes, beside those of call_signature.h */

/* A connection closed, and the reason is a bit slower: it comes over another one, through ranks that the machine may
 * keep waiting. Who needs all of this time has not heard of anybody's end. */
enum { REASON_MS = 500 };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------ the end */

static void cut(int fd)
{
    if (fd >= 0)
        (void)shutdown(fd, SHUT_RDWR); /* closed when nobody can be in it any more */
}

int span_break(struct span *s, int r)
{
    for (int i = 0; i < HOSTS_ROUNDS_MAX; i++) {
        cut(s->links.ahead[i]);
        cut(s->links.back[i]);
    }
    cut(s->before);
    cut(s->after);
    s->shm->over = true;
    return r;
}

/* The rank at the other end of a link; -1: fd is none of them. */
static int rank_behind(const struct span *s, int fd)
{
    const struct hosts *h = &s->hosts;

    if (fd < 0)
        return -1;
    for (int i = 0; i < HOSTS_ROUNDS_MAX; i++) {
        if (fd == s->links.ahead[i])
            return hosts_rank(h, hosts_ahead(h, h->host, 1 << i), 0);
        if (fd == s->links.back[i])
            return hosts_rank(h, hosts_ahead(h, h->host, -(1 << i)), 0);
    }
    if (fd != s->after && fd != s->before)
        return -1;
    return hosts_rank(h, hosts_ahead(h, h->host, fd == s->after ? 1 : -1), h->local);
}

static int own_name(const struct span *s)
{
    return shm_name_of(s->shm, s->shm->rank);
}

static int fail_lost(struct span *s, int rank)
{
    const struct net_wait wait = {.interrupt_fd = s->interrupt_fd, .timeout_ms = REASON_MS};

    if (net_poll(&wait, NULL, 0) == NET_E_TIMEOUT)
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_LOST, .rank = rank});
    return span_break(s, shm_fail_result(s->shm, s->shm->rank));
}

int span_fail(struct span *s, int r, int fd)
{
    switch (r) {
    case 0:
        return 0;
    case NET_E_INTERRUPTED:
        return span_break(s, shm_fail_result(s->shm, s->shm->rank));
    case NET_E_LOST:
        return fail_lost(s, rank_behind(s, fd));
    case NET_E_TIMEOUT:
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_TIMEOUT, .rank = own_name(s)});
        return span_break(s, crw_fail(CRW_E_TIMEOUT,
                                      "ranks of other hosts did not come within %d ms, so this group is "
                                      "over",
                                      s->wait.timeout_ms));
    default:
        shm_fail(s->shm, (struct shm_failure){.kind = SHM_FAILURE_LOST, .rank = own_name(s)});
        return span_break(
            s, crw_fail_errno(r, "cannot exchange data with ranks of other hosts, so this group is over"));
    }
}

void span_interrupt(void *data)
{
    struct span *s = data;
    const uint64_t one = 1;

    (void)!write(s->interrupt_fd, &one, sizeof(one)); /* an eventfd far from its maximum takes it */
    net_wake(s->net);
}

int span_meet(struct span *s, const struct shm_post *post)
{
    int r;

    if (span_is_alone(s))
        return shm_is_over(s->shm, 0) ? span_break(s, shm_fail_result(s->shm, 0)) : 0;
    r = shm_meet(s->shm, post);
    return r == 0 || r == CRW_E_ARGUMENT ? r : span_break(s, r);
}

/* ------------------------------------------------------------------ saying */

/* 0: all hosts are in this call; else 1 + the first that is not. */
static int find_different(const struct span *s, uint64_t what)
{
    for (int host = 0; host < s->hosts.n_hosts; host++) {
        const uint8_t *data;

        if (exchange_block_of(&s->exchange, host, &data).what != what)
            return 1 + host;
    }
    return 0;
}

static int check_sizes(const struct span *s, size_t n_bytes)
{
    for (int host = 0; host < s->hosts.n_hosts; host++) {
        const uint8_t *data;

        if (exchange_block_of(&s->exchange, host, &data).n_bytes !=
            n_bytes * (size_t)hosts_size(&s->hosts, host))
            return -EPROTO;
    }
    return 0;
}

static void sort_table(const struct span *s, size_t n_bytes, uint8_t *table)
{
    for (int host = 0; n_bytes > 0 && host < s->hosts.n_hosts; host++) {
        const uint8_t *data;

        (void)exchange_block_of(&s->exchange, host, &data); /* its head was looked at */
        for (int i = 0; i < hosts_size(&s->hosts, host); i++)
            memcpy(table + (size_t)hosts_rank(&s->hosts, host, i) * n_bytes, data + (size_t)i * n_bytes,
                   n_bytes);
    }
}

/* The leader's part between the meetings; same: this host's ranks are in one call. *ret_different: of
 * find_different(). */
static int exchange(struct span *s, uint64_t what, bool same, const void *data, size_t n_bytes,
                    uint8_t *table, int *ret_different)
{
    uint64_t nothing = (uint64_t)WHAT_NOTHING << SHM_WHAT_SHIFT;
    size_t n = same ? n_bytes * (size_t)s->shm->world_size : 0;
    int r = exchange_run(&s->exchange, same ? what : nothing, data, n);

    if (r != 0)
        return span_fail(s, r, s->exchange.failed_fd);
    *ret_different = same ? find_different(s, what) : 1 + s->hosts.host;
    if (*ret_different)
        return 0;
    r = check_sizes(s, n_bytes);
    if (r != 0)
        return span_fail(s, r, -1);
    sort_table(s, n_bytes, table);
    return 0;
}

static int fail_different(const struct span *s, int host)
{
    if (host == s->hosts.host)
        return CRW_E_ARGUMENT; /* the sentence is there */
    return crw_fail(CRW_E_ARGUMENT,
                    "rank %d and rank %d called different collectives, or with different counts or "
                    "types: all ranks must make the same calls in the same order",
                    own_name(s), hosts_rank(&s->hosts, host, 0));
}

static int say_alone(struct span *s, uint64_t what, uint64_t location, const void *data, size_t n_bytes,
                     const uint8_t **ret_table)
{
    int different = 0, r = span_meet(s, NULL);

    s->locations[0] = location;
    if (r == 0)
        r = exchange(s, what, true, data, n_bytes, s->table, &different);
    if (ret_table)
        *ret_table = s->table;
    return r == 0 && different ? fail_different(s, different - 1) : r;
}

/* What the ranks of this host put into their bounce buffers, one after the other. */
static const uint8_t *gather_own(const struct span *s, size_t n_bytes, int parity)
{
    for (int i = 0; n_bytes > 0 && i < s->shm->world_size; i++)
        memcpy(s->own + (size_t)i * n_bytes, shm_bounce(s->shm, i, parity), n_bytes);
    return s->own;
}

/* The second meeting: all take the leader's word and its table. */
static int hear_verdict(struct span *s, int result, struct shm_post *verdict, const uint8_t **ret_table)
{
    int parity = shm_parity(s->shm), r;

    r = span_meet(s, verdict);
    if (result != 0 && result != CRW_E_ARGUMENT)
        return result; /* this rank's own sentence is the better one */
    if (r != 0)
        return r;
    if (ret_table)
        *ret_table = shm_bounce(s->shm, 0, parity);
    if (result == 0 && shm_post_of(s->shm, 0)->a != 0)
        return fail_different(s, (int)shm_post_of(s->shm, 0)->a - 1);
    return result;
}

int span_say(struct span *s, uint64_t what, uint64_t location, const void *data, size_t n_bytes,
             const uint8_t **ret_table)
{
    const struct shm_post post = {.what = what, .a = location};
    struct shm_post verdict = {.what = (uint64_t)WHAT_VERDICT << SHM_WHAT_SHIFT};
    int parity = shm_parity(s->shm), different = 0, r = shm_begin(s->shm);

    if (r != 0)
        return r;
    if (span_is_alone(s))
        return say_alone(s, what, location, data, n_bytes, ret_table);
    if (n_bytes > 0)
        memcpy(shm_bounce(s->shm, s->shm->rank, parity), data, n_bytes);
    r = span_meet(s, &post);
    if (r != 0 && r != CRW_E_ARGUMENT)
        return r;
    for (int i = 0; r == 0 && i < s->shm->world_size; i++)
        s->locations[i] = shm_post_of(s->shm, i)->a;
    if (s->shm->rank == 0) {
        bool same = r == 0;
        int result = exchange(s, what, same, same ? gather_own(s, n_bytes, parity) : NULL, n_bytes,
                              shm_bounce(s->shm, 0, shm_parity(s->shm)), &different);

        verdict.a = (uint64_t)different;
        r = result != 0 ? result : r;
    }
    return hear_verdict(s, r, &verdict, ret_table);
}

/* ------------------------------------------------------------------ rooms */

int span_need_ring(struct span *s)
{
    if (!s->ring)
        s->ring = aligned_alloc(SHM_LINE, STREAM_RING);
    return s->ring ? 0 : -ENOMEM;
}

int span_stage(struct span *s)
{
    void *room = NULL;
    int r;

    if (s->staging)
        return 0;
    if (!span_is_alone(s)) {
        r = shm_alloc(s->shm, SPAN_STAGING, &room);
    } else {
        room = aligned_alloc(SHM_LINE, SPAN_STAGING);
        r = room ? 0 : crw_fail_errno(-ENOMEM, "cannot get %d bytes for data on its way", SPAN_STAGING);
    }
    s->staging = room;
    /* Other hosts may have their rooms, and go on: the group cannot. */
    return r < 0 ? span_fail(s, r, -1) : r > 0 ? span_break(s, r) : 0;
}

/* Parts of an arena are the same distance apart. */
uint8_t *span_staging_of(const struct span *s, int local)
{
    return span_is_alone(s) ? s->staging : shm_neighbour(s->shm, s->staging, local);
}

/* ------------------------------------------------------------------ spreading */

struct spreading {
    struct span *s;
    const uint8_t *from; /* on the root */
    uint8_t *to;
    size_t n_bytes;
    bool is_root;
    int n_lanes;
    size_t share; /* bytes of a lane in a piece */
    struct chain_stream stream;
};

static struct chain_stream make_stream(const struct span *s, int distance, int last)
{
    return (struct chain_stream){
        .wait = &s->wait,
        .before = distance == last ? -1 : s->before,
        .after = distance == 0 ? -1 : s->after,
        .failed_fd = -1,
    };
}

/* One rank on this host: from its array, or into it, without pieces. (Then there is one lane.) */
static int spread_whole(struct spreading *p)
{
    void *target = p->is_root ? (void *)(uintptr_t)p->from : p->to; /* a source is only read */
    int r = stream_spread(&p->stream, &target, 1, p->n_bytes);

    return span_fail(p->s, r, p->stream.failed_fd);
}

static uint8_t *piece_of(const struct spreading *p, int lane)
{
    return span_staging_of(p->s, 0) + (p->s->n_spread & 1) * (SPAN_STAGING / 2) + (size_t)lane * p->share;
}

/* The bytes of a lane that are in this piece. */
static struct hosts_slice range_of(const struct spreading *p, size_t number, int lane)
{
    struct hosts_slice slice = hosts_slice(p->n_bytes, p->n_lanes, lane);
    size_t begin = min_size(slice.begin + number * p->share, slice.end);

    return (struct hosts_slice){begin, min_size(begin + p->share, slice.end)};
}

static void copy_piece(const struct spreading *p, size_t number)
{
    for (int lane = 0; lane < p->n_lanes; lane++) {
        struct hosts_slice range = range_of(p, number, lane);

        if (p->is_root)
            memcpy(piece_of(p, lane), p->from + range.begin, range.end - range.begin);
        else if (p->to)
            memcpy(p->to + range.begin, piece_of(p, lane), range.end - range.begin);
    }
}

static int stream_piece(struct spreading *p, size_t number)
{
    int lane = p->s->shm->rank;
    struct hosts_slice range;
    void *target;
    int r;

    if (lane >= p->n_lanes)
        return 0;
    range = range_of(p, number, lane);
    target = piece_of(p, lane);
    r = stream_spread(&p->stream, &target, 1, range.end - range.begin);
    return span_fail(p->s, r, p->stream.failed_fd);
}

/* Pieces take the two halves of the leader's room in turn: while one is copied out, the next can come, and by the
 * time that the first half is needed again there was a meeting in between, also when that is in the next spreading. */
static int spread_pieces(struct spreading *p)
{
    const struct shm_post post = {.what = (uint64_t)WHAT_STAGE << SHM_WHAT_SHIFT};
    struct hosts_slice longest = hosts_slice(p->n_bytes, p->n_lanes, p->n_lanes - 1);
    int r = 0;

    for (size_t i = 0; r == 0 && i * p->share < longest.end - longest.begin + HOSTS_SLICE_UNIT; i++) {
        if (p->is_root)
            copy_piece(p, i);
        r = span_meet(p->s, &post);
        if (r == 0)
            r = stream_piece(p, i);
        if (r == 0)
            r = span_meet(p->s, &post);
        if (r == 0 && !p->is_root)
            copy_piece(p, i);
        p->s->n_spread++;
    }
    return r;
}

int span_spread(struct span *s, const void *from, void *to, size_t n_bytes, int root, int last)
{
    const struct hosts *h = &s->hosts;
    int distance = hosts_ahead(h, h->host_of[root], -h->host), end = hosts_ahead(h, h->host_of[root], -last);
    struct spreading p = {
        .s = s,
        .from = from,
        .to = to,
        .n_bytes = n_bytes,
        .is_root = own_name(s) == root,
        .n_lanes = hosts_lanes_for(h, n_bytes),
    };
    int r;

    if (distance > end || n_bytes == 0)
        return 0;
    p.stream = make_stream(s, distance, end);
    if (span_is_alone(s) && (p.is_root || to))
        return spread_whole(&p);
    r = span_stage(s);
    if (r != 0)
        return r;
    p.share = SPAN_STAGING / 2 / (size_t)p.n_lanes / HOSTS_SLICE_UNIT * HOSTS_SLICE_UNIT;
    return spread_pieces(&p);
}
