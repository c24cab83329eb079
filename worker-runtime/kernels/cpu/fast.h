#pragma once

/* What one instruction set's two files share, and its table. */

#include "worker-runtime/kernels/cpu/fast_vector.h"
#include "worker-runtime/kernels/cpu/kernels.h"

extern const struct cpu_kernels ISA_NAME(cpu_kernels_);

void ISA_NAME(sgd_)(const struct sgd_step *s, size_t count, float *p, const float *g, float *momentum_buffer);
void ISA_NAME(adamw_)(const struct adamw_step *s, size_t count, float *p, const float *g, float *exp_avg,
                      float *exp_avg_sq);
void ISA_NAME(adadelta_)(const struct adadelta_step *s, size_t count, float *p, const float *g,
                         float *square_avg, float *acc_delta);
