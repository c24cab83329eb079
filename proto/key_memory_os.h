#pragma once

/*
 * Memory for secrets and keys: it is part of no core file, neither of the kernel's nor of one that gcore makes, is empty in a
 * forked child, and is overwritten when it is given back.
 */

#include <stddef.h>

/* n bytes of zeros in pages of their own; NULL and errno when there are none. */
void *key_memory_new(size_t n);

/* NULL is fine. */
void key_memory_free(void *p, size_t n);
