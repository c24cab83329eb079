#pragma once

/*
 * Which network's clients hold the most bytes of incomplete messages, so that when all hold too much (--max-input), the
 * connection that is closed is one of theirs, not that of a client which happens to send next. No I/O.
 *
 * Networks are spread over a fixed number of slots by a keyed hash: nothing is allocated, and no sender can choose whom it shares
 * a slot with.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/siphash.h"

enum { INPUT_SHARES_SLOTS = 512 };

struct input_shares {
    uint64_t bytes[INPUT_SHARES_SLOTS];
    uint64_t total;
};

/* network: as address_network() has it. */
unsigned input_shares_slot(const uint8_t seed[SIPHASH_SEED_SIZE], uint64_t network);

/* A client of that slot held `from` bytes, and holds `to` now. */
void input_shares_change(struct input_shares *s, unsigned slot, size_t from, size_t to);

/* The slot that holds the most. */
unsigned input_shares_largest(const struct input_shares *s);
