#pragma once

#include "worker-runtime/kernels/cpu/kernels.h"

/* The plain twin of every kernel but the optimizers: the definition, with sums in double. What a test measures against the twin is
 * the error of the fast kernel alone. */
extern const struct cpu_kernels kernel_reference;
