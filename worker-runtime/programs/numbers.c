#include "worker-runtime/programs/numbers.h"

#include <math.h>
#include <stdlib.h>

bool number_parse_positive(const char *text, double *ret)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(v) || v <= 0)
        return false;
    *ret = v;
    return true;
}
