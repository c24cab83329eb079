#pragma once

/*
 * Counters are stored as decimal text, as in PyTorch: whatever a client SETs can be counted on, and a
 * counter can be read with GET.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest number, "-9223372036854775808". */
enum { COUNTER_TEXT_MAX = 20 };

/*
 * Reads the number as strtoll() in base 10 and the C locale would: white space, a sign, digits, and
 * whatever follows is ignored. False where std::stoll() throws: no digits, or out of range.
 */
bool counter_parse(const uint8_t *text, size_t n, int64_t *ret);

/* How many bytes the white space, the sign and the digits at the start of the text take. */
size_t counter_span(const uint8_t *text, size_t n);

/* Writes no NUL; returns the number of bytes. */
size_t counter_format(char text[COUNTER_TEXT_MAX], int64_t value);
