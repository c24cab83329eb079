#pragma once

/*
 * How a function of the library fails: one sentence for a person, one result for the program.
 *
 *     return crw_fail(CRW_E_DATA, "%s ends after %zu bytes; its header promises %zu", path, n, expected);
 *
 * The sentence stays until the thread's next failure; crw_error_message() returns it. It names what
 * failed, where, why and, where it helps, the remedy. It has no newline and no final period, so that a
 * program can put it behind its own name.
 */

#include "base/err.h" /* TRY() passes a failure on; its sentence stays */
#include "worker-runtime/crw.h"

/* Keeps the sentence for this thread and returns result, which must not be 0. */
int crw_fail(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same with ": " and the system's words for -negative_errno behind it; returns negative_errno. */
int crw_fail_errno(int negative_errno, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The sentence becomes "": in a forked process it is about another one. */
void error_forget(void);

/*
 * The first line of a function of crw.h: an argument that cannot be right ends the call with `result` and a sentence that
 * names the function and what it needs.
 *
 *     NEED(group && ret_data, CRW_E_ARGUMENT);
 */
#define NEED(condition, ... /* result; none where the function returns nothing */)                           \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            (void)crw_fail(CRW_E_ARGUMENT, "%s() was called without what it needs: %s", __func__,            \
                           #condition);                                                                      \
            return __VA_ARGS__;                                                                              \
        }                                                                                                    \
    } while (0)

/* Can n elements of that size be at p? No program has an array of 2^47 bytes. NULL is fine for none. */
static inline bool is_array(const void *p, size_t n, size_t size)
{
    return n == 0 || (p && n <= ((size_t)1 << 47) / size);
}
