#pragma once

/* What normalisation with and without pooling share: PyTorch's constants, and the end of the way back. */

#include "worker-runtime/kernels/cuda/reduce.cuh"

#define NORM_EPS 1e-5
#define NORM_MOMENTUM 0.1

/*
 * With d = 1 / deviation: dgamma = d * sum(dy * (x - mean)), dbeta = sum(dy), and
 * dx = gamma * d / m * (m * dy - dbeta - (x - mean) * d * dgamma), here as a * dy + b * (x - mean) + c.
 */
struct norm_gradients {
    struct cuda_norm norm;
    float *dgamma, *dbeta;
    int channels;
    double m; /* values of each channel */

    __device__ void operator()(int channel, double2 sums) const
    {
        const double d = norm.inverse_deviation[channel], scale = norm.scale[channel];
        norm.a[channel] = norm.scale[channel];
        norm.b[channel] = (float)(-scale * d * d * sums.y / m);
        norm.c[channel] = (float)(-scale * sums.x / m);
        if (channel < channels) {
            dgamma[channel] = (float)(d * sums.y);
            dbeta[channel] = (float)sums.x;
        }
    }
};

/* By a block: the running statistics take the batch's in. */
static __device__ inline void track(const struct cuda_track &t)
{
    for (int c = (int)threadIdx.x; c < t.channels; c += (int)blockDim.x) {
        t.running_mean[c] = (float)((1 - NORM_MOMENTUM) * t.running_mean[c] + NORM_MOMENTUM * t.norm.mean[c]);
        t.running_var[c] =
            (float)((1 - NORM_MOMENTUM) * t.running_var[c] + NORM_MOMENTUM * t.norm.unbiased_variance[c]);
    }
    if (threadIdx.x == 0)
        ++*t.n_batches_tracked;
}
