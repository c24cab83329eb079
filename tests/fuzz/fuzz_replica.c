/*
 * Fuzz target: a backup of a store (replica.h) that receives any bytes from the crund that serves it, as messages of
 * replica_stream.h. Pieces of a state and entries of all stores are for one. Whatever comes, all memory has been given back at the end
 * (store_finish() asserts it).
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/relay/replica.h"
#include "rendezvous/relay/replica_state.h"
#include "rendezvous/relay/replica_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES_MAX = 8, TURNS_MAX = 10000 };

static const uint8_t no_seed[SIPHASH_SEED_SIZE];
static const struct wire_limits limits = {
    .key_max = 300, .value_max = 60000, .keys_max = 64, .message_max = 100000};

struct backup {
    struct store store;
    struct replica replica;
    struct replica_state_reader reader;
    struct replica_node *nodes[NODES_MAX];
    unsigned n_nodes;
};

static struct replica_node *make_node(void *data, const uint8_t *nonce)
{
    struct backup *b = data;
    struct replica_node *n = b->n_nodes < NODES_MAX ? calloc(1, sizeof(*n)) : NULL;

    if (!n)
        return NULL;
    relay_node_init(&n->node, &b->store, &limits);
    memcpy(n->nonce, nonce, sizeof(n->nonce));
    b->nodes[b->n_nodes++] = n;
    return n;
}

static void note_nothing(void *data, struct replica_node *n)
{
    (void)data;
    (void)n;
}

static void free_node(void *data, struct replica_node *n, int reason)
{
    struct backup *b = data;

    (void)reason;
    for (unsigned i = 0; i < b->n_nodes; i++)
        if (b->nodes[i] == n)
            b->nodes[i] = NULL;
    free(n);
}

/* As job_stores_uv.c: a state is whole before an entry is received. */
static int take(struct backup *b, const struct replica_message *m)
{
    bool is_state = m->kind == REPLICA_STATE, is_read = b->reader.has_head && !b->reader.is_done;
    int r = 0;

    if (is_state)
        r = b->replica.appended > 0 && !is_read ? -1 : replica_state_read(&b->reader, m->entry);
    else if (m->kind == REPLICA_ENTRY)
        r = is_read ? -1 : replica_receive(&b->replica, m->entry.data, m->entry.size);
    for (unsigned i = 0; r == 0 && i < TURNS_MAX && replica_is_busy(&b->replica); i++)
        r = replica_run(&b->replica);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct store_limits store_limits = {.keys_max = 1000, .bytes_max = 1 << 20, .waiters_max = 100};
    struct backup b = {0};
    const struct replica_host host = {.create = make_node,
                                      .created = note_nothing,
                                      .dropped = free_node,
                                      .has_output = note_nothing,
                                      .data = &b};
    struct replica_message m;
    size_t used = 1;

    if (store_init(&b.store, &store_limits, no_seed) < 0)
        return 0;
    replica_init(&b.replica, &b.store, &host);
    b.replica.is_backup = true;
    replica_state_reader_init(&b.reader, &b.replica);
    for (int r = 0; r == 0 && used > 0; data += used, size -= used) {
        r = replica_decode(data, size, &m, &used);
        if (r == 0 && used > 0)
            r = take(&b, &m);
    }
    for (unsigned i = 0; i < b.n_nodes; i++) {
        if (!b.nodes[i])
            continue;
        replica_forget(&b.replica, b.nodes[i]);
        relay_node_finish(&b.nodes[i]->node);
        free(b.nodes[i]);
    }
    replica_state_reader_finish(&b.reader);
    replica_finish(&b.replica);
    store_finish(&b.store);
    return 0;
}
