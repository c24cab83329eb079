#pragma once

/* Random bytes of the system. Inline, as time.h. */

#include <stddef.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/types.h>

#include "base/err.h"

/* Fills n bytes at to. Returns 0 or -errno: ENOSYS under a filter that does not know the call. */
static inline int random_fill(void *to, size_t n)
{
    uint8_t *bytes = (uint8_t *)to;

    while (n > 0) {
        ssize_t got = RETRY(getrandom(bytes, n, 0));

        if (got < 0)
            return -errno;
        bytes += got;
        n -= (size_t)got;
    }
    return 0;
}
