/*
 * Convolutions as implicit products. Twin: tests/support/c/kernel_reference.c.
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

/* x under an output pixel at a tap: the two add up. */
struct input_patches {
    const float *x;
    pixels outputs;
    taps inputs;
    int in_height, in_width, in_stored;

    /* The first tap's pixel. */
    __device__ int first_pixel(int pixel, int *row, int *column) const
    {
        int sample;
        outputs.find(pixel, &sample, row, column);
        return (sample * in_height + *row) * in_width + *column;
    }

    __device__ int tap_offset(int number) const
    {
        int row, column, channel;
        inputs.find(number, &row, &column, &channel);
        return (row * in_width + column) * in_stored + channel;
    }
};

/* As operand of the forward product (i: pixel, k: tap). */
struct patches_by_pixel : input_patches {
    static constexpr bool k_is_contiguous = true;
    typedef const float *place;

    __device__ place find(int pixel) const
    {
        int row, column;
        return x + (size_t)first_pixel(pixel, &row, &column) * (size_t)in_stored;
    }
    __device__ int walk(int tap) const
    {
        return tap_offset(tap);
    }
    __device__ float load(place pixel, int tap) const
    {
        return pixel[tap];
    }
};

/* As operand of the gradient of the weights (i: tap, k: pixel). */
struct patches_by_tap : input_patches {
    static constexpr bool k_is_contiguous = false;
    typedef const float *place;
    struct step {
        int in_pixel, row, column;
    };

    __device__ place find(int tap) const
    {
        return x + tap_offset(tap);
    }
    __device__ step walk(int pixel) const
    {
        step s;
        s.in_pixel = first_pixel(pixel, &s.row, &s.column);
        return s;
    }
    __device__ step next(step s) const
    {
        const int out_width = (int)outputs.width.divisor, out_height = (int)outputs.height.divisor;
        s.in_pixel++;
        s.column++;
        if (s.column == out_width) {
            s.column = 0;
            s.row++;
            s.in_pixel += in_width - out_width;
        }
        if (s.row == out_height) {
            s.row = 0;
            s.in_pixel += (in_height - out_height) * in_width;
        }
        return s;
    }
    __device__ float load(place tap, const step &s) const
    {
        return tap[(size_t)s.in_pixel * (size_t)in_stored];
    }
};

/* w[o][channel][place] by (o, tap of input channels), or by (channel, tap of output channels). The additional channels
 * behind the n of i get values that are never stored. */
struct kernel_weights {
    static constexpr bool k_is_contiguous = true;
    typedef const float *place;
    const float *w;
    taps across;
    int n, stride, tap_stride, kernel; /* stride: between two i; tap_stride: between two channels of a tap */

    __device__ place find(int i) const
    {
        return w + (i < n ? i : n - 1) * stride;
    }
    __device__ int walk(int k) const
    {
        int row, column, channel;
        across.find(k, &row, &column, &channel);
        return channel * tap_stride + row * kernel + column;
    }
    __device__ float load(place i, int tap) const
    {
        return i[tap];
    }
};

/* dy of the outputs that used an input pixel (i), by tap (k). */
struct output_patches {
    static constexpr bool k_is_contiguous = true;
    struct place {
        int pixel, row,
            column; /* the output that the first tap belongs to; it may lie outside of the image */
    };
    struct step {
        int offset, row, column;
    };
    const float *dy;
    pixels inputs;
    taps outputs;
    int out_height, out_width, out_stored;

    __device__ place find(int i) const
    {
        int sample;
        place p;
        inputs.find(i, &sample, &p.row, &p.column);
        p.pixel = (sample * out_height + p.row) * out_width + p.column;
        return p;
    }
    __device__ step walk(int k) const
    {
        int channel;
        step s;
        outputs.find(k, &s.row, &s.column, &channel);
        s.offset = channel - (s.row * out_width + s.column) * out_stored;
        return s;
    }
    __device__ float load(const place &p, const step &s) const
    {
        const bool outside = (unsigned)(p.row - s.row) >= (unsigned)out_height ||
                             (unsigned)(p.column - s.column) >= (unsigned)out_width;
        return outside ? 0 : dy[(int64_t)p.pixel * out_stored + s.offset];
    }
};

/* The additional channels are zero. */
struct store_pixels {
    float *y;
    int stored;
    const float *bias; /* [channels], or NULL */
    int channels;
    __device__ void operator()(int pixel, int channel, float sum) const
    {
        const float value = bias && channel < channels ? sum + bias[channel] : sum;
        y[(size_t)pixel * (size_t)stored + (size_t)channel] = channel < channels ? value : 0;
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
    const int n_places = s->kernel * s->kernel;
    const kernel_weights weights = {
        w, taps_of(s, s->in_channels), s->out_channels, s->in_channels * n_places, n_places, s->kernel};
    const store_pixels store = {y, s->out_stored, bias, s->out_channels};
    return gemm(q, conv_forward_shape(n, s), patches, weights, store);
}

cudaError_t cuda_conv_backward_weights(const struct cuda_queue *q, int n, const struct conv_shape *s,
                                       const float *x, const float *dy, float *dw, float *db)
{
    if (!countable(n, s))
        return cudaErrorInvalidValue;
    const columns_of gradients = {dy, s->out_stored}; /* dy[pixel][o] by (o, pixel) */
    const patches_by_tap patches = {input_patches_of(s, x)};
    const store_weights store = {dw, db, taps_of(s, s->in_channels), s->in_channels, s->kernel};
    return gemm<true>(q, conv_backward_weights_shape(n, s), gradients, patches, store);
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
    const int n_places = s->kernel * s->kernel;
    const kernel_weights weights = {w,        taps_of(s, s->out_channels), s->in_channels,
                                    n_places, s->in_channels * n_places,   s->kernel};
    const store_pixels store = {dx, s->in_stored, nullptr, s->in_channels};
    return gemm(q, conv_backward_input_shape(n, s), gradients, weights, store);
}
