#pragma once

/* Numbers on a command line: the whole text has to be one, or it is none. */

#include <stdbool.h>

/* A finite number above 0. */
bool number_parse_positive(const char *text, double *ret);
