#pragma once

/* Numbers on a command line: the whole text has to be one, or it is none. */

#include <stdbool.h>
#include <stdint.h>

/* A whole number in [min, max]; false for anything else, a sign or trailing text included. */
bool number_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* A finite number above 0. */
bool number_parse_positive(const char *text, double *ret);
