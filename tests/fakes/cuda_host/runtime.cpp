/*
 * Streams, events, graphs and memory of the emulated CUDA runtime. Test code only; the rules are those of
 * the real runtime as far as cuda_runtime_api.h declares it.
 *
 * Every stream is a queue. When its work runs is set by CUDA_HOST_SCHEDULE:
 *   late    (the default) only inside a call that asks about an event or a stream, and then from the youngest
 *           stream to the oldest, each as far as its waits allow: a missing wait reads memory that is not
 *           written yet, and a process that is killed behind a launch has run nothing of it.
 *   early   inside the call that queues it, and in a thread from then on while it waits for another process:
 *           a process that is killed behind a launch has run all of it, as a GPU mostly has.
 *   NUMBER  in between: each call runs a random part of what may run, drawn from this seed.
 *
 * Capture: what is queued goes into the graph's list instead, with the numbers of the nodes that it follows. Streams
 * join by waiting for an event of the capture and must be joined back; counters per stream check it. A graph runs its
 * nodes in an order that these dependencies allow: late the youngest that may run, early in the order of capture.
 */

#include "tests/fakes/cuda_host/cuda_runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

typedef std::shared_ptr<cuda_host_work> work_ptr;
/* Of each stream (by number): how much of what it captured has been seen. */
typedef std::vector<size_t> capture_clock;

typedef std::vector<size_t> node_list;

struct CUgraph_st {
    std::vector<work_ptr> nodes;
    std::vector<node_list> follows; /* of each node, which ones it follows directly */
};

struct CUgraphExec_st {
    CUgraph_st graph;
};

struct CUstream_st {
    size_t number;
    std::deque<work_ptr> queue;
    CUgraph_st *capture = nullptr; /* the graph it is being captured into */
    node_list last;                /* what its next node follows */
    capture_clock clock;
    size_t n_captured = 0;
};

struct CUevent_st {
    unsigned long long n_recorded = 0, n_reached = 0;
    std::chrono::steady_clock::time_point reached; /* the last time */
    CUgraph_st *capture = nullptr;
    node_list last;
    capture_clock clock;
};

namespace
{

std::recursive_mutex lock_;
std::vector<CUstream_st *> streams; /* by number; null: destroyed */
CUstream_st *default_stream;
int n_devices = 1;
std::atomic<cudaError_t> broken{cudaSuccess}; /* the fault of a kernel, if there was one */
thread_local int current_device;

typedef std::lock_guard<std::recursive_mutex> guard;

CUstream_st *new_stream(void)
{
    CUstream_st *stream = new CUstream_st;
    stream->number = streams.size();
    streams.push_back(stream);
    return stream;
}

CUstream_st *stream_of(cudaStream_t stream)
{
    if (stream)
        return stream;
    if (!default_stream)
        default_stream = new_stream();
    return default_stream;
}

/* ---- memory that the host must not touch ---- */

struct mapping {
    unsigned char *begin;
    size_t n_bytes; /* without the page behind it, which stays closed */
};

bool is_guarded = std::getenv("CUDA_HOST_GUARD") != nullptr;
std::map<void *, mapping> mappings; /* by what cudaMalloc() returned */
unsigned n_working;                 /* how often the device has begun to work and not ended */

void protect_mappings(int protection)
{
    for (const auto &m : mappings)
        if (mprotect(m.second.begin, m.second.n_bytes, protection))
            std::abort();
}

/* While one lives, the device works. */
struct device_work {
    device_work(void)
    {
        if (n_working++ == 0)
            protect_mappings(PROT_READ | PROT_WRITE);
    }
    ~device_work()
    {
        if (--n_working == 0)
            protect_mappings(PROT_NONE);
    }
};

/* Ends at the end of a page, but for what is left of 256 bytes. */
void *map_memory(size_t n_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), taken = (n_bytes + 255) / 256 * 256,
                 n_mapped = (taken + page - 1) / page * page;
    void *begin = mmap(nullptr, n_mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED)
        return nullptr;
    unsigned char *memory = static_cast<unsigned char *>(begin) + (n_mapped - taken);
    std::memset(memory, 0xff, n_bytes); /* NaN in every format */
    if (mprotect(begin, n_mapped + page, PROT_NONE))
        std::abort();
    mappings[memory] = {static_cast<unsigned char *>(begin), n_mapped};
    return memory;
}

