#pragma once

/* Whole numbers in text: decimal digits and nothing else, so neither a sign nor a space is accepted, and a number that
 * does not fit is refused instead of wrapped. */

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* The number at *text, at most max; *text is behind its last digit afterwards. False: there is none, or a larger one. */
static inline bool decimal_scan(const char **text, uint64_t max, uint64_t *ret)
{
    const char *at = *text;
    uint64_t value = 0;

    assert(at);

    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');

        if (digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (at == *text)
        return false;
    *text = at;
    *ret = value;
    return true;
}

/* The whole text is a number in [min, max]. */
static inline bool decimal_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    uint64_t value;

    if (!decimal_scan(&text, max, &value) || *text != '\0' || value < min)
        return false;
    *ret = value;
    return true;
}
