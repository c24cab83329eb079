#pragma once

/*
 * The language of kernels, for the host compiler: a grid is a loop over blocks, the threads of a block are
 * fibers that meet at barriers. Test code only; see cuda_runtime_api.h.
 *
 * Limits, each checked where it is used: one-dimensional blocks of whole warps, warp operations with the
 * whole warp, no dynamic shared memory, no atomics (the kernels here use none).
 */

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
/* One block runs at a time, so its shared memory can lie anywhere. */
#define __shared__ static

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

struct alignas(16) double2 {
    double x, y;
};

extern "C" uint3 threadIdx, blockIdx;
extern "C" dim3 blockDim, gridDim;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    void *attrs = nullptr;
    unsigned numAttrs = 0;
};

/* ---- barriers and warps ---- */

extern "C" void cuda_host_sync_block(void);
extern "C" void cuda_host_sync_warp(void);
/* Every lane gives n_bytes (at most CUDA_HOST_SLOT); returns the 32 lanes' slots. */
extern "C" const unsigned char *cuda_host_exchange(const void *mine, size_t n_bytes);
enum { CUDA_HOST_WARP = 32, CUDA_HOST_SLOT = 64 };

inline void __syncthreads(void)
{
    cuda_host_sync_block();
}

inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    if (mask != 0xffffffffu)
        std::abort();
    cuda_host_sync_warp();
}

template <class T> inline T cuda_host_lane(const unsigned char *slots, unsigned lane)
{
    T value;
    std::memcpy(&value, slots + lane * CUDA_HOST_SLOT, sizeof(value));
    return value;
}

template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask)
{
    if (mask != 0xffffffffu)
        std::abort();
    const unsigned char *slots = cuda_host_exchange(&value, sizeof(value));
    return cuda_host_lane<T>(slots, (threadIdx.x % CUDA_HOST_WARP) ^ (unsigned)lane_mask);
}

/* ---- arithmetic ---- */

inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}

inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

inline float __uint_as_float(unsigned bits)
{
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

/* ---- launching ---- */

/* Work as a stream holds it. run() may be called many times (graphs); false: not done, ask again. */
struct cuda_host_work {
    virtual bool run(void) = 0;
    virtual bool is_node(void) const
    {
        return true;
    }
    virtual ~cuda_host_work()
    {
    }
};

/* Takes the work, also on failure. */
cudaError_t cuda_host_submit(cudaStream_t stream, cuda_host_work *work);
/* Runs body once for every thread of the grid. */
void cuda_host_run_grid(dim3 grid, dim3 block, void (*body)(void *data), void *data);

template <class... P> struct cuda_host_launch final : cuda_host_work {
    dim3 grid, block;
    void (*kernel)(P...);
    std::tuple<P...> arguments; /* by value, as a launch keeps them */

    cuda_host_launch(dim3 grid_, dim3 block_, void (*kernel_)(P...), P... p)
        : grid(grid_), block(block_), kernel(kernel_), arguments(p...)
    {
    }

    static void thread(void *data)
    {
        cuda_host_launch *self = static_cast<cuda_host_launch *>(data);
        std::apply(self->kernel, self->arguments);
    }

    bool run(void) override
    {
        cuda_host_run_grid(grid, block, thread, this);
        return true;
    }
};

template <class... P, class... A>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                      A &&...arguments)
{
    return cuda_host_submit(
        config->stream, new cuda_host_launch<P...>(config->gridDim, config->blockDim, kernel, arguments...));
}
