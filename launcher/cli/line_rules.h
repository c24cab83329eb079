#pragma once

/* --on-line: what is done when a worker prints a line that matches an expression. Pure. */

#include <stdbool.h>
#include <stddef.h>

#include "launcher/util/line_pattern.h"

enum line_action {
    LINE_MARK,    /* note it in the event log */
    LINE_STACKS,  /* the same, and the stacks of all ranks of the node */
    LINE_RESTART, /* the worker has failed */
    LINE_STOP,    /* the same, and no restart can help */
    LINE_ACTION_COUNT
};

enum {
    LINE_RULES_MAX = 16,
    LINE_RULE_ERROR_SIZE = 512,
    LINE_QUOTE_SIZE = 256, /* of a line that matched, with its NUL */
};

struct line_rule {
    const char *text; /* REGEX=ACTION, borrowed */
    enum line_action action;
    struct line_pattern pattern;
};

struct line_rules {
    struct line_rule items[LINE_RULES_MAX];
    int n_items;
};

/* False, with a sentence in error. */
bool line_rules_add(struct line_rules *rules, const char *text, char error[LINE_RULE_ERROR_SIZE]);

/* The first rule from `first` on that the line matches; -1: none. */
int line_rules_find(const struct line_rules *rules, int first, const char *line, size_t n_bytes);

bool line_rules_have(const struct line_rules *rules, enum line_action action);

/* Whether a worker fails by this action. */
bool line_action_is_failure(enum line_action action);

/* "mark", "restart" ...; NULL beyond the enumeration. */
const char *line_action_name(unsigned action);

/* Copies the beginning of a line, printable and without the blanks around it. */
void line_quote(char out[LINE_QUOTE_SIZE], const char *line, size_t n_bytes);
