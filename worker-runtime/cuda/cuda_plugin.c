/*
 * The CUDA plugin's front: the table that libcrw asks for.
 *
 * The runtime library is linked statically and opens the driver when it is first called, so the plugin loads
 * on any machine and then finds no device.
 */

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "worker-runtime/cuda/cuda_comm.h"
#include "worker-runtime/cuda/cuda_trainer.h"

/* The reason of this thread's last call. */
static _Thread_local char unusable[256];

/* What the runtime reports of a machine without a driver sounds as if there were one. */
static int explain_no_driver(const char **ret_why)
{
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        *ret_why = "there is no NVIDIA driver";
        return 0;
    }
    (void)cudaRuntimeGetVersion(&runtime); /* cannot fail */
    (void)snprintf(
        unusable, sizeof(unusable),
        "the NVIDIA driver is for CUDA %d.%d, and this plugin's runtime needs a driver for CUDA %d.%d",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    *ret_why = unusable;
    return -1;
}

/* Ten times the compute capability; 0: it cannot be asked for, and a later call fails. */
static int capability_of(int device)
{
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return 0;
    return 10 * major + minor;
}

/* All of them, because ranks take devices by their number. */
static int check_capabilities(int n, const char **ret_why)
{
    for (int device = 0; device < n; device++) {
        const int capability = capability_of(device);
        if (capability == 0 || capability >= CUDA_CAPABILITY_MIN)
            continue;
        (void)snprintf(unusable, sizeof(unusable),
                       "GPU %d has compute capability %d.%d, and %d.%d is needed; leave it out of "
                       "CUDA_VISIBLE_DEVICES if there are others",
                       device, capability / 10, capability % 10, CUDA_CAPABILITY_MIN / 10,
                       CUDA_CAPABILITY_MIN % 10);
        *ret_why = unusable;
        return -1;
    }
    *ret_why = "";
    return n;
}

static int count_cuda_devices(const char **ret_why)
{
    int n = 0;
    cudaError_t r = cudaGetDeviceCount(&n);
    if (r == cudaErrorInsufficientDriver)
        return explain_no_driver(ret_why);
    if (r == cudaSuccess && n > 0)
        return check_capabilities(n, ret_why);
    *ret_why = cudaGetErrorString(r == cudaSuccess ? cudaErrorNoDevice : r);
    return r == cudaSuccess || r == cudaErrorNoDevice ? 0 : -1;
}

static const struct backend cuda_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .error_message = crw_error_message,
    .count_devices = count_cuda_devices,
    .trainer_create = cuda_trainer_create,
    .trainer_destroy = cuda_trainer_destroy,
    .trainer_products = cuda_trainer_products,
    .trainer_set_data = cuda_trainer_set_data,
    .trainer_start = cuda_trainer_start,
    .trainer_upload = cuda_trainer_upload,
    .trainer_set_lr = cuda_trainer_set_lr,
    .trainer_step = cuda_trainer_step,
    .trainer_wait = cuda_trainer_wait,
    .trainer_end_step = cuda_trainer_end_step,
    .trainer_gradients = cuda_trainer_gradients,
    .trainer_reduced = cuda_trainer_reduced,
    .trainer_stage = cuda_trainer_stage,
    .trainer_download = cuda_trainer_download,
    .trainer_evaluate = cuda_trainer_evaluate,
    .comm_create = cuda_comm_create,
    .comm_destroy = cuda_comm_destroy,
    .comm_reducer = cuda_comm_reducer,
    .comm_guard = cuda_comm_guard,
    .comm_check = cuda_comm_check,
    .comm_describe = cuda_comm_describe,
};

/* The symbol that libcrw looks for. */
CRW_EXPORT const struct backend *crw_backend(void);

const struct backend *crw_backend(void)
{
    return &cuda_backend;
}
