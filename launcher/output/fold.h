#pragma once

/*
 * --fold-output: lines that several local ranks print alike become one line for the console, "[ranks 0-7] text". Pure.
 *
 * Lines wait in one queue, in the order in which they came. A line joins the first equal one behind the last line of its
 * member, so the lines of each member keep their order. The front leaves the queue when all members that are present have
 * printed it, FOLD_WAIT_NS after its first line, or when the queue is full. Nothing behind the front is older than it: no line
 * waits longer than that, and memory is bounded whatever is printed.
 */

#include <stddef.h>
#include <stdint.h>

struct buf;
struct fold;

enum {
    FOLD_LINES_MAX = 512,       /* that wait */
    FOLD_BYTES_MAX = 256 << 10, /* of lines that wait; one more line may be above it */
};

#define FOLD_WAIT_NS UINT64_C(200000000)

struct fold_line {
    int member;         /* local rank, 0 to n_members - 1 */
    int rank;           /* of the member in the whole job: what is printed */
    uint64_t source;    /* lines of different sources are not equal: streams, generations */
    const char *prefix; /* in front of the line when no other member prints it */
    const char *text;
    size_t n_bytes;
    uint64_t now_ns; /* monotonic */
};

/* NULL without memory. */
struct fold *fold_create(int n_members);

/* NULL is fine. Lines that wait are dropped. */
void fold_free(struct fold *f);

/* A member is waited for from the first join to as many leaves as joins: each of its streams joins. */
void fold_join(struct fold *f, int member);
void fold_leave(struct fold *f, int member);

/* Takes a line, and appends to console what leaves the queue by that. Without memory the line is not shown. */
void fold_add(struct fold *f, const struct fold_line *line, struct buf *console);

/* When the front leaves the queue at the latest; UINT64_MAX: it is empty. */
uint64_t fold_due_ns(const struct fold *f);

/* Appends what is due or complete to console. */
void fold_emit(struct fold *f, uint64_t now_ns, struct buf *console);

/* Appends everything. */
void fold_flush(struct fold *f, struct buf *console);
