#pragma once

/*
 * How many connections each owner has, an address or a user of this machine, so that one owner cannot take all. Owners are spread over a
 * fixed number of counters by a keyed hash: nothing is allocated for an owner, and none can choose the counter of another one. Two that
 * share a counter share a quota, which is a large part of all connections. Owner 0 has counter 0 for itself. No I/O.
 *
 * The caller names a connection by its descriptor when it ends, as its address may not be known any more then.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/siphash.h"

enum { ADDRESS_QUOTA_COUNTERS = 4096 };

struct address_quota {
    uint32_t max; /* connections of one owner; 0: any number, and nothing is counted */
    uint32_t counts[ADDRESS_QUOTA_COUNTERS];
    uint16_t *counter_of_fd; /* 1 + its counter; 0: it is not counted */
    size_t n_fds;
    uint8_t seed[SIPHASH_SEED_SIZE]; /* of a server: of all of its tables */
};

/* Counts the connection; false: its owner has as many as it may, or memory is out. */
bool address_quota_take(struct address_quota *q, int fd, uint64_t owner);

/* Of a connection that was counted, or 0. */
uint16_t address_quota_counter(const struct address_quota *q, int fd);

/* The connection has ended, or fd is none that was counted. */
void address_quota_release(struct address_quota *q, int fd);

void address_quota_finish(struct address_quota *q);
