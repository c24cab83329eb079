/*
 * What happens to gradients between backward and the optimizer.
 */

#include "worker-runtime/crw.h"

#include <math.h>

#include "worker-runtime/base/error.h"
#include "worker-runtime/kernels/cpu/kernels.h"

double crw_gradients_norm(const float *gradients, size_t count)
{
    NEED(is_array(gradients, count, sizeof(*gradients)), NAN);
    return sqrt(cpu_kernels_best()->sum_squares(count, gradients));
}

void crw_gradients_scale(float *gradients, size_t count, float factor)
{
    NEED(is_array(gradients, count, sizeof(*gradients)));
    cpu_kernels_best()->scale(count, factor, gradients);
}

void crw_gradients_add(float *sums, const float *gradients, size_t count)
{
    NEED(is_array(gradients, count, sizeof(*gradients)) && is_array(sums, count, sizeof(*sums)));
    cpu_kernels_best()->add(count, gradients, sums);
}