bool unmap_memory(void *memory)
{
    const auto found = mappings.find(memory);
    if (found == mappings.end())
        return false;
    munmap(found->second.begin, found->second.n_bytes + (size_t)sysconf(_SC_PAGESIZE));
    mappings.erase(found);
    return true;
}

/* ---- when work runs ---- */

enum schedule { SCHEDULE_LATE, SCHEDULE_EARLY, SCHEDULE_SEEDED };

struct schedule_choice {
    enum schedule kind = SCHEDULE_LATE;
    uint64_t random = 0;
    schedule_choice(void)
    {
        const char *text = std::getenv("CUDA_HOST_SCHEDULE");
        if (!text || !text[0] || std::strcmp(text, "late") == 0)
            return;
        kind = std::strcmp(text, "early") == 0 ? SCHEDULE_EARLY : SCHEDULE_SEEDED;
        random = std::strtoull(text, nullptr, 0) * 2 + 1;
    }
};

/* Read at the first use: a test may set the variable itself. */
schedule_choice &chosen(void)
{
    static schedule_choice choice;
    return choice;
}

/* splitmix64 */
unsigned draw(unsigned n)
{
    uint64_t z = chosen().random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ z >> 31) % n);
}

bool anything_queued(void)
{
    for (CUstream_st *stream : streams)
        if (stream && !stream->queue.empty())
            return true;
    return false;
}

/* Runs whatever can run. */
void pump(void)
{
    if (!anything_queued())
        return;
    device_work d;
    for (bool progress = true; progress;) {
        progress = false;
        for (size_t i = streams.size(); i-- > 0;) {
            CUstream_st *stream = streams[i];
            while (stream && !stream->queue.empty()) {
                work_ptr first = stream->queue.front();
                if (!first->run())
                    break;
                stream->queue.pop_front();
                progress = true;
            }
        }
    }
}

/* A few pieces of work, from a stream that is drawn on; at least one, if any can run. */
void pump_some(void)
{
    const size_t n = streams.size(), first = n ? draw((unsigned)n) : 0;
    unsigned budget = 1 + draw(6);
    device_work d;
    for (size_t i = 0; i < n && budget; i++) {
        CUstream_st *stream = streams[(first + i) % n];
        while (stream && budget && !stream->queue.empty()) {
            work_ptr work = stream->queue.front();
            if (!work->run())
                break;
            stream->queue.pop_front();
            budget--;
        }
    }
}

/* Early: goes on with work that waits for another process while the host does something else. */
class device_thread
{
    std::thread thread_;
    std::atomic<bool> stop_{false};

