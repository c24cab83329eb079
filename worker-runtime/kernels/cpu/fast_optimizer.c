/*
 * The optimizers for one instruction set: the twin's loops, which the compiler turns into vectors. Apart
 * from fast.c because here it must not fuse anything by itself.
 */

#include "worker-runtime/kernels/cpu/fast.h"

#include "worker-runtime/kernels/cpu/optimizer_loops.h"

void ISA_NAME(sgd_)(const struct sgd_step *s, size_t count, float *p, const float *g, float *momentum_buffer)
{
    sgd(s, count, p, g, momentum_buffer);
}

void ISA_NAME(adamw_)(const struct adamw_step *s, size_t count, float *p, const float *g, float *exp_avg,
                      float *exp_avg_sq)
{
    adamw(s, count, p, g, exp_avg, exp_avg_sq);
}

void ISA_NAME(adadelta_)(const struct adadelta_step *s, size_t count, float *p, const float *g,
                         float *square_avg, float *acc_delta)
{
    adadelta(s, count, p, g, square_avg, acc_delta);
}
