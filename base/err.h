#pragma once

/*
 * Results of functions in this project, unless a header states otherwise:
 *   0            done
 *   negative     -errno: fatal for the operation, forwarded unchanged
 *   positive     a documented result of the module (STORE_E_..., WIRE_E_...): the caller handles it
 *                and never forwards it
 */

#include <errno.h>
#include <stdbool.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* r: 0 or -errno. This process or host lacks memory or descriptors: it shows nothing about a peer. */
static inline bool err_is_shortage(int r)
{
    return r == -EMFILE || r == -ENFILE || r == -ENOBUFS || r == -ENOMEM;
}

/* Ends the calling function with the call's result unless that is 0. What the function owns by then is released by _cleanup_. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        __typeof__(call) _result = (call);                                                                   \
                                                                                                             \
        if (_result)                                                                                         \
            return _result;                                                                                  \
    } while (0)

/* Repeats a system call that a signal has interrupted; its result otherwise. */
#define RETRY(call)                                                                                          \
    (__extension__({                                                                                         \
        __typeof__(call) _result;                                                                            \
        do                                                                                                   \
            _result = (call);                                                                                \
        while (_result < 0 && errno == EINTR);                                                               \
        _result;                                                                                             \
    }))
