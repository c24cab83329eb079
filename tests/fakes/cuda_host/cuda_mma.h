#pragma once

/*
 * The matrix-multiply-accumulate of a warp, for the host: the same fragments in the same lanes as the
 * instruction (PTX ISA, "Matrix fragments for mma.m16n8k8" and "...k16"), products and sums in fp32 in the
 * order of k. Real tensor cores keep a few more bits inside and sum in an order of their own.
 *
 * Lane = 4 * group + member. Rows and columns of D: c[0], c[1] at (group, 2 * member + 0, 1) and c[2], c[3]
 * eight rows below.
 */

#include "tests/fakes/cuda_host/cuda_runtime.h"

/* What a lane gives: four words of A, two of B. */
enum { CUDA_HOST_A = 0, CUDA_HOST_B = 4, CUDA_HOST_FRAGMENT = 6 };

/* One word of a lane's fragment. */
inline unsigned cuda_host_word(const unsigned char *slots, unsigned lane, int word)
{
    unsigned value;
    std::memcpy(&value, slots + lane * CUDA_HOST_SLOT + (unsigned)word * sizeof(value), sizeof(value));
    return value;
}

/* c += A B, where word_a(slots, row, k) and word_b(slots, column, k) know the instruction's layout. */
template <int K, class A, class B>
inline void cuda_host_mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], A value_a, B value_b)
{
    const unsigned mine[CUDA_HOST_FRAGMENT] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const unsigned char *slots = cuda_host_exchange(mine, sizeof(mine));
    const unsigned lane = threadIdx.x % CUDA_HOST_WARP, group = lane / 4, member = lane % 4;
    for (int i = 0; i < 4; i++) {
        const unsigned row = group + (unsigned)i / 2 * 8, column = 2 * member + (unsigned)i % 2;
        for (int k = 0; k < K; k++)
            c[i] += value_a(slots, row, k) * value_b(slots, column, k);
    }
}

/* tf32: the low 13 bits of a float do not take part. Member t holds k = t and k = t + 4. */
inline float cuda_host_tf32(const unsigned char *slots, unsigned lane, int word)
{
    return __uint_as_float(cuda_host_word(slots, lane, word) & ~0x1fffu);
}

inline void mma_m16n8k8_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    cuda_host_mma<8>(
        c, a, b,
        [](const unsigned char *slots, unsigned row, int k) {
            return cuda_host_tf32(slots, row % 8 * 4 + (unsigned)k % 4,
                                  CUDA_HOST_A + (int)row / 8 + k / 4 * 2);
        },
        [](const unsigned char *slots, unsigned column, int k) {
            return cuda_host_tf32(slots, column * 4 + (unsigned)k % 4, CUDA_HOST_B + k / 4);
        });
}

/* bf16: member t holds the pairs k = 2t, 2t + 1 and eight further; the even k in the lower half of a word. */
inline float cuda_host_bf16(const unsigned char *slots, unsigned lane, int word, int k)
{
    const unsigned pair = cuda_host_word(slots, lane, word);
    return __uint_as_float(k % 2 ? pair & 0xffff0000u : pair << 16);
}

inline void mma_m16n8k16_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    cuda_host_mma<16>(
        c, a, b,
        [](const unsigned char *slots, unsigned row, int k) {
            return cuda_host_bf16(slots, row % 8 * 4 + (unsigned)k % 8 / 2,
                                  CUDA_HOST_A + (int)row / 8 + k / 8 * 2, k);
        },
        [](const unsigned char *slots, unsigned column, int k) {
            return cuda_host_bf16(slots, column * 4 + (unsigned)k % 8 / 2, CUDA_HOST_B + k / 8, k);
        });
}

/* Nearest, ties away from zero: cvt.rna.tf32.f32. */
inline unsigned round_to_tf32(float x)
{
    unsigned bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

/* Nearest, ties to even: cvt.rn.bf16x2.f32; low is the pair's lower half. */
inline unsigned round_to_bf16_pair(float low, float high)
{
    unsigned halves[2];
    for (int i = 0; i < 2; i++) {
        unsigned bits = __float_as_uint(i ? high : low);
        bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        halves[i] = is_nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
    return halves[0] | halves[1] << 16;
}
