#pragma once

/*
 * The functions of kernels.h as tests call them: pointers into memory of kernel_device() become those of the device. A
 * function that is missing here gets the host's copy, which a run with KERNEL_MEMORY=device reports.
 */

#include "tests/unit/worker-runtime/kernel_support.h"

/* Keeps the type, so that the function's own arguments are still checked. */
#define ON_DEVICE(p) ((__typeof__(1 ? (p) : (p)))kernel_on_device(p))

#define cuda_linear_forward(q, n, in, out, x, w, bias, y)                                                    \
    cuda_linear_forward(q, n, in, out, ON_DEVICE(x), ON_DEVICE(w), ON_DEVICE(bias), ON_DEVICE(y))
#define cuda_linear_backward_weights(q, n, in, out, x, dy, dw, db)                                           \
    cuda_linear_backward_weights(q, n, in, out, ON_DEVICE(x), ON_DEVICE(dy), ON_DEVICE(dw), ON_DEVICE(db))
#define cuda_linear_backward_input(q, n, in, out, dy, w, dx)                                                 \
    cuda_linear_backward_input(q, n, in, out, ON_DEVICE(dy), ON_DEVICE(w), ON_DEVICE(dx))
#define cuda_linear_relu_forward(q, n, in, out, x, w, bias, y)                                               \
    cuda_linear_relu_forward(q, n, in, out, ON_DEVICE(x), ON_DEVICE(w), ON_DEVICE(bias), ON_DEVICE(y))
#define cuda_linear_relu_backward_input(q, n, in, out, dy, w, x, dx)                                         \
    cuda_linear_relu_backward_input(q, n, in, out, ON_DEVICE(dy), ON_DEVICE(w), ON_DEVICE(x), ON_DEVICE(dx))
#define cuda_column_sums(q, n_rows, n_columns, x, sums)                                                      \
    cuda_column_sums(q, n_rows, n_columns, ON_DEVICE(x), ON_DEVICE(sums))
#define cuda_conv_forward(q, n, s, x, w, bias, y)                                                            \
    cuda_conv_forward(q, n, s, ON_DEVICE(x), ON_DEVICE(w), ON_DEVICE(bias), ON_DEVICE(y))
#define cuda_conv_backward_weights(q, n, s, x, dy, dw, db)                                                   \
    cuda_conv_backward_weights(q, n, s, ON_DEVICE(x), ON_DEVICE(dy), ON_DEVICE(dw), ON_DEVICE(db))
#define cuda_conv_backward_input(q, n, s, dy, w, dx)                                                         \
    cuda_conv_backward_input(q, n, s, ON_DEVICE(dy), ON_DEVICE(w), ON_DEVICE(dx))
#define cuda_norm_observe(q, n_rows, channels, stored, x, gamma, beta, norm)                                 \
    cuda_norm_observe(q, n_rows, channels, stored, ON_DEVICE(x), ON_DEVICE(gamma), ON_DEVICE(beta),          \
                      kernel_norm_on_device(norm))
#define cuda_norm_recall(q, channels, stored, running_mean, running_var, gamma, beta, norm)                  \
    cuda_norm_recall(q, channels, stored, ON_DEVICE(running_mean), ON_DEVICE(running_var), ON_DEVICE(gamma), \
                     ON_DEVICE(beta), kernel_norm_on_device(norm))
#define cuda_norm_forward(q, n_rows, stored, x, norm, relu, y)                                               \
    cuda_norm_forward(q, n_rows, stored, ON_DEVICE(x), kernel_norm_on_device(norm), relu, ON_DEVICE(y))
#define cuda_norm_backward_sums(q, n_rows, channels, stored, dy, x, y, norm, relu, dgamma, dbeta)            \
    cuda_norm_backward_sums(q, n_rows, channels, stored, ON_DEVICE(dy), ON_DEVICE(x), ON_DEVICE(y),          \
                            kernel_norm_on_device(norm), relu, ON_DEVICE(dgamma), ON_DEVICE(dbeta))
#define cuda_norm_backward_input(q, n_rows, stored, dy, x, y, norm, relu, dx)                                \
    cuda_norm_backward_input(q, n_rows, stored, ON_DEVICE(dy), ON_DEVICE(x), ON_DEVICE(y),                   \
                             kernel_norm_on_device(norm), relu, ON_DEVICE(dx))
#define cuda_norm_relu_pool_forward(q, n, s, x, norm, y, which, centred)                                     \
    cuda_norm_relu_pool_forward(q, n, s, ON_DEVICE(x), kernel_norm_on_device(norm), ON_DEVICE(y),            \
                                ON_DEVICE(which), ON_DEVICE(centred))
#define cuda_norm_relu_pool_backward_sums(q, n, s, channels, dy, which, centred, norm, dgamma, dbeta)        \
    cuda_norm_relu_pool_backward_sums(q, n, s, channels, ON_DEVICE(dy), ON_DEVICE(which),                    \
                                      ON_DEVICE(centred), kernel_norm_on_device(norm), ON_DEVICE(dgamma),    \
                                      ON_DEVICE(dbeta))
