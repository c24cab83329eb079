/*
 * The CUDA plugin's front: the table that libcrw asks for.
 *
 * The runtime library is linked statically and opens the driver when it is first called, so the plugin loads
 * on any machine and then finds no device.
 */

#include <cuda_runtime_api.h>

#include "worker-runtime/cuda/cuda_comm.h"
#include "worker-runtime/cuda/cuda_trainer.h"

static int count_devices(const char **ret_why)
{
    int n = 0;
    cudaError_t r = cudaGetDeviceCount(&n);
    /* What the runtime says of a machine without a driver sounds as if there were one. */
    if (r == cudaErrorInsufficientDriver)
        *ret_why = "there is no NVIDIA driver, or it is older than this plugin's CUDA runtime";
    else
        *ret_why = r == cudaSuccess ? "" : cudaGetErrorString(r);
    return r == cudaSuccess ? n : 0;
}

static const struct backend cuda_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .error_message = crw_error_message,
    .count_devices = count_devices,
    .trainer_create = cuda_trainer_create,
    .trainer_destroy = cuda_trainer_destroy,
    .trainer_set_data = cuda_trainer_set_data,
    .trainer_start = cuda_trainer_start,
    .trainer_upload = cuda_trainer_upload,
    .trainer_set_lr = cuda_trainer_set_lr,
    .trainer_step = cuda_trainer_step,
    .trainer_wait = cuda_trainer_wait,
    .trainer_end_step = cuda_trainer_end_step,
    .trainer_stage = cuda_trainer_stage,
    .trainer_download = cuda_trainer_download,
    .trainer_evaluate = cuda_trainer_evaluate,
    .comm_create = cuda_comm_create,
    .comm_destroy = cuda_comm_destroy,
    .comm_reducer = cuda_comm_reducer,
    .comm_guard = cuda_comm_guard,
    .comm_check = cuda_comm_check,
    .comm_shrink = cuda_comm_shrink,
    .comm_grow = cuda_comm_grow,
};

/* The symbol that libcrw looks for. */
CRW_EXPORT const struct backend *crw_backend(void);

const struct backend *crw_backend(void)
{
    return &cuda_backend;
}
