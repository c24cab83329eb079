/*
 * Reductions of at most 32 KiB for each rank, in 2 log2(hosts) steps: the leaders send each other the slices of all their
 * ranks' arrays (exchange_transpose()), each combines one slice of all ranks in rank order, and all gather the results. So the
 * bits are those of one host. Recursive doubling of partial sums would send less, but adds in an order that depends on the
 * number of hosts.
 */

#include "base/err.h"
#include "worker-runtime/net/inter_host_sock.h"
#include "worker-runtime/shm/reduce_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_EACH = 32 * 1024, HOSTS_MAX = 1024 }; /* each of the hosts takes a few bytes of the exchange */

static_assert((SHORT_EACH + HOSTS_MAX * (sizeof(double) + sizeof(struct exchange_block))) <= EXCHANGE_MAX,
              "the results of all hosts fit");

bool short_reduce_fits(const struct inter_host *s, size_t n_bytes)
{
    return n_bytes <= SHORT_EACH && s->topology.n_hosts <= HOSTS_MAX &&
           topology_prefers_transpose(&s->topology, n_bytes);
}

/* Elements of a host's slice. */
static struct topology_slice slice_of(const struct inter_host *s, const struct inter_host_sum *sum, int host)
{
    size_t n = (size_t)s->topology.n_hosts;

    return (struct topology_slice){sum->count * (size_t)host / n, sum->count * ((size_t)host + 1) / n};
}

/* Bytes of the longest one. */
static size_t slice_room(const struct inter_host *s, const struct inter_host_sum *sum)
{
    size_t n = (size_t)s->topology.n_hosts;

    return (sum->count + n - 1) / n * reduce_element_size(sum->dtype);
}

static int need_blocks(struct inter_host *s, size_t size)
{
    if (s->blocks_size >= size)
        return 0;
    free(s->blocks);
    s->blocks = malloc(size);
    s->blocks_size = s->blocks ? size : 0;
    return s->blocks ? 0 : -ENOMEM;
}

/* A block for each host: its slice of the arrays of this host's ranks. */
static void fill_blocks(struct inter_host *s, const struct inter_host_call *call, size_t n_block)
{
    const struct inter_host_sum *sum = call->detail;
    size_t size = reduce_element_size(sum->dtype), room = slice_room(s, sum);

    for (int i = 0; i < s->topology.n_hosts; i++) {
        struct topology_slice slice = slice_of(s, sum, topology_ahead(&s->topology, s->topology.host, i));

        for (int local = 0; local < s->shm->world_size; local++)
            memcpy(s->blocks + (size_t)i * n_block + (size_t)local * room,
                   inter_host_data_of(s, call, local) + slice.begin * size, (slice.end - slice.begin) * size);
    }
}

/* This host's slice of all ranks, in rank order. */
static void combine_slice(struct inter_host *s, const struct inter_host_sum *sum, size_t n_block,
                          uint8_t *result)
{
    const struct topology *h = &s->topology;
    struct topology_slice slice = slice_of(s, sum, h->host);
    void *target = result;

    for (int rank = 0; rank < h->world_size; rank++)
        s->views[rank] = s->blocks + (size_t)topology_ahead(h, h->host, -h->host_of[rank]) * n_block +
                         (size_t)h->local_of[rank] * slice_room(s, sum);
    reduce(sum->dtype, sum->op, (const void *const *)s->views, h->world_size, &target, 1, 0,
           slice.end - slice.begin);
}

/* The slices of all hosts, one behind the other. */
static int gather_slices(struct inter_host *s, const struct inter_host_call *call, const uint8_t *own,
                         uint8_t *table)
{
    const struct inter_host_sum *sum = call->detail;
    size_t size = reduce_element_size(sum->dtype), room = slice_room(s, sum);

    TRY(exchange_run(&s->exchange, call->signature, own, room));
    for (int host = 0; host < s->topology.n_hosts; host++) {
        struct topology_slice slice = slice_of(s, sum, host);
        const uint8_t *data;

        if (exchange_block_of(&s->exchange, host, &data).n_bytes != room)
            return -EPROTO;
        memcpy(table + slice.begin * size, data, (slice.end - slice.begin) * size);
    }
    return 0;
}

/* The leader's part. */
static int combine_transposed(struct inter_host *s, const struct inter_host_call *call, uint8_t *table)
{
    const struct inter_host_sum *sum = call->detail;
    size_t room = slice_room(s, sum), n_block = room * (size_t)s->topology.n_most;
    size_t n_blocks = n_block * (size_t)s->topology.n_hosts;

    TRY(need_blocks(s, 2 * n_blocks));
    fill_blocks(s, call, n_block);
    TRY(exchange_transpose(&s->exchange, s->blocks, n_block, s->blocks + n_blocks));
    combine_slice(s, sum, n_block, s->blocks + n_blocks); /* nothing there is needed any more */
    return gather_slices(s, call, s->blocks + n_blocks, table);
}

int short_reduce(struct inter_host *s, uint64_t signature, const struct inter_host_sum *sum,
                 const uint8_t **ret_table)
{
    struct inter_host_call call = {
        .signature = signature,
        .location = SHM_NOWHERE,
        .data = sum->data,
        .n_bytes = sum->count * reduce_element_size(sum->dtype),
        .root = -1,
        .combine = combine_transposed,
        .detail = sum,
    };

    return inter_host_agree_on(s, &call, ret_table);
}
