#include "launcher/report/final_error.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"

bool final_error_is_in(const char *text)
{
    static const char *const names[] = {"SyntaxError", "IndentationError", "TabError", "ImportError",
                                        "ModuleNotFoundError"};
    const char *end = text + strlen(text);

    while (end > text && (end[-1] == '\n' || end[-1] == '\r'))
        end--;
    const char *line = end;
    while (line > text && line[-1] != '\n')
        line--;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        size_t n = strlen(names[i]);
        if ((size_t)(end - line) >= n && memcmp(line, names[i], n) == 0 &&
            (line + n == end || line[n] == ':'))
            return true;
    }
    return false;
}
