#include "worker-runtime/programs/numbers.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

bool number_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    char *end;
    unsigned long long v;

    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || v < min || v > max)
        return false;
    *ret = v;
    return true;
}

bool number_parse_positive(const char *text, double *ret)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(v) || v <= 0)
        return false;
    *ret = v;
    return true;
}