    void main(void)
    {
        while (!stop_) {
            {
                guard g(lock_);
                if (anything_queued())
                    pump();
            }
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }

  public:
    void start(void)
    {
        if (!thread_.joinable())
            thread_ = std::thread(&device_thread::main, this);
    }

    ~device_thread()
    {
        stop_ = true;
        if (thread_.joinable())
            thread_.join();
    }
};

device_thread device_thread_; /* last of all here: it ends before what it works on */

/* Behind each piece of work that was queued. */
void after_queueing(void)
{
    if (chosen().kind == SCHEDULE_EARLY) {
        pump();
        device_thread_.start();
    } else if (chosen().kind == SCHEDULE_SEEDED && draw(2)) {
        pump_some();
    }
}

/* Where the host asks whether something is done. */
void when_asked(void)
{
    if (chosen().kind == SCHEDULE_SEEDED)
        pump_some();
    else
        pump();
}

size_t &clock_at(capture_clock &clock, size_t number)
{
    if (clock.size() <= number)
        clock.resize(number + 1);
    return clock[number];
}

void merge(capture_clock &into, capture_clock &from)
{
    for (size_t i = 0; i < from.size(); i++)
        if (clock_at(into, i) < from[i])
            into[i] = from[i];
}

struct copy_work final : cuda_host_work {
    void *to;
    const void *from;
    size_t n_bytes;
    bool run(void) override
    {
        std::memcpy(to, from, n_bytes);
        return true;
    }
};

struct set_work final : cuda_host_work {
    void *memory;
    int value;
    size_t n_bytes;
    bool run(void) override
    {
        std::memset(memory, value, n_bytes);
        return true;
    }
};

struct record_work final : cuda_host_work {
    CUevent_st *event;
    unsigned long long number;
    bool is_node(void) const override
    {
        return false;
    }
    bool run(void) override
    {
        event->n_reached = number;
        event->reached = std::chrono::steady_clock::now();
        return true;
    }
};

struct wait_work final : cuda_host_work {
    CUevent_st *event;
    unsigned long long number;
    bool is_node(void) const override
    {
        return false;
    }
    bool run(void) override
    {
        return event->n_reached >= number;
    }
};

struct poll_work final : cuda_host_work {
    bool (*poll)(void *data);
    void (*released)(void *data) = nullptr;
    void *data;
    bool run(void) override
    {
        return poll(data);
    }
    ~poll_work() override
    {
        if (released)
            released(data);
    }
};

/* A launch. Nodes that wait for another process do not keep those from running that do not follow them. */
struct graph_work final : cuda_host_work {
    CUgraph_st graph;
    std::vector<bool> done;
    size_t n_done = 0;

    bool may_run(size_t node) const
    {
        for (size_t before : graph.follows[node])
            if (!done[before])
                return false;
        return !done[node];
    }

    /* False: there is none, or those that there are wait. */
    bool run_one(void)
    {
        const size_t n = graph.nodes.size(), first = chosen().kind == SCHEDULE_SEEDED ? draw((unsigned)n) : 0;
        for (size_t i = 0; i < n; i++) {
            const size_t node = chosen().kind == SCHEDULE_LATE ? n - 1 - i : (first + i) % n;
            if (!may_run(node) || !graph.nodes[node]->run())
                continue;
            done[node] = true;
            n_done++;
            return true;
        }
        return false;
    }

    bool run(void) override
    {
        done.resize(graph.nodes.size());
        while (n_done < graph.nodes.size()) {
            if (!run_one())
                return false;
            if (chosen().kind == SCHEDULE_SEEDED && draw(8) == 0 && n_done < graph.nodes.size())
                return false;
        }
        return true;
    }
};

size_t n_nodes_captured, n_in_chains;

void count_captured(const CUgraph_st &graph)
{
    std::vector<size_t> chains; /* of each node: the longest that ends with it */
    size_t longest = 0;
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        size_t before = 0;
        for (size_t node : graph.follows[i])
            before = std::max(before, chains[node]);
        chains.push_back(before + graph.nodes[i]->is_node());
        longest = std::max(longest, chains[i]);
        n_nodes_captured += graph.nodes[i]->is_node();
    }
    n_in_chains += longest;
}

} // namespace

cudaError_t cuda_host_submit(cudaStream_t handle, cuda_host_work *work)
{
    guard g(lock_);
    work_ptr owned(work);
    if (broken != cudaSuccess)
        return broken;
    CUstream_st *stream = stream_of(handle);
    if (!stream->capture) {
        stream->queue.push_back(owned);
        after_queueing();
        return cudaSuccess;
    }
    stream->capture->follows.push_back(stream->last);
    stream->last = {stream->capture->nodes.size()};
    stream->capture->nodes.push_back(owned);
    clock_at(stream->clock, stream->number) = ++stream->n_captured;
    return cudaSuccess;
}

