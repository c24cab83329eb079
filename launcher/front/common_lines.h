#pragma once

/*
 * Lines of agents on many hosts, each shown once, in the order in which the first host has printed them. Lines are held until all usable
 * hosts have printed the first one of them, or for a moment. Then the hosts of a line that not all have printed stand in front
 * of the line: "[a, c] text". A host that prints a line again, or prints a shown line for the first time and late, is told apart: each
 * line counts once for each host. Pure.
 *
 * Bounds: COMMON_LINES_MAX lines are remembered for COMMON_LINES_FORGET_MS, the oldest is forgotten first; with COMMON_LINES_HELD held
 * lines the oldest is due.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COMMON_LINES_MAX = 1024,
    COMMON_LINES_HELD = 256,
    COMMON_LINES_DELAY_MS = 200,
    COMMON_LINES_FORGET_MS = 60 * 1000, /* hosts print lines of the same event within this time */
    COMMON_LINES_NAMES = 4,             /* hosts named in front of a line */
};

struct common_line {
    char *text;    /* malloc'ed, without "crun: " and time; NULL: no line */
    bool is_crun;  /* the line began with "crun: " */
    bool *printed; /* malloc'ed, by host: the host has printed the line */
    unsigned n_printed;
    uint64_t begin_ms; /* time at which the first host printed the line */
};

/* Zeroed but for names and n_hosts. */
struct common_lines {
    const char *const *names; /* of n_hosts hosts */
    unsigned n_hosts;
    struct common_line lines[COMMON_LINES_MAX]; /* a ring: shown lines, then n_held held ones */
    size_t end, n_held;                         /* end: behind the last line; modulo COMMON_LINES_MAX */
};

/* A line without memory is lost. */
void common_lines_add(struct common_lines *a, unsigned host, const char *line, uint64_t now_ms);

/* The next line that is due, malloc'ed, or NULL. *ret_is_crun: "crun: " belongs in front of the line. */
char *common_lines_next(struct common_lines *a, unsigned n_usable, uint64_t now_ms, bool *ret_is_crun);

void common_lines_finish(struct common_lines *a);
