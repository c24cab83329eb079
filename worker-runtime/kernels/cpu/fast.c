/*
 * The fast kernels of one instruction set. The build compiles this file once for each set: see meson.build.
 * Products and sums may be fused here, unlike in the rest of the library; what has to agree with PyTorch to
 * the last bit is in fast_optimizer.c.
 */

#include "worker-runtime/kernels/cpu/fast.h"

#include "worker-runtime/kernels/cpu/fast_arena.h"
#include "worker-runtime/kernels/cpu/fast_conv.h"
#include "worker-runtime/kernels/cpu/fast_linear.h"
#include "worker-runtime/kernels/cpu/fast_norm.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

const struct cpu_kernels ISA_NAME(cpu_kernels_) = {
    .name = TEXT(CPU_ISA),
    .conv_pack_forward = conv_pack_forward,
    .conv_pack_backward = conv_pack_backward,
    .conv_forward = conv_forward,
    .conv_backward_weights = conv_backward_weights,
    .conv_backward_input = conv_backward_input,
    .moments_add = moments_add,
    .norm_forward = norm_forward,
    .norm_backward_sums = norm_backward_sums,
    .norm_backward_input = norm_backward_input,
    .norm_relu_pool_forward = norm_relu_pool_forward,
    .norm_relu_pool_backward_sums = norm_relu_pool_backward_sums,
    .norm_relu_pool_backward_input = norm_relu_pool_backward_input,
    .pool_forward = pool_forward,
    .pool_backward = pool_backward,
    .relu_forward = relu_forward,
    .relu_backward = relu_backward,
    .linear_forward = linear_forward,
    .linear_backward_weights = linear_backward_weights,
    .linear_backward_input = linear_backward_input,
    .round_bf16 = round_bf16,
    .sum_squares = sum_squares,
    .scale = scale,
    .add = add,
    .sgd = ISA_NAME(sgd_),
    .adamw = ISA_NAME(adamw_),
    .adadelta = ISA_NAME(adadelta_),
};
