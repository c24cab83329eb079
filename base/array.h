#pragma once

/* Arrays of malloc() that grow. */

#include <stdlib.h>

/* Gives the array room for n elements. False without memory: the array stays as it was. */
#define array_resize(array, n)                                                                               \
    (__extension__({                                                                                         \
        __typeof__(array) _resized = reallocarray(array, n, sizeof(*(array)));                               \
        if (_resized)                                                                                        \
            (array) = _resized;                                                                              \
        _resized != NULL;                                                                                    \
    }))
