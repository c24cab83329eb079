#pragma once

/*
 * The report on a hang: ranks at the same place are one group, and the group that the others wait for is named first. Pure.
 *
 * The order: stopped by a signal; blocked in the kernel (state D); ended while others wait; one that has left the loop
 * (destroy_process_group) while others have not; one that is in no collective while others are; in another collective
 * than most; then what remains, small groups first.
 *
 * Programs on libcrw count their collectives. There a rank that has begun fewer than those that wait in the same group is
 * missing, whatever its stack shows: first one that waits in no other group.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/watch/activity.h"
#include "launcher/watch/stack_text.h"
#include "proto/worker_memory.h"

enum { HANG_LINES_MAX = 12, HANG_NCCL_SIZE = 320, HANG_COLLECTIVES_MAX = 4, HANG_STORE_CLIENTS_MAX = 4 };

/* A process group that a rank is in, of a program on libcrw (proto/worker_memory.h). */
struct hang_collective {
    uint64_t group, number;           /* that this rank has begun */
    enum worker_collective_kind kind; /* WORKER_COLLECTIVE_NONE: it is in none now */
    uint32_t n_ranks;
    bool is_world;
};

struct hang_rank {
    int rank;
    int64_t pid;
    const char *host;
    bool has_ended;
    uint32_t state;    /* of the process, the letter that /proc has; 0: not known */
    int64_t child_pid; /* a descendant in state T or D; 0: none */
    uint32_t child_state;
    enum stack_kind kind;
    char text[STACK_TEXT_SIZE];
    struct hang_collective collectives[HANG_COLLECTIVES_MAX];
    int n_collectives;
    /* Of a look at a partial stall (stall.h); else 0. */
    enum activity activity;
    uint32_t waits_ms, limit_ms; /* present wait, and from which length on it is unusual (waits.h) */
    uint64_t bytes_per_s;        /* of ACTIVITY_READS and ACTIVITY_WRITES */
    int32_t waits_percent;       /* share of the last minute, -1: not known; with so many waits */
    uint32_t n_waits;
    bool is_meeting; /* its stack has init_process_group(); of ranks of this node alone */
    /* Keys of the worker store (store_waits.h). */
    uint64_t store_clients[HANG_STORE_CLIENTS_MAX]; /* connections of the rank; 0: none */
    bool waits_for_key;
    int setter;      /* of that key, by its name; -1: none */
    bool is_awaited; /* by the name of a key that another rank waits for */
};

/* Whether a process is blocked in the kernel, or stopped by a signal or a tracer: 'D', 'T' or 't'. */
bool hang_is_blocked(uint32_t state);

/* Takes over the records that process `pid` has written, n_bytes from WORKER_COLLECTIVES_AT on; those of groups in which the rank
 * waits first. A rank that waits has that as its text. The rest of *rank is complete. */
void hang_add_collectives(struct hang_rank *rank, const uint8_t *records, size_t n_bytes);

/* Sorts the ranks into this order, those of a group next to each other. Returns whether the first group stands out. */
bool hang_sort(struct hang_rank *ranks, size_t n_ranks);

/* Number of groups of sorted ranks. */
size_t hang_count_groups(const struct hang_rank *ranks, size_t n_ranks);

/* The lines about the groups of sorted ranks, at most HANG_LINES_MAX - 3, each with its newline: malloc'ed, or NULL
 * without memory. */
char *hang_text(const struct hang_rank *ranks, size_t n_ranks, bool stands_out);
