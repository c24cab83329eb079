/*
 * A round is a message in each direction: a head, then the blocks from the own one backwards. What comes
 * in continues the blocks that are there already, so it is received where it belongs.
 *
 * The token has authenticated the other hosts, but a message is checked all the same: a rank that is out
 * of step must not make others write beyond their memory.
 */

#include "worker-runtime/net/exchange_sock.h"

#include "base/err.h"
#include "proto/wait_sock.h"

#include <errno.h>
#include <string.h>

#define MAGIC 0x67686378u

enum { SPIN_NS = 20 * 1000 }; /* how long to poll before sleeping: a round trip in a rack */

struct exchange_head {
    uint32_t magic, number, n_blocks, n_bytes;
};

size_t exchange_capacity(const struct topology *topology)
{
    size_t heads = (size_t)topology->n_hosts * sizeof(struct exchange_block);

    return heads < EXCHANGE_MAX ? (EXCHANGE_MAX - heads) / (size_t)topology->world_size : 0;
}

struct exchange_round_state {
    struct exchange *x;
    struct net_link *ahead, *back;
    struct exchange_head out, in;
    size_t n_out, n_in; /* bytes done, heads included */
    const uint8_t *from;
    uint8_t *into;
    size_t room; /* bytes of it */
};

static bool is_sent(const struct exchange_round_state *r)
{
    return r->n_out == sizeof(r->out) + r->out.n_bytes;
}

static bool has_head(const struct exchange_round_state *r)
{
    return r->n_in >= sizeof(r->in);
}

static bool is_received(const struct exchange_round_state *r)
{
    return has_head(r) && r->n_in == sizeof(r->in) + r->in.n_bytes;
}

/* Head and blocks go in one packet if they can. */
static int exchange_push(struct exchange_round_state *r)
{
    struct iovec parts[2];
    int n_parts = 0;
    size_t head = r->n_out < sizeof(r->out) ? sizeof(r->out) - r->n_out : 0;
    size_t done = head ? 0 : r->n_out - sizeof(r->out);

    if (is_sent(r))
        return 0;
    if (head)
        parts[n_parts++] = (struct iovec){(uint8_t *)&r->out + r->n_out, head};
    if (r->out.n_bytes > done)
        parts[n_parts++] =
            (struct iovec){(void *)(uintptr_t)(r->from + done), r->out.n_bytes - done}; /* only read */
    return net_flow_note(&r->x->flow, r->ahead, net_link_send_parts(r->ahead, parts, n_parts), &r->n_out);
}

static bool is_expected_head(const struct exchange_round_state *r)
{
    return r->in.magic == MAGIC && r->in.number == r->out.number && r->in.n_blocks == r->out.n_blocks &&
           r->in.n_bytes <= r->room;
}

static int exchange_pull(struct exchange_round_state *r)
{
    ssize_t n;

    if (is_received(r))
        return 0;
    if (!has_head(r))
        n = net_link_receive(r->back, (uint8_t *)&r->in + r->n_in, sizeof(r->in) - r->n_in);
    else
        n = net_link_receive(r->back, r->into + (r->n_in - sizeof(r->in)),
                             r->in.n_bytes - (r->n_in - sizeof(r->in)));
    TRY(net_flow_note(&r->x->flow, r->back, n, &r->n_in));
    if (has_head(r) && !is_expected_head(r)) {
        r->x->flow.failed = r->back;
        return -EPROTO;
    }
    return 0;
}

static int exchange_wait(struct exchange_round_state *r)
{
    struct pollfd fds[2] = {
        {.fd = net_link_fd(r->ahead), .events = is_sent(r) ? 0 : POLLOUT},
        {.fd = net_link_fd(r->back), .events = is_received(r) ? 0 : POLLIN},
    };

    return net_poll(r->x->flow.wait, fds, 2);
}

static int exchange_round_run(struct exchange_round_state *r)
{
    int64_t asleep_ns = sock_now_ns() + SPIN_NS;

    while (!(is_sent(r) && is_received(r))) {
        r->x->flow.moved = false;
        TRY(exchange_push(r));
        TRY(exchange_pull(r));
        if (!r->x->flow.moved && sock_now_ns() >= asleep_ns)
            TRY(exchange_wait(r));
    }
    return 0;
}

