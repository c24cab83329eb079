#pragma once

/*
 * Whether a failure will be the same on every node and at every start: what the last line of a Python traceback names is
 * in the program or in its installation, not in the machine. Pure.
 */

#include <stdbool.h>

/* text: a message or the end of standard error, whose last line that is not empty counts. */
bool final_error_is_in(const char *text);
