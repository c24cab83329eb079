#pragma once

/* Formatted text of functions with variable arguments. Inline, as time.h. */

#include <stdarg.h>
#include <stdio.h>

/* Formats the variable arguments of the calling function, whose last named parameter is format. The result is the result of vsnprintf(). */
#define format_arguments(text, size, format)                                                                 \
    (__extension__({                                                                                         \
        va_list _arguments;                                                                                  \
        va_start(_arguments, format);                                                                        \
        int _n = vsnprintf(text, size, format, _arguments);                                                  \
        va_end(_arguments);                                                                                  \
        _n;                                                                                                  \
    }))
