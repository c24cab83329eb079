#pragma once

/*
 * The report on a hang: ranks at the same place form a group, and the awaited group comes first. Pure.
 *
 * The order: stopped by a signal; blocked in the kernel (state D); ended while others wait; a rank behind the loop
 * (destroy_process_group) while others are in the loop; a rank in no collective while others are; in another collective
 * than most; then the rest, small groups first.
 *
 * Programs on libcrw count collectives. There a rank with fewer begun collectives than the waiting ranks of the same group is
 * missing, whatever the stack: first a rank that waits in no other group.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/watch/activity.h"
#include "launcher/watch/stack_text.h"
#include "proto/worker_memory.h"

enum { HANG_LINES_MAX = 12, HANG_NCCL_SIZE = 320, HANG_COLLECTIVES_MAX = 4, HANG_STORE_CLIENTS_MAX = 4 };

/* A process group of a rank, of a program on libcrw (proto/worker_memory.h). */
struct hang_collective {
    uint64_t group, number;           /* begun by the rank */
    enum worker_collective_kind kind; /* WORKER_COLLECTIVE_NONE: in none now */
    uint32_t n_ranks;
    bool is_world;
};

struct hang_rank {
    int rank;
    int64_t pid;
    const char *host;
    bool has_ended;
    uint32_t state;    /* of the process, as the letter of /proc; 0: not known */
    int64_t child_pid; /* a descendant in state T or D; 0: none */
    uint32_t child_state;
    char child_name[16];
    enum stack_kind kind;
    char text[STACK_TEXT_SIZE];
    struct hang_collective collectives[HANG_COLLECTIVES_MAX];
    size_t n_collectives;
    /* Of a look at a partial stall (stall.h); else 0. */
    enum activity activity;
    bool is_wait_known;          /* a collective by counters or stack; else a guess from the system call */
    uint32_t waits_ms, limit_ms; /* present wait, and the length from which on a wait is unusual (waits.h) */
    uint64_t bytes_per_s;        /* of ACTIVITY_READS and ACTIVITY_WRITES */
    int32_t waits_percent;       /* share of the last minute, -1: not known; with so many waits */
    uint32_t n_waits;
    bool is_meeting; /* a process of it is in init_process_group(); of ranks of this node alone */
    /* Keys of the worker store (store_waits.h). */
    uint64_t store_clients[HANG_STORE_CLIENTS_MAX]; /* connections of the rank; 0: none */
    bool waits_for_key;
    int setter;      /* of the key, by the name of the key; -1: none */
    bool is_awaited; /* by the name of a key for which another rank waits */
};

/* Whether a process is blocked in the kernel, or stopped by a signal or a tracer: 'D', 'T' or 't'. */
bool hang_is_blocked(uint32_t state);

/* Takes over those of process `pid` of n records from WORKER_COLLECTIVES_AT on, first the records of groups in which the rank
 * waits. The text of a waiting rank names the collective. The rest of *rank is complete. */
void hang_add_collectives(struct hang_rank *rank, const void *records, size_t n);

/* The collective in which the rank waits; NULL: none. */
const struct hang_collective *hang_waits_in(const struct hang_rank *r);

/* Sorts the ranks into the order above, the ranks of a group next to each other. Returns whether the first group stands out. */
bool hang_sort(struct hang_rank *ranks, size_t n_ranks);

/* Number of groups of sorted ranks. */
size_t hang_count_groups(const struct hang_rank *ranks, size_t n_ranks);

/* The lines about the groups of sorted ranks, at most HANG_LINES_MAX - 3, each with a newline: malloc'ed, or NULL
 * without memory. */
char *hang_text(const struct hang_rank *ranks, size_t n_ranks, bool stands_out);
