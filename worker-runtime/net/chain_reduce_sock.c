/*
 * The state is a set of positions that only grow, and each step moves every position with room to move:
 *
 *   up, bytes of partial results    came >= combined >= went: received into the ring, combined with the host's
 *                       ranks, sent on; bytes sent on make room in the ring
 *   down, bytes of results          arrived >= copied, passed: received into targets[0], copied to the other ranks of
 *                       the host, sent on as far as a host before wants them
 *
 * The first host has nothing to receive on the way up; on the last host, combined bytes are results. Where the first
 * host has a single rank and nothing to convert, the rank's array is sent unchanged.
 *
 * A result may overwrite the elements below it: the result arrives after the elements were sent up. For the same reason
 * nothing arrives for elements that the host's ranks do not have yet (`ready`).
 *
 * Ways it fails: a socket ends, nothing moves for too long, the interrupt. The caller ends the group.
 */

#include "worker-runtime/net/chain_reduce_sock.h"

#include "base/err.h"
#include "base/minmax.h"
#include "worker-runtime/shm/reduce_ops.h"

#include <assert.h>
#include <string.h>

enum {
    BLOCK = 64 * 1024,     /* bytes combined at once */
    SEND_MAX = 256 * 1024, /* at once: do not keep the other direction waiting */
};

static_assert(CHAIN_RING % sizeof(double) == 0, "elements do not wrap");

struct chain_state {
    struct chain *s;
    const struct chain_arrays *arrays; /* NULL: there is no way up */
    void *const *targets;
    int n_targets;
    size_t partial, element;   /* bytes of each */
    const uint8_t *direct;     /* the first host's array, when sent unchanged */
    size_t n_up, n_down, n_on; /* bytes in all: up, down to this host, from here to the hosts before */
    size_t ready;              /* bytes of partial results at the host's ranks so far */
    size_t goal_up, goal_down, goal_on;
    struct chain_progress *at;
};

static bool is_first(const struct chain_state *st)
{
    return !st->s->before;
}

static bool is_last(const struct chain_state *st)
{
    return !st->s->after;
}

/* ---- sockets ---- */

/* Moves *position by the bytes sent or received without waiting. */
static int chain_push(struct chain_state *st, struct net_link *link, const uint8_t *data, size_t n,
                      size_t *position)
{
    return net_flow_note(&st->s->flow, link, n > 0 ? net_link_send(link, data, min_size(n, SEND_MAX)) : 0,
                         position);
}

static int chain_pull(struct chain_state *st, struct net_link *link, uint8_t *data, size_t n,
                      size_t *position)
{
    return net_flow_note(&st->s->flow, link, n > 0 ? net_link_receive(link, data, min_size(n, SEND_MAX)) : 0,
                         position);
}

/* ---- up ---- */

/* Length of the stretch of the ring from position on. */
static size_t ring_stretch(size_t position, size_t n)
{
    return min_size(n, CHAIN_RING - position % CHAIN_RING);
}

/* The same for an array of elements of `size` bytes; an element may wrap. */
static size_t array_stretch(const struct chain_state *st, size_t size, size_t position, size_t n)
{
    size_t wrap = st->arrays ? st->arrays->wrap * size : 0;

    return wrap > 0 ? min_size(n, wrap - position % wrap) : n;
}

static size_t array_at(const struct chain_state *st, size_t size, size_t position)
{
    size_t wrap = st->arrays ? st->arrays->wrap * size : 0;

    return wrap > 0 ? position % wrap : position;
}

static size_t came_room(const struct chain_state *st)
{
    return min_size(st->n_up - st->at->came, CHAIN_RING - (st->at->came - st->at->went));
}

static int receive_up(struct chain_state *st)
{
    if (is_first(st) || !st->arrays)
        return 0;
    return chain_pull(st, st->s->before, st->s->ring + st->at->came % CHAIN_RING,
                      ring_stretch(st->at->came, came_room(st)), &st->at->came);
}

/* Bytes ready to be combined at `combined`: room on the first host, bytes that came on the others. */
static size_t combinable(const struct chain_state *st)
{
    size_t n =
        is_first(st) ? CHAIN_RING - (st->at->combined - st->at->went) : st->at->came - st->at->combined;

    if (st->direct)
        return 0;
    n = min_size(ring_stretch(st->at->combined, n), min_size(BLOCK, st->ready - st->at->combined));
    return array_stretch(st, st->partial, st->at->combined, n / st->partial * st->partial);
}

/*
 * Whole blocks while blocks come: the fixed cost of a block is paid once. When nothing else can be moved (`any`), any
 * number of bytes: the host before may send the next bytes only after the result of the present bytes has come.
 */
static size_t next_block(const struct chain_state *st, bool any)
{
    size_t n = st->arrays ? combinable(st) : 0, end = st->at->combined + n;

    return any || n == BLOCK || end == st->ready || end % CHAIN_RING == 0 ? n : 0;
}

static void combine_block(struct chain_state *st, bool any)
{
    const struct chain_arrays *a = st->arrays;
    size_t n = next_block(st, any), begin, end;
    uint8_t *at;

    if (n == 0)
        return;
    assert(st->partial > 0);
    begin = array_at(st, st->partial, st->at->combined) / st->partial;
    end = begin + n / st->partial;
    at = st->s->ring + st->at->combined % CHAIN_RING;
    if (is_first(st))
        reduce_begin(a->dtype, a->op, a->sources, a->n_sources, begin, end, at);
    else
        reduce_more(a->dtype, a->op, a->sources, a->n_sources, begin, end, at);
    st->at->combined += n;
    if (is_last(st)) {
        reduce_end(a->dtype, a->op, at, a->n_ranks, a->targets, a->n_targets, begin, end);
        st->at->went = st->at->combined;
        st->at->arrived = st->at->copied = st->at->combined / st->partial * st->element;
    }
    st->s->flow.moved = true;
}

