#pragma once

/*
 * CUDA's runtime API as far as this project uses it, for machines without a GPU and without the toolkit.
 * Test code only: the include path puts this folder first, and the project's own sources compile unchanged.
 *
 * What it is: streams with queues, events, graphs and memory, with the order rules of the real thing. Work
 * runs as late as it may and in the least convenient order that the rules allow, so that a missing dependency
 * shows as a wrong result; or, with CUDA_HOST_SCHEDULE, at once, or in between (runtime.cpp). Fresh memory is
 * full of NaN, and with CUDA_HOST_GUARD the device's is closed to the host.
 * What it is not: a GPU. Nothing here measures speed, and memory is coherent everywhere.
 *
 * The second header, cuda_runtime.h, adds the language of kernels.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorMisalignedAddress = 716,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorUnknown = 999,
} cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

#define cudaStreamNonBlocking 1u
#define cudaEventDefault 0u
#define cudaEventDisableTiming 2u
#define cudaHostAllocMapped 2u

enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetDeviceCount(int *ret_count);
cudaError_t cudaDriverGetVersion(int *ret_version);
cudaError_t cudaRuntimeGetVersion(int *ret_version);
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
/* CUDA_HOST_CAPABILITY, 90 if there is none. */
cudaError_t cudaDeviceGetAttribute(int *ret_value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void **ret_memory, size_t n_bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **ret_memory, size_t n_bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **ret_device, void *host, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemset(void *memory, int value, size_t n_bytes);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t n_bytes, cudaStream_t stream);
cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret_stream, unsigned flags, int priority);
cudaError_t cudaStreamCreate(cudaStream_t *ret_stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t *ret_event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret_graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret_exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- for tests only ---- */

/* Blocks and threads run last first: a result that changes with it depends on an order that is not promised. */
void cuda_host_reverse_order(bool reverse);
/* What cudaMalloc() returns from now on can be read and written by queued work only: the host is ended by SIGSEGV, also
 * for the bytes behind it. CUDA_HOST_GUARD, set at the start, does the same. */
void cuda_host_guard_memory(void);
/* How many devices there are to be found; 1 at the start. */
void cuda_host_set_devices(int n_devices);
/* The one that cudaSetDevice() chose for this thread; 0 before it. */
int cuda_host_device(void);
/* From now on kernels are queued and captured, and do nothing. */
void cuda_host_set_dry(bool dry);
/* Nodes of all graphs captured so far: kernels, copies and collectives; events make no node. */
size_t cuda_host_count_nodes(void);
/* The longest chains of nodes that follow each other in these graphs, added up. */
size_t cuda_host_count_chained(void);
/* Work for a stream that may be asked more than once: poll returns false while it is not done yet. How the
 * fake NCCL queues its collectives. In a graph, poll starts anew with each launch. */
cudaError_t cuda_host_enqueue(cudaStream_t stream, bool (*poll)(void *data), void *data);
/* The same; released(data) is called when no stream and no graph holds the work any more, with the lock of the
 * emulation held. */
cudaError_t cuda_host_enqueue_owned(cudaStream_t stream, bool (*poll)(void *data),
                                    void (*released)(void *data), void *data);
bool cuda_host_is_capturing(cudaStream_t stream);
/* What a kernel's fault does to a device: every later call on its streams and events reports `error`. cudaSuccess: a
 * new process, which has a device again. */
void cuda_host_break(cudaError_t error);
/* Lets the device do whatever it can, as time does. */
void cuda_host_run(void);

#ifdef __cplusplus
}
#endif
