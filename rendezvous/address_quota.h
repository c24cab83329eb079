#pragma once

/*
 * How many connections each address has, so that one address cannot take all. Addresses are spread over a fixed number of counters by
 * a keyed hash: nothing is allocated for an address, and none can choose the counter of another one. Two that share a counter
 * share a quota, which is a large part of all connections. No I/O.
 *
 * The caller names a connection by its descriptor when it ends, as its address may not be known any more then.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/siphash.h"

enum { ADDRESS_QUOTA_COUNTERS = 4096 };

struct address_quota {
    uint32_t max; /* connections of one address; 0: any number, and nothing is counted */
    uint32_t counts[ADDRESS_QUOTA_COUNTERS];
    uint16_t *counter_of_fd; /* 1 + its counter; 0: it is not counted */
    size_t n_fds;
    uint8_t seed[SIPHASH_SEED_SIZE];
};

/* Counts the connection; false: its address has as many as it may, or memory is out. */
bool address_quota_take(struct address_quota *q, int fd, uint64_t address);

/* The connection has ended, or fd is none that was counted. */
void address_quota_release(struct address_quota *q, int fd);

void address_quota_finish(struct address_quota *q);
