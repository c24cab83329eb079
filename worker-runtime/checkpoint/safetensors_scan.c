#include "worker-runtime/checkpoint/safetensors_scan.h"
#include "base/err.h"

#include <string.h>

int scan_refuse(struct scan *s, const char *why)
{
    s->why = why;
    return SAFETENSORS_E_BAD;
}

void scan_space(struct scan *s)
{
    while (s->at < s->end && strchr(" \t\n\r", s->file[s->at]) && s->file[s->at])
        s->at++;
}

/* Takes the character if it comes next, after any space. */
static bool take_char(struct scan *s, char c)
{
    scan_space(s);
    if (s->at == s->end || s->file[s->at] != (uint8_t)c)
        return false;
    s->at++;
    return true;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The four digits behind \u. */
static bool take_code_unit(struct scan *s, uint32_t *ret_unit)
{
    uint32_t unit = 0;

    if (s->end - s->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(s->file[s->at++]);

        if (digit < 0)
            return false;
        unit = unit << 4 | (uint32_t)digit;
    }
    *ret_unit = unit;
    return true;
}

static void put_utf8(struct scan *s, uint32_t c)
{
    char *to = s->text + s->text_size;

    if (c < 0x80) {
        to[0] = (char)c;
        s->text_size += 1;
    } else if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 0x3f));
        s->text_size += 2;
    } else if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 0x3f));
        to[2] = (char)(0x80 | (c & 0x3f));
        s->text_size += 3;
    } else {
        to[0] = (char)(0xf0 | c >> 18);
        to[1] = (char)(0x80 | (c >> 12 & 0x3f));
        to[2] = (char)(0x80 | (c >> 6 & 0x3f));
        to[3] = (char)(0x80 | (c & 0x3f));
        s->text_size += 4;
    }
}

/* What follows \u, the second half of a surrogate pair included. */
static bool take_unicode_escape(struct scan *s)
{
    uint32_t c, low;

    if (!take_code_unit(s, &c) || c == 0)
        return false;
    if (c >= 0xdc00 && c <= 0xdfff)
        return false;
    if (c >= 0xd800 && c <= 0xdbff) {
        if (s->end - s->at < 2 || s->file[s->at] != '\\' || s->file[s->at + 1] != 'u')
            return false;
        s->at += 2;
        if (!take_code_unit(s, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    put_utf8(s, c);
    return true;
}

static bool take_escape(struct scan *s)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";

    if (s->at == s->end)
        return false;
    uint8_t c = s->file[s->at++];
    if (c == 'u')
        return take_unicode_escape(s);
    const char *letter = c ? strchr(letters, c) : NULL;
    if (!letter)
        return false;
    put_utf8(s, (uint8_t)meanings[letter - letters]);
    return true;
}

int scan_string(struct scan *s, const char **ret_text, size_t *ret_at, size_t *ret_size)
{
    size_t begin = s->text_size, at;

    if (!take_char(s, '"'))
        return scan_refuse(s, "its header is no JSON of the expected form");
    at = s->at;
    while (s->at < s->end && s->file[s->at] != '"') {
        uint8_t c = s->file[s->at++];

        if (c < 0x20)
            return scan_refuse(s, "its header has a control character in a string");
        if (c != '\\')
            s->text[s->text_size++] = (char)c;
        else if (!take_escape(s))
            return scan_refuse(s, "its header has an impossible escape in a string");
    }
    if (s->at == s->end)
        return scan_refuse(s, "its header ends inside a string");
    *ret_text = s->text + begin;
    *ret_at = at;
    *ret_size = s->at - at;
    s->at++;
    s->text[s->text_size++] = '\0';
    return 0;
}

static int take_object_key(struct scan *s, const char **ret_key)
{
    size_t at, size;
    int result = scan_string(s, ret_key, &at, &size);

    if (result == 0 && !take_char(s, ':'))
        return scan_refuse(s, "its header is no JSON of the expected form");
    return result;
}

static int take_array_number(struct scan *s, uint64_t *ret_value)
{
    uint64_t value = 0;

    scan_space(s);
    size_t at = s->at;
    while (s->at < s->end && s->file[s->at] >= '0' && s->file[s->at] <= '9') {
        uint64_t digit = (uint64_t)(s->file[s->at] - '0');

        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
            return scan_refuse(s, "its header has a number that is too large");
        s->at++;
    }
    if (s->at == at || (s->file[at] == '0' && s->at - at > 1))
        return scan_refuse(s, "its header has something else where a number must be");
    *ret_value = value;
    return 0;
}

int scan_numbers(struct scan *s, uint64_t *numbers, int max, int *ret_n)
{
    int n = 0;

    if (!take_char(s, '['))
        return scan_refuse(s, "its header has something else where a list must be");
    if (!take_char(s, ']')) {
        do {
            if (n == max)
                return scan_refuse(s, "its header has a list that is too long");
            TRY(take_array_number(s, &numbers[n++]));
        } while (take_char(s, ','));
        if (!take_char(s, ']'))
            return scan_refuse(s, "its header has a list without end");
    }
    *ret_n = n;
    return 0;
}

int scan_object(struct scan *s, int (*entry)(void *data, const char *key), void *data)
{
    if (!take_char(s, '{'))
        return scan_refuse(s, "its header has something else where an object must be");
    if (take_char(s, '}'))
        return 0;
    do {
        const char *key;

        TRY(take_object_key(s, &key));
        TRY(entry(data, key));
    } while (take_char(s, ','));
    if (!take_char(s, '}'))
        return scan_refuse(s, "its header has an object without end");
    return 0;
}
