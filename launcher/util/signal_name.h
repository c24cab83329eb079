#pragma once

/* Names of signals: 15 is "SIGTERM". Pure. */

#include <stddef.h>

enum { SIGNAL_NAME_SIZE = 32 };

/* "SIGTERM", "SIGRTMIN+1"; NULL for a number without a name. Returns out. */
const char *signal_name(int signal, char out[SIGNAL_NAME_SIZE]);

/* The number of the standard signal (1 to 31) with the n bytes at text as its name; 0 when there is none. */
int signal_number(const char *text, size_t n);
