/*
 * The sentence of the last failure, one buffer for each thread: nothing to free, nothing to lock, and a
 * failure for want of memory can still be reported. A sentence longer than the buffer loses its end.
 */

#include "worker-runtime/base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SENTENCE_MAX = 1024 };

static _Thread_local char sentence[SENTENCE_MAX];

/*
 * Arguments may point into the sentence itself ("cannot resume: %s", crw_error_message()), so it is
 * written beside and copied.
 */
__attribute__((format(printf, 1, 0))) static size_t sentence_set(const char *format, va_list arguments)
{
    char fresh[SENTENCE_MAX];
    int n = vsnprintf(fresh, sizeof(fresh), format, arguments);

    if (n < 0)
        n = 0;
    if (n > SENTENCE_MAX - 1)
        n = SENTENCE_MAX - 1;
    memcpy(sentence, fresh, (size_t)n);
    sentence[n] = '\0';
    return (size_t)n;
}

int crw_fail(int result, const char *format, ...)
{
    va_list arguments;

    assert(result != 0);
    va_start(arguments, format);
    (void)sentence_set(format, arguments);
    va_end(arguments);
    return result;
}

int crw_fail_errno(int negative_errno, const char *format, ...)
{
    va_list arguments;
    char words[128];
    size_t n;

    assert(negative_errno < 0);
    va_start(arguments, format);
    n = sentence_set(format, arguments);
    va_end(arguments);
    (void)snprintf(sentence + n, sizeof(sentence) - n, ": %s",
                   strerror_r(-negative_errno, words, sizeof(words)));
    return negative_errno;
}

void error_forget(void)
{
    sentence[0] = '\0';
}

const char *crw_error_message(void)
{
    return sentence;
}
