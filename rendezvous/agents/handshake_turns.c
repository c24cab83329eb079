#include "rendezvous/agents/handshake_turns.h"

#include <string.h>

void handshake_turns_init(struct handshake_turns *t, const uint8_t seed[SIPHASH_SEED_SIZE])
{
    for (size_t i = 0; i < HANDSHAKE_QUEUES; i++) {
        list_init(&t->queues[i].ring_link);
        list_init(&t->queues[i].waiting);
    }
    list_init(&t->ring);
    memcpy(t->seed, seed, SIPHASH_SEED_SIZE);
}

void handshake_turns_add(struct handshake_turns *t, struct list *waiting, uint64_t address)
{
    struct handshake_queue *q = &t->queues[siphash13(t->seed, &address, sizeof(address)) % HANDSHAKE_QUEUES];

    list_append(&q->waiting, waiting);
    if (list_is_empty(&q->ring_link))
        list_append(&t->ring, &q->ring_link);
}

struct list *handshake_turns_next(struct handshake_turns *t)
{
    struct handshake_queue *q;

    while ((q = list_first(&t->ring, struct handshake_queue, ring_link))) {
        struct list *waiting = q->waiting.next;

        list_unlink(&q->ring_link);
        if (list_is_empty(&q->waiting))
            continue; /* they have ended */
        list_unlink(waiting);
        if (!list_is_empty(&q->waiting))
            list_append(&t->ring, &q->ring_link);
        return waiting;
    }
    return NULL;
}
