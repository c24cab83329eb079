/*
 * Over a whole arena, the plain twin.
 */

#include "worker-runtime/kernels/cpu/ref.h"

#include <math.h>
#include <string.h>

static float rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (isnan(x))
        bits |= 0x400000; /* or what is cut off could have been all that made it none */
    else
        bits += 0x7fff + ((bits >> 16) & 1);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

void ref_round_bf16(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] = rounded(x[i]);
}

double ref_sum_squares(size_t count, const float *x)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

void ref_scale(size_t count, float factor, float *x)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

void ref_add(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++)
        y[i] += x[i];
}
