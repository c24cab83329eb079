/* The table of the plain twin. */

#include "worker-runtime/kernels/cpu/ref.h"

#include "worker-runtime/kernels/cpu/optimizer_loops.h"

const struct cpu_kernels cpu_kernels_ref = {
    .name = "ref",
    .conv_pack_forward = ref_conv_pack,
    .conv_pack_backward = ref_conv_pack,
    .conv_forward = ref_conv_forward,
    .conv_backward_weights = ref_conv_backward_weights,
    .conv_backward_input = ref_conv_backward_input,
    .moments_add = ref_moments_add,
    .norm_forward = ref_norm_forward,
    .norm_backward_sums = ref_norm_backward_sums,
    .norm_backward_input = ref_norm_backward_input,
    .norm_relu_pool_forward = ref_norm_relu_pool_forward,
    .norm_relu_pool_backward_sums = ref_norm_relu_pool_backward_sums,
    .norm_relu_pool_backward_input = ref_norm_relu_pool_backward_input,
    .pool_forward = ref_pool_forward,
    .pool_backward = ref_pool_backward,
    .relu_forward = ref_relu_forward,
    .relu_backward = ref_relu_backward,
    .linear_forward = ref_linear_forward,
    .linear_backward_weights = ref_linear_backward_weights,
    .linear_backward_input = ref_linear_backward_input,
    .log_softmax_forward = ref_log_softmax_forward,
    .log_softmax_backward = ref_log_softmax_backward,
    .round_bf16 = ref_round_bf16,
    .sum_squares = ref_sum_squares,
    .scale = ref_scale,
    .add = ref_add,
    .sgd = sgd,
    .adamw = adamw,
    .adadelta = adadelta,
};
