#pragma once

/*
 * Memory that runs out at the k-th allocation. A test that wants it depends on failing_alloc_dep, which
 * makes the linker send malloc, calloc, realloc, reallocarray, strdup and free through here.
 */

#include <stddef.h>

/* The k-th allocation from now on fails (1: the next one), and only that one. 0: none. */
void failing_alloc_arm(size_t k);

/* Did the armed failure happen? */
int failing_alloc_fired(void);

/* Allocations that were not freed, of the program's own calls. */
size_t failing_alloc_live(void);
