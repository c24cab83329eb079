#pragma once

/*
 * Whose TLS handshake is next. A handshake costs a fifth of a millisecond, so an address that opens connections as fast as it can
 * would use up the loop's time. Handshakes wait here, and addresses take turns: one with a thousand waiting delays that of
 * another address by one.
 *
 * Addresses are spread over a fixed number of queues by a keyed hash, so that nothing is allocated and no sender can choose whom it
 * shares a queue with. Queues that are not empty are in a ring; the first of it gives its oldest entry and goes to the
 * end. No I/O and no clock: the caller decides how many it takes at a time (rounds_agent_uv.c: for a millisecond of a turn of the loop).
 */

#include <stdint.h>

#include "base/list.h"
#include "base/siphash.h"

enum { HANDSHAKE_QUEUES = 512 };

struct handshake_turns {
    struct handshake_queue {
        struct list ring_link; /* while it is not empty, and until its next turn */
        struct list waiting;
    } queues[HANDSHAKE_QUEUES];
    struct list ring; /* not empty: handshake_turns_next() has to be called again, perhaps in vain */
    uint8_t seed[SIPHASH_SEED_SIZE];
};

void handshake_turns_init(struct handshake_turns *t, const uint8_t seed[SIPHASH_SEED_SIZE]);

/* The connection, by its unlinked link, waits for a turn among the connections of the address. list_unlink() ends the wait. */
void handshake_turns_add(struct handshake_turns *t, struct list *waiting, uint64_t address);

/* Takes the next link out of its queue; NULL: no connection waits. */
struct list *handshake_turns_next(struct handshake_turns *t);
