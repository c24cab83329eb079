#include "base/option_answer_os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

int option_answer(const struct option_table *t, int result, const char *error, const char *version)
{
    int n = (int)strcspn(t->commands, " ");

    if (result == OPTIONS_E_USAGE) {
        (void)fprintf(stderr, "%.*s: %s\nTry %.*s --help.\n", n, t->commands, error, n, t->commands);
        return 2;
    }
    _cleanup_free_ char *text = option_table_answer(t, result, version);
    if (text && fputs(text, stdout) >= 0 && fflush(stdout) == 0)
        return 0;
    (void)fprintf(stderr, "%.*s: cannot write to standard output: %s\n", n, t->commands, strerror(errno));
    return 1;
}
