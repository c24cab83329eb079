#pragma once

/*
 * The picture of crunctl top: a line for each job, its sums, a line for each node, a line for each rank, as many as fit. A
 * terminal redraws it in place: every line ends with "erase the rest", no query is sent, and what did not change flickers on
 * no terminal. Texts from the network and from files are made printable. Pure.
 *
 * Only what fits is formatted, so a thousand ranks cost as much as the visible ones.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct job_status;

struct top_view {
    int width, height;    /* of the terminal; lines are cut to it. 0: all lines, uncut */
    int64_t now_s;        /* since 1970 */
    size_t first;         /* ranks that are scrolled past */
    bool is_live;         /* escape sequences for a terminal, and a line of keys at the end */
    bool has_marks_first; /* ranks with a mark (hang, straggler, failed) before the others */
    bool hides_nodes;
};

enum { TOP_KEY_UP = 256, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN };

/* Malloc'ed bytes, NULL without memory. */
char *top_text(const struct job_status *jobs, size_t n_jobs, const struct top_view *view);

/* The next key of what a terminal sent, TOP_KEY_* for arrows and pages, and *ret_n, its bytes; 0: no key is complete. */
int top_next_key(const char *bytes, size_t n, size_t *ret_n);

/* What a key changes. False: top is to end. n_ranks: of all jobs. */
bool top_press(struct top_view *view, int key, size_t n_ranks);
