#pragma once

/* What the tests of replicas have in common as the host of a replica (struct replica_host). */

#include <stdlib.h>
#include <string.h>

#include "rendezvous/relay/replica.h"

#include "tests/support/c/cmocka_fixed.h"

/* Of the store, to be freed. */
static inline struct replica_node *new_replica_node(struct store *s, const struct wire_limits *limits,
                                                    const uint8_t *nonce)
{
    struct replica_node *n = calloc(1, sizeof(*n));

    assert_non_null(n);
    relay_node_init(&n->node, s, limits);
    memcpy(n->nonce, nonce, sizeof(n->nonce));
    return n;
}

static inline void note_nothing(void *data, struct replica_node *n)
{
    assert_non_null(n);
}
