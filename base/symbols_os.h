#pragma once

/* The functions of a library that dlopen() has loaded. Inline, as time.h. */

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct library_function {
    const char *name;
    void *at; /* address of the function pointer to set */
};

/* False: the library lacks a function. POSIX promises for dlsym() that a function pointer is as large as a data pointer. */
static inline bool library_find(void *library, const struct library_function *functions, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, functions[i].name);

        if (!found)
            return false;
        memcpy(functions[i].at, &found, sizeof(found));
    }
    return true;
}
