#pragma once

/*
 * Whether a failure will be the same on every node and at every start: what the last line of a Python traceback names is
 * in the program or in its installation, not in the machine. Pure.
 */

#include <stdbool.h>
#include <stddef.h>

/* The last line of a text that is not empty, without its end: its beginning, and its bytes. */
const char *final_line(const char *text, size_t *ret_size);

/* text: a message or the end of standard error, whose last line that is not empty counts. */
bool final_error_is_in(const char *text);
