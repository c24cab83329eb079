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

void handshake_wait_init(struct handshake_wait *w)
{
    list_init(&w->link);
}

void handshake_wait_end(struct handshake_wait *w)
{
    list_unlink(&w->link);
}

bool handshake_wait_is_pending(const struct handshake_wait *w)
{
    return !list_is_empty(&w->link);
}

bool handshake_turns_are_pending(const struct handshake_turns *t)
{
    return !list_is_empty(&t->ring);
}

void handshake_turns_add(struct handshake_turns *t, struct handshake_wait *w, uint64_t address)
{
    struct handshake_queue *q = &t->queues[siphash13(t->seed, &address, sizeof(address)) % HANDSHAKE_QUEUES];

    list_append(&q->waiting, &w->link);
    if (list_is_empty(&q->ring_link))
        list_append(&t->ring, &q->ring_link);
}

struct handshake_wait *handshake_turns_next(struct handshake_turns *t)
{
    while (!list_is_empty(&t->ring)) {
        struct handshake_queue *q = list_entry(t->ring.next, struct handshake_queue, ring_link);
        struct handshake_wait *w;

        list_unlink(&q->ring_link);
        if (list_is_empty(&q->waiting))
            continue; /* they have ended */
        w = list_entry(q->waiting.next, struct handshake_wait, link);
        list_unlink(&w->link);
        if (!list_is_empty(&q->waiting))
            list_append(&t->ring, &q->ring_link);
        return w;
    }
    return NULL;
}
