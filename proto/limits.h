#pragma once

/*
 * Bounds on what a peer may announce. They are asked before anything is allocated.
 */

#include <stdint.h>

/* Each below 2^56, so that adding a few of them, or counting 16 bytes for each key, cannot overflow. */
struct wire_limits {
    uint64_t key_max;     /* bytes of one key, the client's leading "/" included */
    uint64_t value_max;   /* bytes of one value inside a message */
    uint64_t keys_max;    /* entries of one list */
    uint64_t message_max; /* bytes of one whole message */
};

/* The first three are PyTorch 2.13's; it has no bound on a whole message (131,072 pairs of 8 MiB). */
#define WIRE_LIMITS_DEFAULT                                                                                  \
    {                                                                                                        \
        .key_max = 8192, .value_max = 8u << 20, .keys_max = 131072, .message_max = 128u << 20                \
    }

/* What a client takes from a server. A value may have grown by APPEND, and the keys of all clients come in
 * one list. What arrives is kept, what is only announced costs nothing, so these may be generous. */
#define WIRE_LIMITS_REPLY_DEFAULT                                                                            \
    {                                                                                                        \
        .key_max = 1u << 20, .value_max = 1u << 30, .keys_max = 1u << 24, .message_max = 1u << 31            \
    }
