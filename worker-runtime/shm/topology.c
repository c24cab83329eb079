#include "worker-runtime/shm/topology.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool allocate(struct hosts *h)
{
    size_t n = (size_t)h->world_size;

    h->host_of = calloc(n, sizeof(int));
    h->local_of = calloc(n, sizeof(int));
    h->ranks = calloc(n, sizeof(int));
    h->first = calloc(n + 1, sizeof(int));
    return h->host_of && h->local_of && h->ranks && h->first;
}

/* Gives hosts their numbers as their ranks come by; seen: by key, 1 + number. */
static void number_hosts(struct hosts *h, const int *keys, int *seen)
{
    int before = -1;

    h->in_order = true;
    for (int r = 0; r < h->world_size; r++) {
        bool is_new = seen[keys[r]] == 0;
        int host;

        if (is_new)
            seen[keys[r]] = ++h->n_hosts;
        host = seen[keys[r]] - 1;
        if (!is_new && host != before)
            h->in_order = false;
        h->host_of[r] = before = host;
        h->local_of[r] = h->first[host + 1]++; /* sizes so far */
    }
}

static void place_ranks(struct hosts *h)
{
    h->n_lanes = h->world_size;
    for (int i = 0; i < h->n_hosts; i++) {
        if (h->first[i + 1] < h->n_lanes)
            h->n_lanes = h->first[i + 1];
        h->first[i + 1] += h->first[i];
    }
    for (int r = 0; r < h->world_size; r++)
        h->ranks[h->first[h->host_of[r]] + h->local_of[r]] = r;
}

int hosts_init(struct hosts *h, const int *keys, int n_keys, int world_size, int rank)
{
    int *seen = calloc((size_t)n_keys, sizeof(*seen));

    *h = (struct hosts){.world_size = world_size};
    if (!seen || !allocate(h)) {
        free(seen);
        hosts_finish(h);
        return -ENOMEM;
    }
    number_hosts(h, keys, seen);
    free(seen);
    place_ranks(h);
    h->host = h->host_of[rank];
    h->local = h->local_of[rank];
    return 0;
}

void hosts_finish(struct hosts *h)
{
    free(h->host_of);
    free(h->local_of);
    free(h->ranks);
    free(h->first);
    *h = (struct hosts){0};
}

int hosts_ahead(const struct hosts *h, int host, int by)
{
    return ((host + by) % h->n_hosts + h->n_hosts) % h->n_hosts;
}

int hosts_n_rounds(int n_hosts)
{
    int n = 0;

    while (1 << n < n_hosts)
        n++;
    assert(n <= HOSTS_ROUNDS_MAX);
    return n;
}

int hosts_n_blocks(int n_hosts, int round)
{
    int have = 1 << round;

    return have < n_hosts - have ? have : n_hosts - have;
}

int hosts_lanes_for(const struct hosts *h, size_t n_bytes)
{
    size_t worth = n_bytes / HOSTS_LANE_MIN;

    if (worth >= (size_t)h->n_lanes)
        return h->n_lanes;
    return worth > 0 ? (int)worth : 1;
}

struct hosts_slice hosts_slice(size_t n_bytes, int n_lanes, int lane)
{
    size_t n_units = (n_bytes + HOSTS_SLICE_UNIT - 1) / HOSTS_SLICE_UNIT;
    size_t begin = n_units * (size_t)lane / (size_t)n_lanes * HOSTS_SLICE_UNIT;
    size_t end = n_units * ((size_t)lane + 1) / (size_t)n_lanes * HOSTS_SLICE_UNIT;

    return (struct hosts_slice){begin < n_bytes ? begin : n_bytes, end < n_bytes ? end : n_bytes};
}
