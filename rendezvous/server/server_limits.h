#pragma once

/*
 * What a server allows its clients.
 */

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "rendezvous/store/store.h"

/* Bounds on what clients can ask for. A client that exceeds one is cut off without a reply (the wire has
 * none for it), with a line in the log; others are not affected. man/crund.8 has a flag for each. */
struct server_limits {
    struct wire_limits wire;
    struct store_limits store;
    struct store_limits job_store; /* of one job's keys (job_stores_uv.h); bytes of all jobs: as `store` */
    unsigned connections_max;
    unsigned
        connections_each_max; /* of one owner (address_quota.h); 0: any number, and no shares of the store */
    size_t output_max;        /* replies of one client that it has not read: past it, its requests wait */
    uint64_t output_all_max;  /* the same over all clients: past it, one request of each at a time */
    uint64_t input_all_max;   /* incomplete messages, over all clients */
    unsigned handshake_ms;    /* from connecting to the end of VALIDATE */
    unsigned frame_ms;        /* an incomplete message may stay without progress */
};

#define SERVER_LIMITS_DEFAULT                                                                                \
    {                                                                                                        \
        .wire = WIRE_LIMITS_DEFAULT, .store = STORE_LIMITS_DEFAULT, .job_store = STORE_LIMITS_DEFAULT,       \
        .connections_max = 100000, .output_max = 64u << 10, .output_all_max = 256u << 20,                    \
        .input_all_max = 1u << 30, .handshake_ms = 5000, .frame_ms = 30000                                   \
    }
