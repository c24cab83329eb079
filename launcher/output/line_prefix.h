#pragma once

/*
 * Turns a piece of a worker's output into lines for the console: each whole, each with a prefix. Pure.
 *
 * A line ends with LF, CR or CRLF, as in torchrun: progress bars that redraw their line become lines.
 * Of lines that end with CR alone, redraw_due_ns lets one a second through, and none that is empty: a bar of 100,000 steps
 * would be as many lines. What is left out is in the log file, and the last state of a bar ends with LF or with the stream.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct fold;
struct fold_line;
struct strlist;

enum {
    LINES_PIECE =
        64 << 10, /* a line that is longer is broken into lines of this many bytes, not within a character */
    LINES_SEAM = 256,
};

/* The end of a line that was broken: on_line sees it once more, with the beginning of the rest. */
struct line_seam {
    size_t n;
    char bytes[2 * LINES_SEAM];
};

struct line_prefix {
    const char *prefix;           /* in front of each line */
    const char *prefix_plain;     /* the same without colour, for `filtered` */
    const struct strlist *filter; /* lines that contain one of these texts go to `filtered`, too */
    uint64_t now_ns;              /* monotonic */
    uint64_t *
        redraw_due_ns; /* of the stream, first 0: when the next line that ends with CR is shown; NULL: all are */
    void (*on_line)(void *data, const char *line, size_t n_bytes); /* each line that is shown; or NULL */
    void *data;
    struct line_seam *seam;         /* of the stream, first empty; NULL: on_line does not see across breaks */
    struct fold *fold;              /* lines for the console go through it; NULL: straight there */
    const struct fold_line *folded; /* its member, rank and source */
};

/*
 * Takes whole lines from data and appends them to console and, where the filter fits, to filtered (may be NULL). A rest without a line's end is taken only if `final` (nothing follows), or if it
 * is LINES_PIECE long. Returns how many bytes were taken, or -ENOMEM (then nothing was).
 */
ptrdiff_t line_prefix_take(const struct line_prefix *lines, const char *data, size_t n_bytes, bool final,
                           struct buf *console, struct buf *filtered);

/* template with ${role_name}, ${local_rank}, ${rank}, ${hostname} and its short name ${host} replaced; malloc'ed or NULL. */
char *line_prefix_prefix(const char *template, const char *role, int local_rank, int rank, const char *host);
