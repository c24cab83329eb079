/*
 * Convolutions as implicit products. Twin: kernels/cpu/ref_conv.c.
 *
 *   forward          y[pixel][o]  = sum over (place, i)  x[pixel + place][i]   w[o][i][place]
 *   backward_weights dw[o][place, i] = sum over pixel    dy[pixel][o]          x[pixel + place][i]
 *   backward_input   dx[pixel][i] = sum over (place, o)  dy[pixel - place][o]  w[o][i][place]
 *
 * A pixel is counted through the whole batch; a place is row * kernel + column of the kernel. The channel is
 * always the faster index, as it is in memory.
 */

#include "worker-runtime/kernels/cuda/gemm.cuh"

#include <climits>

namespace
{

/* Pixels of a batch of images, by number. */
struct pixels {
    struct divider width, height;

    __device__ void find(int pixel, int *sample, int *row, int *column) const
    {
        int rows = divide(pixel, width, column);
        *sample = divide(rows, height, row);
    }
};

/* Numbers that mean (row and column in the kernel, channel). */
struct taps {
    struct divider channels, kernel;

    __device__ void find(int number, int *row, int *column, int *channel) const
    {
        int place = divide(number, channels, channel);
        *row = divide(place, kernel, column);
    }
};

pixels pixels_of(int width, int height)
{
    return pixels{divide_by(width), divide_by(height)};
}

taps taps_of(const struct conv_shape *s, int channels)
{
    return taps{divide_by(channels), divide_by(s->kernel)};
}

/* x under output pixel `pixel` at tap `number`. */
struct input_patches {
    const float *x;
    pixels outputs;
    taps inputs;
    int in_height, in_width, in_stored;

    __device__ float at(int pixel, int number) const
    {
        int sample, row, column, tap_row, tap_column, channel;
        outputs.find(pixel, &sample, &row, &column);
        inputs.find(number, &tap_row, &tap_column, &channel);
        int in_pixel = (sample * in_height + row + tap_row) * in_width + column + tap_column;
        return x[(size_t)in_pixel * (size_t)in_stored + (size_t)channel];
    }
};

/* As operand of the forward product (i: pixel, k: tap). */
struct patches_by_pixel : input_patches {
    static constexpr bool k_is_contiguous = true;
    __device__ float operator()(int i, int k) const
    {
        return at(i, k);
    }
};

/* As operand of the gradient of the weights (i: tap, k: pixel). */
struct patches_by_tap : input_patches {
    static constexpr bool k_is_contiguous = false;
    __device__ float operator()(int i, int k) const
    {
        return at(k, i);
    }
};

/* w[o][channel][place] by (o, tap of input channels); the additional output channels are zero. */
struct weights_forward {
    static constexpr bool k_is_contiguous = true;
    const float *w;
    taps inputs;
    int in_channels, out_channels, kernel;
    __device__ float operator()(int o, int k) const
    {
        int row, column, channel;
        inputs.find(k, &row, &column, &channel);
        return o < out_channels ? w[((o * in_channels + channel) * kernel + row) * kernel + column] : 0;
    }
};

/* w[o][channel][place] by (channel, tap of output channels); the additional input channels are zero. */
struct weights_backward {
    static constexpr bool k_is_contiguous = true;
    const float *w;
    taps outputs;
    int in_channels, kernel;
    __device__ float operator()(int channel, int k) const
    {
        int row, column, o;
        outputs.find(k, &row, &column, &o);
        return channel < in_channels ? w[((o * in_channels + channel) * kernel + row) * kernel + column] : 0;
    }
};

/* dy of the outputs that used an input pixel (i), by tap (k). */
struct output_patches {
    static constexpr bool k_is_contiguous = true;
    const float *dy;
    pixels inputs;
    taps outputs;
    int out_height, out_width, out_stored;
    __device__ float operator()(int i, int k) const
    {
        int sample, row, column, tap_row, tap_column, channel;
        inputs.find(i, &sample, &row, &column);
        outputs.find(k, &tap_row, &tap_column, &channel);
        row -= tap_row;
        column -= tap_column;
        if (row < 0 || row >= out_height || column < 0 || column >= out_width)
            return 0;
        int pixel = (sample * out_height + row) * out_width + column;
        return dy[(size_t)pixel * (size_t)out_stored + (size_t)channel];
    }
};

/* dy[pixel][o] by (o, pixel). */
struct output_channels {
    static constexpr bool k_is_contiguous = false;
    const float *dy;
    int out_stored;
    __device__ float operator()(int i, int k) const
    {
        return dy[(size_t)k * (size_t)out_stored + (size_t)i];
    }
};

struct store_pixels {
    float *y;
    int stored;
    const float *bias; /* [channels], or NULL */
    int channels;
    __device__ void operator()(int pixel, int channel, float sum) const
    {
        bool real = bias && channel < channels;
        y[(size_t)pixel * (size_t)stored + (size_t)channel] = real ? sum + bias[channel] : sum;
    }
};

/* dw, and db from the column of row sums. */
struct store_weights {
    float *dw, *db;
    taps inputs;
    int in_channels, kernel;
    __device__ void operator()(int o, int tap, float sum) const
    {
        if (tap == kernel * kernel * in_channels) {
            db[o] = sum;
            return;
        }
        int row, column, channel;
        inputs.find(tap, &row, &column, &channel);
        dw[((o * in_channels + channel) * kernel + row) * kernel + column] = sum;
    }
};

/* Pixels and weights are counted in int. */
bool countable(int n, const struct conv_shape *s)
{
    int64_t in = (int64_t)n * s->in_height * s->in_width, weights = (int64_t)s->kernel * s->kernel;
    weights *= (int64_t)s->in_channels * s->out_channels;
    return in <= INT_MAX && weights <= INT_MAX;
}

input_patches input_patches_of(const struct conv_shape *s, const float *x)
{
    return input_patches{x,
                         pixels_of(s->out_width, s->out_height),
                         taps_of(s, s->in_channels),
                         s->in_height,
                         s->in_width,
                         s->in_stored};
}

} // namespace

