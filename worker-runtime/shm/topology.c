#include "worker-runtime/shm/topology.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

static bool topology_allocate(struct topology *h)
{
    size_t n = (size_t)h->world_size;

    h->host_of = calloc(n, sizeof(int));
    h->local_of = calloc(n, sizeof(int));
    h->ranks = calloc(n, sizeof(int));
    h->first = calloc(n + 1, sizeof(int));
    return h->host_of && h->local_of && h->ranks && h->first;
}

/* Gives hosts their numbers as their ranks come by; seen: by key, 1 + number. */
static void number_hosts(struct topology *h, const int *keys, int *seen)
{
    int before = -1;

    h->in_order = true;
    for (int r = 0; r < h->world_size; r++) {
        bool is_new = seen[keys[r]] == 0;

        if (is_new)
            seen[keys[r]] = ++h->n_hosts;
        int host = seen[keys[r]] - 1;
        if (!is_new && host != before)
            h->in_order = false;
        h->host_of[r] = before = host;
        h->local_of[r] = h->first[host + 1]++; /* sizes so far */
    }
}

static void place_ranks(struct topology *h)
{
    h->n_rails = h->world_size;
    for (int i = 0; i < h->n_hosts; i++) {
        if (h->first[i + 1] < h->n_rails)
            h->n_rails = h->first[i + 1];
        if (h->first[i + 1] > h->n_most)
            h->n_most = h->first[i + 1];
        h->first[i + 1] += h->first[i];
    }
    for (int r = 0; r < h->world_size; r++)
        h->ranks[h->first[h->host_of[r]] + h->local_of[r]] = r;
}

int topology_init(struct topology *h, const int *keys, int n_keys, int world_size, int rank)
{
    _cleanup_free_ int *seen = calloc((size_t)n_keys, sizeof(*seen));

    *h = (struct topology){.world_size = world_size};
    if (!seen || !topology_allocate(h)) {
        topology_finish(h);
        return -ENOMEM;
    }
    number_hosts(h, keys, seen);
    place_ranks(h);
    h->host = h->host_of[rank];
    h->local = h->local_of[rank];
    return 0;
}

void topology_finish(struct topology *h)
{
    free(h->host_of);
    free(h->local_of);
    free(h->ranks);
    free(h->first);
    *h = (struct topology){0};
}

int topology_ahead(const struct topology *h, int host, int by)
{
    return ((host + by) % h->n_hosts + h->n_hosts) % h->n_hosts;
}

int topology_n_rounds(int n_hosts)
{
    int n = 0;

    while (1 << n < n_hosts)
        n++;
    assert(n <= TOPOLOGY_ROUNDS_MAX);
    return n;
}

int topology_n_blocks(int n_hosts, int round)
{
    int have = 1 << round;

    return have < n_hosts - have ? have : n_hosts - have;
}

/* What a link carries in the time of a step: 30 us at 1 GB/s. The choice is not sensitive to it. */
enum { STEP_BYTES = 30 * 1000 };

bool topology_prefers_transpose(const struct topology *h, size_t n_bytes)
{
    size_t n_rounds = (size_t)topology_n_rounds(h->n_hosts), most = (size_t)h->n_most;
    size_t chain = 2 * ((size_t)h->n_hosts - 1) * STEP_BYTES + 2 * n_bytes;
    size_t transpose = 2 * n_rounds * STEP_BYTES + n_rounds * most * n_bytes / 2 + n_bytes;

    return transpose < chain;
}

int topology_rails_for(const struct topology *h, size_t n_bytes)
{
    size_t worth = n_bytes / TOPOLOGY_RAIL_MIN;

    if (worth >= (size_t)h->n_rails)
        return h->n_rails;
    return worth > 0 ? (int)worth : 1;
}

struct topology_slice topology_slice(size_t n_bytes, int n_rails, int rail)
{
    size_t n_units = (n_bytes + TOPOLOGY_SLICE_UNIT - 1) / TOPOLOGY_SLICE_UNIT;
    size_t begin = n_units * (size_t)rail / (size_t)n_rails * TOPOLOGY_SLICE_UNIT;
    size_t end = n_units * ((size_t)rail + 1) / (size_t)n_rails * TOPOLOGY_SLICE_UNIT;

    return (struct topology_slice){begin < n_bytes ? begin : n_bytes, end < n_bytes ? end : n_bytes};
}
