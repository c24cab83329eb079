#include "rendezvous/server/input_shares.h"

#include <assert.h>

unsigned input_shares_slot(const uint8_t seed[SIPHASH_SEED_SIZE], uint64_t network)
{
    return (unsigned)(siphash13(seed, &network, sizeof(network)) % INPUT_SHARES_SLOTS);
}

void input_shares_change(struct input_shares *s, unsigned slot, size_t from, size_t to)
{
    assert(s->bytes[slot] >= from && s->total >= from);
    s->bytes[slot] += to;
    s->bytes[slot] -= from;
    s->total += to;
    s->total -= from;
}

unsigned input_shares_largest(const struct input_shares *s)
{
    unsigned largest = 0;

    for (unsigned i = 1; i < INPUT_SHARES_SLOTS; i++)
        if (s->bytes[i] > s->bytes[largest])
            largest = i;
    return largest;
}
