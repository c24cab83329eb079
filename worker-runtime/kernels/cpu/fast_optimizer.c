/*
 * The optimizers for one instruction set, over a whole arena. Bit equality with PyTorch leaves no freedom in the order of
 * operations. Every fmaf() stands where PyTorch's vector code fuses. The build compiles this file apart from fast.c, with
 * -ffp-contract=off, so that no other operation is fused.
 */

#include "worker-runtime/kernels/cpu/fast.h"

#include <math.h>

static inline void sgd_loop(const struct sgd_step *s, size_t count, float *restrict p,
                            const float *restrict g, float *restrict buffer, bool decay, bool momentum)
{
    const struct sgd_step k = *s;
    for (size_t i = 0; i < count; i++) {
        float d = decay ? fmaf(p[i], k.weight_decay, g[i]) : g[i];
        if (momentum) {
            float b = k.first ? d : fmaf(d, k.one_minus_dampening, buffer[i] * k.momentum);
            buffer[i] = b;
            d = k.nesterov ? fmaf(b, k.momentum, d) : b;
        }
        p[i] = fmaf(d, k.minus_lr, p[i]);
    }
}

/* Four loops without branches, for the four combinations. */
void ISA_NAME(sgd_)(const struct sgd_step *s, size_t count, float *p, const float *g, float *buffer)
{
    bool decay = s->weight_decay != 0, momentum = s->momentum != 0;
    if (decay && momentum)
        sgd_loop(s, count, p, g, buffer, true, true);
    else if (decay)
        sgd_loop(s, count, p, g, buffer, true, false);
    else if (momentum)
        sgd_loop(s, count, p, g, buffer, false, true);
    else
        sgd_loop(s, count, p, g, buffer, false, false);
}

void ISA_NAME(adamw_)(const struct adamw_step *s, size_t count, float *restrict p, const float *restrict g,
                      float *restrict exp_avg, float *restrict exp_avg_sq)
{
    const struct adamw_step k = *s;
    /* torch.lerp() counts from the nearer end. */
    const bool from_start = k.one_minus_beta1 < 0.5f;
    const float weight = from_start ? k.one_minus_beta1 : k.one_minus_beta1 - 1;
    for (size_t i = 0; i < count; i++) {
        float m = fmaf(weight, g[i] - exp_avg[i], from_start ? exp_avg[i] : g[i]);
        float v = fmaf(k.one_minus_beta2 * g[i], g[i], exp_avg_sq[i] * k.beta2);
        float denominator = sqrtf(v) / k.sqrt_correction2 + k.eps;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        p[i] = p[i] * k.decay + (k.minus_step_size * m) / denominator;
    }
}

static inline void adadelta_loop(const struct adadelta_step *s, size_t count, float *restrict p,
                                 const float *restrict g, float *restrict square_avg,
                                 float *restrict acc_delta, bool decay)
{
    const struct adadelta_step k = *s;
    for (size_t i = 0; i < count; i++) {
        float d = decay ? fmaf(p[i], k.weight_decay, g[i]) : g[i];
        float v = fmaf(k.one_minus_rho * d, d, square_avg[i] * k.rho);
        float u = acc_delta[i];
        float delta = sqrtf(u + k.eps) / sqrtf(v + k.eps) * d;
        square_avg[i] = v;
        acc_delta[i] = fmaf(k.one_minus_rho * delta, delta, u * k.rho);
        p[i] = fmaf(delta, k.minus_lr, p[i]);
    }
}

void ISA_NAME(adadelta_)(const struct adadelta_step *s, size_t count, float *p, const float *g,
                         float *square_avg, float *acc_delta)
{
    if (s->weight_decay != 0)
        adadelta_loop(s, count, p, g, square_avg, acc_delta, true);
    else
        adadelta_loop(s, count, p, g, square_avg, acc_delta, false);
}
