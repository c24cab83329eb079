#pragma once

/*
 * Lines of agents on many hosts, each shown once. The first host with a line owns the line. The same line of another host is
 * dropped, a repetition by the owner is shown. Lines are held for a moment: "[host]" is put only before lines of a single
 * host. Pure.
 *
 * Bounds: COMMON_LINES_SEEN lines are remembered for COMMON_LINES_FORGET_MS, the oldest is forgotten first; COMMON_LINES_HELD are held, then the oldest is due.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COMMON_LINES_SEEN = 1024,
    COMMON_LINES_HELD = 256,
    COMMON_LINES_DELAY_MS = 200,
    COMMON_LINES_FORGET_MS = 60 * 1000, /* hosts print lines of the same event within this time */
};

struct seen_line {
    uint64_t hash, forget_ms;
    unsigned host; /* index of the owner */
    bool is_common;
};

struct held_line {
    char *text; /* malloc'ed; without "crun: " and time */
    uint64_t hash, due_ms;
    unsigned host;
    bool is_crun;   /* the line began with "crun: " */
    bool is_common; /* another host has printed the line, too */
};

/* Zeroed before the first use. */
struct common_lines {
    struct seen_line seen[COMMON_LINES_SEEN];
    size_t n_seen; /* so far: the next one is at this index modulo COMMON_LINES_SEEN */
    struct held_line held[COMMON_LINES_HELD];
    size_t begin, n_held;
};

/* A line without memory is lost. */
void common_lines_add(struct common_lines *a, unsigned host, const char *line, uint64_t now_ms);

/* Takes the next line that is due; the caller frees ret->text. */
bool common_lines_next(struct common_lines *a, uint64_t now_ms, struct held_line *ret);
