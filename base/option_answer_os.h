#pragma once

#include "base/options.h"

/*
 * Prints what a result of option_table_parse() but 0 asks for: the text to standard output, or the sentence in error to standard
 * error. The exit code: 0, 2 for a wrong command line, 1 when the text could not be written.
 */
int option_answer(const struct option_table *t, int result, const char *error, const char *version);
