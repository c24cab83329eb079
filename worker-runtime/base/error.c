/*
 * The sentence of the last failure, one buffer for each thread: nothing to free, nothing to lock, and a
 * failure for want of memory can still be reported. A sentence longer than the buffer loses its end.
 */

#include "worker-runtime/base/error.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"

enum { SENTENCE_MAX = 1024 };

static _Thread_local char sentence[SENTENCE_MAX];

/*
 * fresh: n bytes, of which SENTENCE_MAX - 1 count. Arguments may point into the sentence itself ("cannot resume: %s",
 * crw_error_message()), so each sentence is written beside and copied.
 */
static size_t sentence_set(const char fresh[SENTENCE_MAX], int n)
{
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
    char fresh[SENTENCE_MAX];

    assert(result != 0);
    (void)sentence_set(fresh, format_arguments(fresh, sizeof(fresh), format));
    return result;
}

int crw_fail_errno(int negative_errno, const char *format, ...)
{
    char fresh[SENTENCE_MAX], words[128];

    assert(negative_errno < 0);
    size_t n = sentence_set(fresh, format_arguments(fresh, sizeof(fresh), format));
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
