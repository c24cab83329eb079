#include "launcher/report/final_error.h"

#include <string.h>

#include "base/err.h"

const char *final_line(const char *text, size_t *ret_size)
{
    const char *end = text + strlen(text);

    while (end > text && (end[-1] == '\n' || end[-1] == '\r'))
        end--;
    const char *line = end;
    while (line > text && line[-1] != '\n')
        line--;
    *ret_size = (size_t)(end - line);
    return line;
}

bool final_error_is_in(const char *text)
{
    static const char *const names[] = {"SyntaxError", "IndentationError", "TabError", "ImportError",
                                        "ModuleNotFoundError"};
    size_t size;
    const char *line = final_line(text, &size);

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        size_t n = strlen(names[i]);
        if (size >= n && memcmp(line, names[i], n) == 0 && (n == size || line[n] == ':'))
            return true;
    }
    return false;
}
