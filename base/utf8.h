#pragma once

/* Text of unknown origin, which goes into JSON, lines for people and messages. */

#include <stddef.h>

/* Bytes of the UTF-8 sequence at s, a NUL-terminated text that is not empty; 0 when it is none. Spellings that are too
 * long, halves of UTF-16 pairs and what lies beyond Unicode are none. */
static inline size_t utf8_sequence(const unsigned char *s)
{
    size_t n = *s < 0x80 ? 1 : *s < 0xC2 ? 0 : *s < 0xE0 ? 2 : *s < 0xF0 ? 3 : *s < 0xF5 ? 4 : 0;

    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((*s == 0xE0 && s[1] < 0xA0) || (*s == 0xED && s[1] > 0x9F) || (*s == 0xF0 && s[1] < 0x90) ||
        (*s == 0xF4 && s[1] > 0x8F))
        return 0;
    return n;
}

/* The bytes of the control character at text (of UTF-8, C1 included), which may move a cursor or begin a line; 0: none. */
size_t text_control_size(const char *text);

/* The bytes of text that fit into so many columns, each character counted as one. */
size_t text_bytes_of_columns(const char *text, size_t columns);

/* n, or less: without the last of n bytes that are the beginning of a character of UTF-8. */
size_t text_whole_size(const char *text, size_t n);

/* Makes one printable line of a text from the network: white space becomes a blank. Any other control character becomes "?", and so does a
 * control of the direction of text, or a byte from 0x80 to 0x9f outside UTF-8. */
void text_clean(char *text);

/* The first n_max bytes, with "?" in place of each byte that is not UTF-8: with such bytes (in a name, at the end of a cut sentence) a
 * text would be no JSON. Malloc'ed or NULL. */
char *text_utf8_copy(const char *text, size_t n_max);

/* Copies as much as fits, at a boundary of characters where the text is UTF-8, and ends it with NUL. */
void text_copy(char *to, size_t size, const char *from);

/* The same for a sentence: a longer one ends behind a word, with " ...". size: at least 16. */
void text_copy_words(char *to, size_t size, const char *from);
