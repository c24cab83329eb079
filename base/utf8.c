#include "base/utf8.h"

#include <string.h>

size_t text_control_size(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;

    if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0)
        return 2;
    return c[0] != 0 && (c[0] < ' ' || c[0] == 0x7f);
}

size_t text_bytes_of_columns(const char *text, size_t columns)
{
    size_t n = 0;

    for (; text[n]; n++)
        if (((unsigned char)text[n] & 0xC0) != 0x80 && columns-- == 0)
            break;
    return n;
}

enum { CHARACTER_SIZE_MAX = 4 }; /* of UTF-8, in bytes */

size_t text_whole_size(const char *text, size_t n)
{
    size_t begin = n;

    while (begin > 0 && n - begin < CHARACTER_SIZE_MAX && ((unsigned char)text[begin - 1] & 0xC0) == 0x80)
        begin--;
    unsigned char lead = begin > 0 ? (unsigned char)text[begin - 1] : 0;
    size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
    return n - begin + 1 < wanted ? begin - 1 : n;
}

void text_clean(char *text)
{
    char *to = text;

    while (*text) {
        size_t n = text_control_size(text);

        *to++ = n == 0 ? *text : *text == '\n' || *text == '\t' || *text == '\r' ? ' ' : '?';
        text += n > 0 ? n : 1;
    }
    *to = 0;
}

void text_copy(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size);

    if (n == size) {
        size_t cut = --n;

        /* A continuation at from[n] is of a character that is cut; after three of them the text is not UTF-8. */
        while (cut > 0 && n - cut < CHARACTER_SIZE_MAX && ((unsigned char)from[cut] & 0xC0) == 0x80)
            cut--;
        if (n - cut < CHARACTER_SIZE_MAX)
            n = cut;
    }
    memmove(to, from, n);
    to[n] = 0;
}
