#pragma once

/* The last line of an output, for a table. Pure. */

#include <stddef.h>

/* The last line of bytes that is not empty, without escape sequences and made printable, cut between characters. A progress
 * bar that is redrawn after carriage returns counts as lines. "": there is none. size: at least 1. */
void last_line_of(const char *bytes, size_t n, char *ret, size_t size);