static int send_up(struct chain_state *st)
{
    if (is_last(st) || !st->arrays)
        return 0;
    if (st->direct)
        return chain_push(st, st->s->after, st->direct + array_at(st, st->element, st->at->went),
                          array_stretch(st, st->element, st->at->went, st->ready - st->at->went),
                          &st->at->went);
    return chain_push(st, st->s->after, st->s->ring + st->at->went % CHAIN_RING,
                      ring_stretch(st->at->went, st->at->combined - st->at->went), &st->at->went);
}

/* ---- down ---- */

static int receive_down(struct chain_state *st)
{
    if (is_last(st))
        return 0;
    return chain_pull(
        st, st->s->after, (uint8_t *)st->targets[0] + array_at(st, st->element, st->at->arrived),
        array_stretch(st, st->element, st->at->arrived, st->n_down - st->at->arrived), &st->at->arrived);
}

/* Bytes that have arrived and are wanted by a host before. */
static size_t passable(const struct chain_state *st)
{
    size_t end = min_size(st->at->arrived, st->n_on);

    return end > st->at->passed ? end - st->at->passed : 0;
}

static int send_down(struct chain_state *st)
{
    if (is_first(st))
        return 0;
    return chain_push(st, st->s->before,
                      (uint8_t *)st->targets[0] + array_at(st, st->element, st->at->passed),
                      array_stretch(st, st->element, st->at->passed, passable(st)), &st->at->passed);
}

static void copy_down(struct chain_state *st)
{
    size_t there = st->at->arrived - st->at->copied, at, n;

    if (there == 0 || (there < BLOCK && st->at->arrived < st->goal_down))
        return;
    at = array_at(st, st->element, st->at->copied);
    n = array_stretch(st, st->element, st->at->copied, min_size(BLOCK, there));
    for (int t = 1; t < st->n_targets; t++)
        memcpy((uint8_t *)st->targets[t] + at, (uint8_t *)st->targets[0] + at, n);
    st->at->copied += n;
    st->s->flow.moved = true;
}

/* ---- both ---- */

static bool chain_is_done(const struct chain_state *st)
{
    const struct chain_progress *at = st->at;
    bool sent = is_last(st) || !st->arrays ||
                (st->direct || st->goal_up == st->n_up ? at->went : at->combined) >= st->goal_up;

    return sent && at->copied >= st->goal_down && (is_first(st) || at->passed >= st->goal_on);
}

static int chain_move(struct chain_state *st, bool any)
{
    TRY(receive_up(st));
    combine_block(st, any);
    TRY(send_up(st));
    TRY(receive_down(st));
    TRY(send_down(st));
    copy_down(st);
    return 0;
}

static short poll_events(bool in, bool out)
{
    return (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0));
}

/* Nothing can be moved before one of the sockets is ready. */
static int chain_wait(struct chain_state *st)
{
    struct pollfd fds[2] = {
        {.fd = net_link_fd(st->s->before),
         .events = poll_events(!is_first(st) && st->arrays && came_room(st) > 0, passable(st) > 0)},
        {.fd = net_link_fd(st->s->after),
         .events = poll_events(
             st->at->arrived<st->n_down, (st->direct ? st->ready : st->at->combined)> st->at->went)},
    };

    if (is_first(st))
        fds[0].events = 0;
    if (is_last(st))
        fds[1].events = 0;
    return net_poll(st->s->flow.wait, fds, 2);
}

static int chain_run(struct chain_state *st)
{
    st->s->flow.failed = NULL;
    while (!chain_is_done(st)) {
        st->s->flow.moved = false;
        TRY(chain_move(st, false));
        if (!st->s->flow.moved)
            TRY(chain_move(st, true));
        if (!st->s->flow.moved)
            TRY(chain_wait(st));
    }
    return 0;
}

int chain_reduce_step(struct chain *s, const struct chain_arrays *arrays, struct chain_progress *progress,
                      size_t n_ready, size_t n_done)
{
    struct chain_state st = {
        .s = s,
        .arrays = arrays,
        .targets = arrays->targets,
        .n_targets = arrays->n_targets,
        .partial = reduce_partial_size(arrays->dtype),
        .element = reduce_element_size(arrays->dtype),
        .at = progress,
    };
    bool last = !s->after;

    assert(arrays->n_targets >= 1 && arrays->n_sources >= 1 && n_done <= n_ready);
    assert(arrays->n_passed <= arrays->n_wanted && arrays->n_wanted <= arrays->count);
    st.n_up = arrays->count * st.partial;
    st.n_down = (last ? arrays->count : arrays->n_wanted) * st.element;
    st.n_on = arrays->n_passed * st.element;
    st.ready = n_ready * st.partial;
    st.goal_up = n_done * st.partial;
    st.goal_down = min_size(n_done * st.element, st.n_down);
    st.goal_on = min_size(n_done * st.element, st.n_on);
    if (!s->before && !last && arrays->n_sources == 1 && st.partial == st.element)
        st.direct = arrays->sources[0];
    return chain_run(&st);
}

int chain_broadcast(struct chain *s, void *const *targets, int n_targets, size_t n_bytes)
{
    struct chain_progress progress = {0};
    struct chain_state st = {.s = s,
                             .targets = targets,
                             .n_targets = n_targets,
                             .n_down = n_bytes,
                             .n_on = n_bytes,
                             .goal_down = n_bytes,
                             .goal_on = n_bytes,
                             .at = &progress};

    if (!s->after) /* here it comes from */
        progress.arrived = n_bytes;
    return chain_run(&st);
}