#define cuda_norm_relu_pool_backward_input(q, n, s, dy, which, x, norm, dx)                                  \
    cuda_norm_relu_pool_backward_input(q, n, s, ON_DEVICE(dy), ON_DEVICE(which), ON_DEVICE(x),               \
                                       kernel_norm_on_device(norm), ON_DEVICE(dx))
#define cuda_pool_forward(q, n, s, x, y, which)                                                              \
    cuda_pool_forward(q, n, s, ON_DEVICE(x), ON_DEVICE(y), ON_DEVICE(which))
#define cuda_pool_backward(q, n, s, dy, which, dx)                                                           \
    cuda_pool_backward(q, n, s, ON_DEVICE(dy), ON_DEVICE(which), ON_DEVICE(dx))
#define cuda_relu_forward(q, count, x, y) cuda_relu_forward(q, count, ON_DEVICE(x), ON_DEVICE(y))
#define cuda_relu_backward(q, count, y, dy, dx)                                                              \
    cuda_relu_backward(q, count, ON_DEVICE(y), ON_DEVICE(dy), ON_DEVICE(dx))
#define cuda_flatten(q, n, n_pixels, channels, stored, x, y)                                                 \
    cuda_flatten(q, n, n_pixels, channels, stored, ON_DEVICE(x), ON_DEVICE(y))
#define cuda_unflatten(q, n, n_pixels, channels, stored, y, x)                                               \
    cuda_unflatten(q, n, n_pixels, channels, stored, ON_DEVICE(y), ON_DEVICE(x))
#define cuda_log_softmax_forward(q, n, features, x, y)                                                       \
    cuda_log_softmax_forward(q, n, features, ON_DEVICE(x), ON_DEVICE(y))
#define cuda_log_softmax_backward(q, n, features, y, dy, dx)                                                 \
    cuda_log_softmax_backward(q, n, features, ON_DEVICE(y), ON_DEVICE(dy), ON_DEVICE(dx))
#define cuda_nll(q, n, features, x, targets, y, losses, correct, dx)                                         \
    cuda_nll(q, n, features, ON_DEVICE(x), ON_DEVICE(targets), ON_DEVICE(y), ON_DEVICE(losses),              \
             ON_DEVICE(correct), ON_DEVICE(dx))
#define cuda_mse(q, count, y, t, losses, dy)                                                                 \
    cuda_mse(q, count, ON_DEVICE(y), ON_DEVICE(t), ON_DEVICE(losses), ON_DEVICE(dy))
#define cuda_tally(q, n, losses, correct, targets, add, tally)                                               \
    cuda_tally(q, n, ON_DEVICE(losses), ON_DEVICE(correct), ON_DEVICE(targets), add, ON_DEVICE(tally))
#define cuda_nll_tally(q, n, features, x, targets, losses, correct, dx, add, tally)                          \
    cuda_nll_tally(q, n, features, ON_DEVICE(x), ON_DEVICE(targets), ON_DEVICE(losses), ON_DEVICE(correct),  \
                   ON_DEVICE(dx), add, ON_DEVICE(tally))
#define cuda_gather(q, n, n_features, data, labels, table, list, cursor, x, targets)                         \
    cuda_gather(q, n, n_features, ON_DEVICE(data), ON_DEVICE(labels), ON_DEVICE(table), ON_DEVICE(list),     \
                ON_DEVICE(cursor), ON_DEVICE(x), ON_DEVICE(targets))
#define cuda_gather_rows(q, n, row_bytes, rows, list, cursor, to)                                            \
    cuda_gather_rows(q, n, row_bytes, ON_DEVICE(rows), ON_DEVICE(list), ON_DEVICE(cursor), ON_DEVICE(to))
#define cuda_add(q, count, sums, g) cuda_add(q, count, ON_DEVICE(sums), ON_DEVICE(g))
#define cuda_gradient_check(q, count, gradients, check)                                                      \
    cuda_gradient_check(q, count, ON_DEVICE(gradients), ON_DEVICE(check))
#define cuda_commit_begin(q, check, options, tally, losses_per_sample, n_ranks, tracks, commit)              \
    cuda_commit_begin(q, ON_DEVICE(check), ON_DEVICE(options), ON_DEVICE(tally), losses_per_sample, n_ranks, \
                      tracks, ON_DEVICE(commit))
#define cuda_optimizer_step(q, kind, commit, count, p, g, state0, state1)                                    \
    cuda_optimizer_step(q, kind, ON_DEVICE(commit), count, ON_DEVICE(p), ON_DEVICE(g), ON_DEVICE(state0),    \
                        ON_DEVICE(state1))
#define cuda_copy_committed(q, commit, n_bytes, from, to)                                                    \
    cuda_copy_committed(q, ON_DEVICE(commit), n_bytes, ON_DEVICE(from), ON_DEVICE(to))
#define cuda_norm_track(q, commit, channels, norm, running_mean, running_var, n_batches_tracked)             \
    cuda_norm_track(q, ON_DEVICE(commit), channels, kernel_norm_on_device(norm), ON_DEVICE(running_mean),    \
                    ON_DEVICE(running_var), ON_DEVICE(n_batches_tracked))
