#include "rendezvous/store/counter.h"

#include <string.h>

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_decimal_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

bool counter_parse(const uint8_t *text, size_t n, int64_t *ret)
{
    const uint8_t *p = text, *end = n > 0 ? text + n : text; /* an empty value has no bytes to point at */
    uint64_t value = 0, limit = INT64_MAX;
    bool negative = false;

    while (p < end && is_space(*p))
        p++;
    if (p < end && (*p == '-' || *p == '+'))
        negative = *p++ == '-';
    if (negative)
        limit++;
    if (p == end || !is_decimal_digit(*p))
        return false;
    for (; p < end && is_decimal_digit(*p); p++) {
        unsigned digit = *p - '0';

        if (value > (limit - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *ret = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

size_t counter_span(const uint8_t *text, size_t n)
{
    size_t i = 0;

    while (i < n && is_space(text[i]))
        i++;
    if (i < n && (text[i] == '-' || text[i] == '+'))
        i++;
    while (i < n && is_decimal_digit(text[i]))
        i++;
    return i;
}

size_t counter_format(char text[COUNTER_TEXT_MAX], int64_t value)
{
    char digits[COUNTER_TEXT_MAX];
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    size_t n = sizeof(digits), sign = value < 0, size;

    do {
        digits[--n] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    size = sizeof(digits) - n;
    if (sign)
        text[0] = '-';
    memcpy(text + sign, digits + n, size);
    return sign + size;
}
