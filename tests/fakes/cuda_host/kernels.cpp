/*
 * The CUDA kernels themselves, compiled by the host's compiler: the sources of worker-runtime/kernels/cuda as
 * they are, in one translation unit, with this folder's headers in the place of the toolkit's.
 */

#include "worker-runtime/kernels/cuda/conv.cu"
#include "worker-runtime/kernels/cuda/elements.cu"
#include "worker-runtime/kernels/cuda/linear.cu"
#include "worker-runtime/kernels/cuda/loss.cu"
#include "worker-runtime/kernels/cuda/norm.cu"
#include "worker-runtime/kernels/cuda/pool.cu"
#include "worker-runtime/kernels/cuda/step.cu"
