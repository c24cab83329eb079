#pragma once

/*
 * Large products of linear layers by cuBLASLt, in TF32 and BF16. The library is opened at run time: it comes with the
 * CUDA toolkit and with PyTorch, and nothing needs it. Exact products are never given to it, nor convolutions, which
 * it knows only as products of unfolded images.
 *
 * Happy path: the trainer opens it; a product of at least CUDA_BLAS_MIN multiply-adds goes to it. Ways it fails: it is
 * not there, or has no algorithm for a product, and then the product is libcrw's own; a product that it
 * begins and fails ends the step with an error.
 */

#include <cuda_runtime_api.h>

#include "worker-runtime/kernels/cuda/kernels.h"

/* Multiply-adds from which on a product is cuBLASLt's: it takes some 10 us there on a large GPU with libcrw's kernels. A
 * smaller one does not gain what it costs to do the bias apart. Estimated: no GPU was at hand. Tests are built with less. */
#ifndef CUDA_BLAS_MIN
#define CUDA_BLAS_MIN (1 << 27)
#endif
enum { CUDA_BLAS_EDGE_MIN = 64, CUDA_BLAS_NAME_SIZE = 512 };

struct cuda_blas;

/* path NULL: the one of the loader or of a Python's PyTorch, or *ret is NULL. A path that cannot be used is an error. */
int cuda_blas_open(const char *path, struct cuda_blas **ret);
void cuda_blas_close(struct cuda_blas *b);
/* Version and path of the library; valid as long as b. */
const char *cuda_blas_name(const struct cuda_blas *b);
/* The status of the first product that failed; 0: none did. b may be NULL. */
int cuda_blas_status(const struct cuda_blas *b);

/* As the functions of kernels.h with these names; false: nothing was queued, the product is not one for cuBLASLt. b may
 * be NULL. */
bool cuda_blas_forward(struct cuda_blas *b, const struct cuda_queue *q, int n, int in, int out,
                       const float *x, const float *w, const float *bias, bool relu, float *y,
                       cudaError_t *ret);
bool cuda_blas_backward_weights(struct cuda_blas *b, const struct cuda_queue *q, int n, int in, int out,
                                const float *x, const float *dy, float *dw, float *db, cudaError_t *ret);
bool cuda_blas_backward_input(struct cuda_blas *b, const struct cuda_queue *q, int n, int in, int out,
                              const float *dy, const float *w, float *dx, cudaError_t *ret);
