#include "launcher/crunctl/last_line.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

static bool ends_line(char c)
{
    return c == '\n' || c == '\r';
}

/* The end of a text for the terminal (a title, a link): BEL, or ESC and a backslash. */
static size_t string_size(const char *bytes, size_t n)
{
    for (size_t i = 2; i < n; i++) {
        if (bytes[i] == '\a')
            return i + 1;
        if (bytes[i] == '\033')
            return i + 1 < n && bytes[i + 1] == '\\' ? i + 2 : i;
    }
    return n;
}

/* The bytes of the escape sequence at the start (ECMA-48); a broken one ends with the bytes. */
static size_t escape_size(const char *bytes, size_t n)
{
    size_t i = 1;

    if (n >= 2 && bytes[1] && strchr("]P^_X", bytes[1]))
        return string_size(bytes, n);
    if (n >= 2 && bytes[1] == '[')
        for (i = 2; i < n && (bytes[i] < 0x40 || bytes[i] > 0x7e);)
            i++;
    else
        while (i < n && bytes[i] >= 0x20 && bytes[i] <= 0x2f)
            i++;
    return i < n ? i + 1 : n;
}

static size_t copy_without_escapes(const char *bytes, size_t n, char *ret, size_t size)
{
    size_t to = 0;

    for (size_t i = 0; i < n && to + 1 < size;) {
        if (bytes[i] == '\033')
            i += escape_size(bytes + i, n - i);
        else if (bytes[i])
            ret[to++] = bytes[i++];
        else
            i++;
    }
    return to;
}

void last_line_of(const char *bytes, size_t n, char *ret, size_t size)
{
    size_t begin, end = n, to = 0;

    while (to == 0 && end > 0) {
        for (begin = end; begin > 0 && !ends_line(bytes[begin - 1]);)
            begin--;
        to = copy_without_escapes(bytes + begin, end - begin, ret, size);
        while (to > 0 && ret[to - 1] == ' ')
            to--;
        end = begin > 0 ? begin - 1 : 0;
    }
    ret[text_whole_size(ret, to)] = '\0';
    text_clean(ret);
}
