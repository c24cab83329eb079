#pragma once

/* What happens when, in virtual time: a heap, in order of time and then of being added. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moment {
    uint64_t at_ns;
    uint64_t serial;
    uint32_t kind;
    uint32_t who;
    uint64_t detail;
};

struct schedule {
    struct moment *heap;
    size_t n, capacity;
    uint64_t n_serials;
};

void schedule_finish(struct schedule *s);
void schedule_add(struct schedule *s, uint64_t at_ns, uint32_t kind, uint32_t who, uint64_t detail);
/* Behind all other moments of that time, also those that are added later. */
void schedule_add_last(struct schedule *s, uint64_t at_ns, uint32_t kind, uint32_t who, uint64_t detail);
/* False: nothing is left. */
bool schedule_next(struct schedule *s, struct moment *ret);
