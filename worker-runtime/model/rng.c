/*
 * PyTorch's CPU random numbers: the Mersenne Twister MT19937, torch.Tensor.uniform_ and torch.randperm, bit
 * for bit. Not here: normal numbers, which PyTorch draws through vectorised logarithms and cosines that no
 * C library reproduces to the last bit.
 *
 * This file is compiled without floating-point contraction: the one fused multiply-add that PyTorch makes
 * is written down, and the compiler must not add others.
 */

#include "worker-runtime/crw.h"

#include <math.h>

#include "worker-runtime/base/error.h"

enum { N_STATE = 624, N_SHIFT = 397 };

void crw_rng_seed(struct crw_rng *rng, uint64_t seed)
{
    NEED(rng);
    /* PyTorch's generator keeps a 64-bit seed but feeds only its low half to the twister. */
    rng->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < N_STATE; i++) {
        uint32_t previous = rng->state[i - 1];
        rng->state[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
    }
    rng->next = N_STATE;
}

static uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t joined = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (joined >> 1) ^ (low & 1 ? 0x9908b0dfu : 0);
}

static void refill(struct crw_rng *rng)
{
    uint32_t *s = rng->state;
    for (int i = 0; i < N_STATE - N_SHIFT; i++)
        s[i] = s[i + N_SHIFT] ^ twist(s[i], s[i + 1]);
    for (int i = N_STATE - N_SHIFT; i < N_STATE - 1; i++)
        s[i] = s[i + N_SHIFT - N_STATE] ^ twist(s[i], s[i + 1]);
    s[N_STATE - 1] = s[N_SHIFT - 1] ^ twist(s[N_STATE - 1], s[0]);
    rng->next = 0;
}

uint32_t crw_rng_u32(struct crw_rng *rng)
{
    NEED(rng, 0);
    if ((unsigned)rng->next >= N_STATE)
        refill(rng);
    uint32_t y = rng->state[rng->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void crw_rng_uniform(struct crw_rng *rng, float *out, size_t count, float a, float b)
{
    float range = b - a;
    NEED(rng && is_array(out, count, sizeof(*out)));
    for (size_t i = 0; i < count; i++) {
        float r = (float)(crw_rng_u32(rng) & 0xffffff) * 0x1p-24f;
        out[i] = fmaf(r, range, a);
    }
}

int crw_randperm(uint64_t seed, uint32_t n, uint32_t *out)
{
    /* Longer permutations are drawn from 64-bit numbers by PyTorch. */
    const uint32_t limit = UINT32_MAX / 20;
    if (n >= limit)
        return crw_fail(CRW_E_ARGUMENT, "a permutation of %u elements is too long: the limit is %u", n,
                        limit - 1);
    NEED(is_array(out, n, sizeof(*out)), CRW_E_ARGUMENT);

    struct crw_rng rng;
    crw_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < n; i++)
        out[i] = i;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t j = i + crw_rng_u32(&rng) % (n - i);
        uint32_t kept = out[i];
        out[i] = out[j];
        out[j] = kept;
    }
    return 0;
}
