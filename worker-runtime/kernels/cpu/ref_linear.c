/*
 * Linear layers and log_softmax, the plain twin. Sums are made in double.
 */

#include "worker-runtime/kernels/cpu/ref.h"

#include <math.h>

void ref_linear_forward(int n, int in, int out, const float *x, const float *w, const float *bias, float *y)
{
    for (int s = 0; s < n; s++)
        for (int o = 0; o < out; o++) {
            double sum = bias[o];
            for (int i = 0; i < in; i++)
                sum += (double)x[s * in + i] * w[o * in + i];
            y[s * out + o] = (float)sum;
        }
}

void ref_linear_backward_weights(int n, int in, int out, const float *x, const float *dy, float *dw,
                                 float *db)
{
    for (int o = 0; o < out; o++) {
        for (int i = 0; i < in; i++) {
            double sum = 0;
            for (int s = 0; s < n; s++)
                sum += (double)dy[s * out + o] * x[s * in + i];
            dw[o * in + i] = (float)sum;
        }
        double sum = 0;
        for (int s = 0; s < n; s++)
            sum += dy[s * out + o];
        db[o] = (float)sum;
    }
}

void ref_linear_backward_input(int n, int in, int out, const float *dy, const float *w, float *dx)
{
    for (int s = 0; s < n; s++)
        for (int i = 0; i < in; i++) {
            double sum = 0;
            for (int o = 0; o < out; o++)
                sum += (double)dy[s * out + o] * w[o * in + i];
            dx[s * in + i] = (float)sum;
        }
}

/* A row costs a handful of exponentials beside the thousands of products that made it: libm's will do, and
 * every table uses this function. */
void ref_log_softmax_forward(int n, int features, const float *x, float *y)
{
    for (int s = 0; s < n; s++, x += features, y += features) {
        float largest = x[0];
        for (int i = 1; i < features; i++)
            largest = x[i] > largest ? x[i] : largest;
        float sum = 0;
        for (int i = 0; i < features; i++)
            sum += expf(x[i] - largest);
        float log_sum = logf(sum);
        for (int i = 0; i < features; i++)
            y[i] = x[i] - largest - log_sum;
    }
}

void ref_log_softmax_backward(int n, int features, const float *y, const float *dy, float *dx)
{
    for (int s = 0; s < n; s++, y += features, dy += features, dx += features) {
        float sum = 0;
        for (int i = 0; i < features; i++)
            sum += dy[i];
        for (int i = 0; i < features; i++)
            dx[i] = dy[i] - expf(y[i]) * sum;
    }
}