cudaError_t cuda_host_enqueue(cudaStream_t stream, bool (*poll)(void *data), void *data)
{
    return cuda_host_enqueue_owned(stream, poll, nullptr, data);
}

cudaError_t cuda_host_enqueue_owned(cudaStream_t stream, bool (*poll)(void *data),
                                    void (*released)(void *data), void *data)
{
    poll_work *work = new poll_work;
    work->poll = poll;
    work->released = released;
    work->data = data;
    return cuda_host_submit(stream, work);
}

void cuda_host_break(cudaError_t error)
{
    broken = error;
}

void cuda_host_guard_memory(void)
{
    guard g(lock_);
    is_guarded = true;
}

void cuda_host_run(void)
{
    guard g(lock_);
    pump();
}

bool cuda_host_is_capturing(cudaStream_t stream)
{
    guard g(lock_);
    return stream_of(stream)->capture != nullptr;
}

size_t cuda_host_count_nodes(void)
{
    guard g(lock_);
    return n_nodes_captured;
}

size_t cuda_host_count_chained(void)
{
    guard g(lock_);
    return n_in_chains;
}

void cuda_host_set_devices(int n)
{
    n_devices = n;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorMisalignedAddress:
        return "misaligned address";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureUnjoined:
        return "capturing stream has unjoined work";
    case cudaErrorUnknown:
        return "unknown error";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int *ret_count)
{
    *ret_count = n_devices;
    return n_devices ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDriverGetVersion(int *ret_version)
{
    *ret_version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *ret_version)
{
    *ret_version = 13000;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *ret_value, enum cudaDeviceAttr attribute, int device)
{
    const char *text = std::getenv("CUDA_HOST_CAPABILITY");
    const int capability = text ? std::atoi(text) : 90;
    if (device < 0 || device >= n_devices)
        return cudaErrorInvalidDevice;
    *ret_value = attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= n_devices)
        return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}

int cuda_host_device(void)
{
    return current_device;
}

/* CUDA_HOST_FULL: the local rank whose device has no memory left. */
static bool is_full(void)
{
    const char *full = std::getenv("CUDA_HOST_FULL"), *rank = std::getenv("LOCAL_RANK");
    return full && rank && std::strcmp(full, rank) == 0;
}

static cudaError_t host_memory(void **ret_memory, size_t n_bytes)
{
    void *memory = std::aligned_alloc(256, (n_bytes + 255) / 256 * 256);
    if (!memory)
        return cudaErrorMemoryAllocation;
    std::memset(memory, 0xff, n_bytes); /* NaN in every format */
    *ret_memory = memory;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ret_memory, size_t n_bytes)
{
    if (is_full())
        return cudaErrorMemoryAllocation;
    guard g(lock_);
    if (!is_guarded)
        return host_memory(ret_memory, n_bytes);
    *ret_memory = map_memory(n_bytes);
    return *ret_memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    guard g(lock_);
    pump();
    if (!unmap_memory(memory))
        std::free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret_memory, size_t n_bytes, unsigned flags)
{
    (void)flags;
    return is_full() ? cudaErrorMemoryAllocation : host_memory(ret_memory, n_bytes);
}

cudaError_t cudaHostGetDevicePointer(void **ret_device, void *host, unsigned flags)
{
    (void)flags;
    *ret_device = host;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    copy_work *work = new copy_work;
    work->to = to;
    work->from = from;
    work->n_bytes = n_bytes;
    return cuda_host_submit(stream, work);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind)
{
    cudaError_t r = cudaMemcpyAsync(to, from, n_bytes, kind, nullptr);
    return r == cudaSuccess ? cudaStreamSynchronize(nullptr) : r;
}