cudaError_t cuda_conv_forward(const struct cuda_queue *q, int n, const struct conv_shape *s, const float *x,
                              const float *w, const float *bias, float *y)
{
    if (!countable(n, s))
        return cudaErrorInvalidValue;
    const patches_by_pixel patches = {input_patches_of(s, x)};
    const weights_forward weights = {w, taps_of(s, s->in_channels), s->in_channels, s->out_channels,
                                     s->kernel};
    const store_pixels store = {y, s->out_stored, bias, s->out_channels};
    return gemm(q, n * s->out_height * s->out_width, s->out_stored, s->kernel * s->kernel * s->in_channels,
                patches, weights, store);
}

cudaError_t cuda_conv_backward_weights(const struct cuda_queue *q, int n, const struct conv_shape *s,
                                       const float *x, const float *dy, float *dw, float *db)
{
    if (!countable(n, s))
        return cudaErrorInvalidValue;
    const int n_pixels = n * s->out_height * s->out_width;
    const output_channels gradients = {dy, s->out_stored};
    const patches_by_tap patches = {input_patches_of(s, x)};
    const store_weights store = {dw, db, taps_of(s, s->in_channels), s->in_channels, s->kernel};
    return gemm<true>(q, s->out_channels, s->kernel * s->kernel * s->in_channels, n_pixels, gradients,
                      patches, store);
}

cudaError_t cuda_conv_backward_input(const struct cuda_queue *q, int n, const struct conv_shape *s,
                                     const float *dy, const float *w, float *dx)
{
    if (!countable(n, s))
        return cudaErrorInvalidValue;
    const output_patches gradients = {dy,
                                      pixels_of(s->in_width, s->in_height),
                                      taps_of(s, s->out_channels),
                                      s->out_height,
                                      s->out_width,
                                      s->out_stored};
    const weights_backward weights = {w, taps_of(s, s->out_channels), s->in_channels, s->kernel};
    const store_pixels store = {dx, s->in_stored, nullptr, s->in_channels};
    return gemm(q, n * s->in_height * s->in_width, s->in_stored, s->kernel * s->kernel * s->out_channels,
                gradients, weights, store);
}
