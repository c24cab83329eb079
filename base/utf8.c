#include "base/utf8.h"

#include <stdbool.h>
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

/* Controls of the direction of text, U+202A to U+202E and U+2066 to U+2069: the rest of a line would be shown in another order. */
static bool is_direction_control(const unsigned char *c)
{
    return c[0] == 0xE2 &&
           ((c[1] == 0x80 && c[2] >= 0xAA && c[2] <= 0xAE) || (c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9));
}

/* Bytes at the beginning of a character that a terminal may obey; 0: none. A lone byte of C1 is CSI, for example, outside UTF-8. */
static size_t unsafe_size(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t n = text_control_size(text);

    if (n > 0)
        return n;
    return is_direction_control(c) ? 3 : *c >= 0x80 && *c < 0xA0;
}

void text_clean(char *text)
{
    char *to = text;

    while (*text) {
        size_t n_unsafe = unsafe_size(text), n = utf8_sequence((const unsigned char *)text);

        n = n_unsafe > 0 ? n_unsafe : n > 0 ? n : 1;
        if (n_unsafe > 0)
            *to++ = *text == '\n' || *text == '\t' || *text == '\r' ? ' ' : '?';
        else
            for (size_t i = 0; i < n; i++)
                *to++ = text[i];
        text += n;
    }
    *to = 0;
}

void text_copy(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size);

    if (n == size) {
        size_t cut = --n;

        /* A continuation at from[n] belongs to a cut character; after three of them the text is not UTF-8. */
        while (cut > 0 && n - cut < CHARACTER_SIZE_MAX && ((unsigned char)from[cut] & 0xC0) == 0x80)
            cut--;
        if (n - cut < CHARACTER_SIZE_MAX)
            n = cut;
    }
    memmove(to, from, n);
    to[n] = 0;
}

void text_copy_words(char *to, size_t size, const char *from)
{
    static const char end[] = " ...";

    text_copy(to, size, from);
    if (strlen(to) == strlen(from))
        return;
    text_copy(to, size - sizeof(end) + 1, from);
    char *blank = strrchr(to, ' ');
    /* A very long word is cut itself. */
    memcpy(blank && (size_t)(blank - to) > size / 4 ? blank : to + strlen(to), end, sizeof(end));
}

char *text_utf8_copy(const char *text, size_t n_max)
{
    char *copy = strndup(text, n_max);

    for (unsigned char *s = (unsigned char *)copy; s && *s;) {
        size_t n = utf8_sequence(s);
        if (n == 0)
            *s = '?';
        s += n ? n : 1;
    }
    return copy;
}