cudaError_t cudaMemset(void *memory, int value, size_t n_bytes)
{
    cudaError_t r = cudaMemsetAsync(memory, value, n_bytes, nullptr);
    return r == cudaSuccess ? cudaStreamSynchronize(nullptr) : r;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t n_bytes, cudaStream_t stream)
{
    set_work *work = new set_work;
    work->memory = memory;
    work->value = value;
    work->n_bytes = n_bytes;
    return cuda_host_submit(stream, work);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    *ret_least = 0;
    *ret_greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret_stream, unsigned flags, int priority)
{
    guard g(lock_);
    (void)flags;
    (void)priority;
    *ret_stream = new_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *ret_stream)
{
    return cudaStreamCreateWithPriority(ret_stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard g(lock_);
    pump();
    streams[stream->number] = nullptr;
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    CUstream_st *stream;
    {
        guard g(lock_);
        stream = stream_of(handle);
        if (stream->capture)
            return cudaErrorStreamCaptureUnsupported;
    }
    for (;;) {
        guard g(lock_);
        pump();
        if (broken != cudaSuccess || stream->queue.empty())
            return broken;
    }
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags)
{
    (void)flags;
    *ret_event = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *ret_event)
{
    return cudaEventCreateWithFlags(ret_event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard g(lock_);
    pump();
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    guard g(lock_);
    CUstream_st *stream = stream_of(handle);
    event->capture = stream->capture;
    if (stream->capture) {
        event->clock = stream->clock;
        event->last = stream->last;
        return cudaSuccess;
    }
    record_work *work = new record_work;
    work->event = event;
    work->number = ++event->n_recorded;
    return cuda_host_submit(stream, work);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    guard g(lock_);
    (void)flags;
    CUstream_st *stream = stream_of(handle);
    if (event->capture) {
        if (stream->capture && stream->capture != event->capture)
            return cudaErrorStreamCaptureUnsupported;
        stream->capture = event->capture;
        merge(stream->clock, event->clock);
        stream->last.insert(stream->last.end(), event->last.begin(), event->last.end());
        return cudaSuccess;
    }
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    wait_work *work = new wait_work;
    work->event = event;
    work->number = event->n_recorded;
    return cuda_host_submit(stream, work);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard g(lock_);
    if (event->capture)
        return cudaErrorStreamCaptureUnsupported;
    when_asked();
    if (broken != cudaSuccess)
        return broken;
    return event->n_reached == event->n_recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t r;
    do
        r = cudaEventQuery(event);
    while (r == cudaErrorNotReady);
    return r;
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t begin, cudaEvent_t end)
{
    guard g(lock_);
    if (begin->n_reached != begin->n_recorded || end->n_reached != end->n_recorded)
        return cudaErrorNotReady;
    *ret_ms = std::chrono::duration<float, std::milli>(end->reached - begin->reached).count();
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    guard g(lock_);
    (void)mode;
    if (stream->capture)
        return cudaErrorStreamCaptureUnsupported;
    stream->capture = new CUgraph_st;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t origin, cudaGraph_t *ret_graph)
{
    guard g(lock_);
    CUgraph_st *graph = origin->capture;
    bool joined = true;
    if (!graph)
        return cudaErrorInvalidValue;
    for (CUstream_st *stream : streams) {
        if (!stream || stream->capture != graph)
            continue;
        joined = joined && clock_at(origin->clock, stream->number) >= stream->n_captured;
        stream->capture = nullptr;
        stream->n_captured = 0;
        stream->last.clear();
        if (stream != origin)
            stream->clock.clear();
    }
    origin->clock.clear();
    if (!joined) {
        delete graph;
        return cudaErrorStreamCaptureUnjoined;
    }
    count_captured(*graph);
    *ret_graph = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret_exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    CUgraphExec_st *exec = new CUgraphExec_st;
    exec->graph = *graph;
    *ret_exec = exec;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    graph_work *work = new graph_work;
    work->graph = exec->graph;
    return cuda_host_submit(stream, work);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    guard g(lock_);
    delete graph;
    return cudaSuccess;
}

/* A launch that is in flight keeps its nodes until it is done. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    guard g(lock_);
    delete exec;
    return cudaSuccess;
}
