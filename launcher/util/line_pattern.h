#pragma once

/*
 * Extended regular expressions (POSIX) for lines of output, matched in time that is linear in the line: the states of the
 * expression are followed together (Thompson's construction), so no expression and no line makes it slow. The library's
 * regexec() has expressions for which it takes exponential time and memory. There are no back-references. Pure.
 *
 * Bytes, not characters: outside ASCII, a character of UTF-8 matches itself, and "." one of its bytes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LINE_PATTERN_STEPS = 256, /* an expression that needs more is refused */
    LINE_PATTERN_SETS = 24,
    LINE_PATTERN_DEPTH = 32,
    LINE_PATTERN_LINE_MAX = 4096, /* bytes of a line that are looked at */
    LINE_PATTERN_ERROR_SIZE = 96,
};

struct line_pattern_step {
    uint8_t kind;
    uint8_t byte;        /* of a byte or a set */
    int16_t next, other; /* relative */
};

struct line_pattern {
    struct line_pattern_step steps[LINE_PATTERN_STEPS + 1];
    int n_steps;
    uint8_t sets[LINE_PATTERN_SETS][32];
    int n_sets;
};

/* False, with a part of a sentence in error. */
bool line_pattern_parse(struct line_pattern *p, const char *text, size_t n_bytes,
                        char error[LINE_PATTERN_ERROR_SIZE]);

/* Whether some part of the line matches. */
bool line_pattern_matches(const struct line_pattern *p, const char *line, size_t n_bytes);
