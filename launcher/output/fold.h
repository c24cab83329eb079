#pragma once

/*
 * --fold-output: lines that several local ranks print alike become one line for the console, "[ranks 0-7] text". Pure.
 *
 * The lines of each member wait in a queue of their own, so they keep their order. What all members that are present have
 * printed next is shown at once. Otherwise the line that waits longest is shown FOLD_WAIT_NS after it came, for all members
 * that have printed it since; what they have printed before that is shown before it. So no line waits longer, lines of single ranks
 * between equal ones do no harm, and memory is bounded: when too much waits, the oldest line is taken for due.
 */

#include <stddef.h>
#include <stdint.h>

struct buf;
struct fold;

enum {
    FOLD_LINES_MAX = 4096,    /* that wait, of all members */
    FOLD_BYTES_MAX = 1 << 20, /* the same */
};

#define FOLD_WAIT_NS UINT64_C(200000000)

struct fold_line {
    int member;         /* local rank (of a front: rank), which has joined */
    int rank;           /* of the member in the whole job: what is printed */
    uint64_t source;    /* lines of different sources are not equal: streams, generations */
    const char *prefix; /* in front of the line when no other member prints it */
    const char *text;
    size_t n_bytes;
    uint64_t now_ns; /* monotonic */
};

/* n_expected: no line is complete while fewer members are present. NULL without memory. */
struct fold *fold_create(int n_members, int n_expected);

/* NULL is fine. Lines that wait are dropped. */
void fold_free(struct fold *f);

/* A member is waited for from the first join to as many leaves as joins: each of its streams joins. A member beyond n_members
 * makes room for more. 0 or -ENOMEM. */
int fold_join(struct fold *f, int member);
void fold_leave(struct fold *f, int member);

/* Takes a line, and appends to console what is complete by that, or too much. Without memory the line is not shown. */
void fold_add(struct fold *f, const struct fold_line *line, struct buf *console);

/* When fold_emit() has something to do at the latest; UINT64_MAX: nothing waits. */
uint64_t fold_due_ns(const struct fold *f);

/*
 * Appends to console what is complete, and what was due at looked_ns: all that members had printed until then has to
 * have been added. So a line that another member has printed in time is not missed when the reader runs late.
 */
void fold_emit(struct fold *f, uint64_t looked_ns, struct buf *console);

/* Appends everything. */
void fold_flush(struct fold *f, struct buf *console);
