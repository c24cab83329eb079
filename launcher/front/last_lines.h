#pragma once

/*
 * The last bytes of the standard error of ranks on many hosts, for the report on the rank that failed first, where the
 * console does not show them. As on one node the report shows at most LAST_LINES_SHOWN lines. Pure.
 *
 * Bounds: LAST_LINES_BYTES of each rank; a bucket holds LAST_LINES_RANKS ranks, and forgets the rank that has printed first.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

enum { LAST_LINES_BYTES = 1024, LAST_LINES_SHOWN = 4, LAST_LINES_BUCKETS = 256, LAST_LINES_RANKS = 64 };

struct last_lines {
    struct list ranks[LAST_LINES_BUCKETS]; /* by rank % LAST_LINES_BUCKETS, the oldest first */
    unsigned n[LAST_LINES_BUCKETS];
};

void last_lines_init(struct last_lines *l);
void last_lines_finish(struct last_lines *l);

/* The rank has another worker. */
void last_lines_forget(struct last_lines *l, uint32_t rank);

/* Without memory the bytes are missing. */
void last_lines_add(struct last_lines *l, uint32_t rank, const uint8_t *bytes, size_t n);

/* The last lines without the last newline, malloc'ed; NULL: none. */
char *last_lines_get(const struct last_lines *l, uint32_t rank);
