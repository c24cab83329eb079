#include "base/base64.h"

#include <stdint.h>
#include <string.h>

#include "base/buf.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *data, size_t n, char *to)
{
    const uint8_t *from = data;

    for (; n >= 3; n -= 3, from += 3) {
        uint32_t three = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];

        for (int shift = 18; shift >= 0; shift -= 6)
            *to++ = digits[three >> shift & 63];
    }
    if (n > 0) {
        uint32_t rest = (uint32_t)from[0] << 16 | (n == 2 ? (uint32_t)from[1] << 8 : 0);

        *to++ = digits[rest >> 18];
        *to++ = digits[rest >> 12 & 63];
        *to++ = n == 2 ? digits[rest >> 6 & 63] : '=';
        *to++ = '=';
    }
    *to = '\0';
}

static int digit_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Four characters; the number of bytes that they stand for, or -1. Padding is for the last ones only. */
static int decode_four(const char *text, bool last, uint8_t to[3])
{
    int n = text[3] != '=' || !last ? 3 : text[2] != '=' ? 2 : 1;
    uint32_t bits = 0;

    for (int i = 0; i < 4; i++) {
        int value = i > n ? 0 : digit_value(text[i]);

        if (value < 0)
            return -1;
        bits = bits << 6 | (uint32_t)value;
    }
    if ((bits & ((1u << 8 * (3 - n)) - 1)) != 0)
        return -1; /* bits that stand for nothing: another encoding of the same bytes */
    to[0] = (uint8_t)(bits >> 16);
    to[1] = (uint8_t)(bits >> 8);
    to[2] = (uint8_t)bits;
    return n;
}

bool base64_decode(const char *text, struct buf *out)
{
    size_t n = strlen(text);
    uint8_t *to = n % 4 == 0 ? buf_reserve(out, n / 4 * 3 + 1) : NULL;
    size_t done = 0;

    if (!to)
        return false;
    for (; n > 0; n -= 4, text += 4) {
        int size = decode_four(text, n == 4, to + done);

        if (size < 0)
            return false;
        done += (size_t)size;
    }
    buf_commit(out, done);
    return true;
}