/* Finds out where the blocks that came begin. */
static int index_blocks(struct exchange *x, int first, int n_blocks, size_t end)
{
    for (int i = first; i < first + n_blocks; i++) {
        struct exchange_block block;

        if (end - x->begins[i] < sizeof(block))
            return -EPROTO;
        memcpy(&block, x->blocks + x->begins[i], sizeof(block));
        if (block.host != (uint32_t)topology_ahead(x->topology, x->topology->host, -i) ||
            block.n_bytes > end - x->begins[i] - sizeof(block))
            return -EPROTO;
        x->begins[i + 1] = x->begins[i] + sizeof(block) + block.n_bytes;
    }
    return x->begins[first + n_blocks] == end ? 0 : -EPROTO;
}

static int exchange_round(struct exchange *x, int number, int *n_have)
{
    int n_blocks = topology_n_blocks(x->topology->n_hosts, number);
    struct exchange_round_state r = {
        .x = x,
        .ahead = x->links->ahead[number],
        .back = x->links->back[number],
        .out = {MAGIC, x->number, (uint32_t)n_blocks, (uint32_t)x->begins[n_blocks]},
        .from = x->blocks,
        .into = x->blocks + x->begins[*n_have],
        .room = EXCHANGE_MAX - x->begins[*n_have],
    };
    int result = exchange_round_run(&r);

    if (result == 0) {
        result = index_blocks(x, *n_have, n_blocks, x->begins[*n_have] + r.in.n_bytes);
        x->flow.failed = r.back;
    }
    *n_have += n_blocks;
    return result;
}

int exchange_run(struct exchange *x, uint64_t signature, const void *data, size_t n_bytes)
{
    const struct exchange_block own = {
        .signature = signature, .host = (uint32_t)x->topology->host, .n_bytes = (uint32_t)n_bytes};
    int n_have = 1, result = 0;

    if (n_bytes > EXCHANGE_MAX - sizeof(own))
        return -EMSGSIZE;
    memcpy(x->blocks, &own, sizeof(own));
    if (n_bytes > 0)
        memcpy(x->blocks + sizeof(own), data, n_bytes);
    x->begins[0] = 0;
    x->begins[1] = sizeof(own) + n_bytes;
    for (int i = 0; result == 0 && n_have < x->topology->n_hosts; i++)
        result = exchange_round(x, i, &n_have);
    x->number++;
    return result;
}

struct exchange_block exchange_block_of(const struct exchange *x, int host, const uint8_t **ret_data)
{
    int i = topology_ahead(x->topology, x->topology->host, -host);
    struct exchange_block block;

    memcpy(&block, x->blocks + x->begins[i], sizeof(block));
    *ret_data = x->blocks + x->begins[i] + sizeof(block);
    return block;
}

/* ---- transposition ---- */

static bool travels(int block, int round)
{
    return block >> round & 1;
}

/* The blocks that go in this round, one behind the other: into `packed`, or back. */
static uint32_t pack_blocks(const struct exchange *x, uint8_t *blocks, size_t n_block, int round,
                            uint8_t *packed, bool back)
{
    uint32_t n = 0;

    for (int i = 0; i < x->topology->n_hosts; i++) {
        if (!travels(i, round))
            continue;
        if (back)
            memcpy(blocks + (size_t)i * n_block, packed + n * n_block, n_block);
        else
            memcpy(packed + n * n_block, blocks + (size_t)i * n_block, n_block);
        n++;
    }
    return n;
}

static int transpose_round(struct exchange *x, uint8_t *blocks, size_t n_block, int round, uint8_t *room)
{
    uint8_t *into = room + (size_t)x->topology->n_hosts * n_block / 2;
    uint32_t n = pack_blocks(x, blocks, n_block, round, room, false);
    struct exchange_round_state r = {
        .x = x,
        .ahead = x->links->ahead[round],
        .back = x->links->back[round],
        .out = {MAGIC, x->number, n, (uint32_t)(n * n_block)},
        .from = room,
        .into = into,
        .room = n * n_block,
    };

    TRY(exchange_round_run(&r));
    if (r.in.n_bytes != r.out.n_bytes) {
        x->flow.failed = r.back;
        return -EPROTO;
    }
    (void)pack_blocks(x, blocks, n_block, round, into, true); /* as many as went */
    return 0;
}

int exchange_transpose(struct exchange *x, uint8_t *blocks, size_t n_block, uint8_t *room)
{
    int result = 0;

    for (int i = 0; result == 0 && 1 << i < x->topology->n_hosts; i++)
        result = transpose_round(x, blocks, n_block, i, room);
    x->number++;
    return result;
}
