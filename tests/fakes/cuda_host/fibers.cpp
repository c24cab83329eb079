/*
 * Runs the threads of a block as fibers. Test code only.
 *
 * A fiber takes the next thread that has not started and runs it; if it ends without having met a barrier
 * the same fiber takes the next one, so that kernels without barriers cost no switch at all. At a barrier the
 * fiber goes back to the scheduler, which lets another one run and opens the barrier when all have come.
 *
 * Dies (abort, with a sentence) when the threads of a block can never meet: some wait for the block while
 * others have ended, or the lanes of a warp wait for different things.
 */

#include "tests/fakes/cuda_host/cuda_runtime.h"

#include <cstdio>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/*
 * A stack to go on with later. swapcontext() asks the kernel about signals on every switch, and a product
 * meets a million barriers: so on x86-64 the registers that a call preserves are exchanged here.
 */
#if defined(__x86_64__)
struct machine {
    void *stack_pointer;
};

extern "C" void cuda_host_switch(machine *from, machine *to);
asm(".text\n"
    ".type cuda_host_switch, @function\n"
    "cuda_host_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq (%rsi), %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size cuda_host_switch, . - cuda_host_switch\n");

/* As if main had been about to return to itself: six registers, its address, and an end for unwinders. */
static bool machine_init(machine *m, unsigned char *stack, size_t n_bytes, void (*main)(void))
{
    void **top = reinterpret_cast<void **>(stack + n_bytes) - 2;
    top[0] = reinterpret_cast<void *>(main);
    top[1] = nullptr;
    m->stack_pointer = top - 6;
    std::memset(m->stack_pointer, 0, 6 * sizeof(void *));
    return true;
}
#else
#include <ucontext.h>

struct machine {
    ucontext_t context;
};

static void cuda_host_switch(machine *from, machine *to)
{
    swapcontext(&from->context, &to->context);
}

static bool machine_init(machine *m, unsigned char *stack, size_t n_bytes, void (*main)(void))
{
    if (getcontext(&m->context))
        return false;
    m->context.uc_stack.ss_sp = stack;
    m->context.uc_stack.ss_size = n_bytes;
    m->context.uc_link = nullptr;
    makecontext(&m->context, main, 0);
    return true;
}
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

enum { N_THREADS_MAX = 1024, STACK_SIZE = 128 * 1024 };

enum wait { WAIT_NOTHING, WAIT_BLOCK, WAIT_WARP };

struct fiber {
    machine state;
    unsigned char *stack;
    unsigned thread; /* which one it runs */
    enum wait wait;
    bool idle; /* it has nothing to run */
    void *asan;
};

struct warp {
    unsigned char slots[2][CUDA_HOST_WARP * CUDA_HOST_SLOT];
    unsigned turn[CUDA_HOST_WARP]; /* of each lane: which half it writes next */
};

struct scheduler {
    machine state;
    const void *asan_bottom;
    size_t asan_size;
    void *asan;

    fiber fibers[N_THREADS_MAX];
    unsigned n_fibers; /* made so far */
    fiber *current;

    unsigned n_threads, n_started, n_ended;
    warp warps[N_THREADS_MAX / CUDA_HOST_WARP];
    bool dry; /* nothing is run */
    bool reverse;
    void (*body)(void *);
    void *data;
};

scheduler s;

[[noreturn]] void die(const char *why)
{
    std::fprintf(stderr, "cuda_host: block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, why);
    std::abort();
}

void switch_to_scheduler(fiber *f)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&f->asan, s.asan_bottom, s.asan_size);
#endif
    cuda_host_switch(&f->state, &s.state);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(f->asan, &s.asan_bottom, &s.asan_size);
#endif
}

void switch_to(fiber *f)
{
    s.current = f;
    threadIdx = {f->thread, 0, 0};
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&s.asan, f->stack, STACK_SIZE);
#endif
    cuda_host_switch(&s.state, &f->state);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(s.asan, nullptr, nullptr);
#endif
}

void fiber_main(void)
{
    fiber *f = s.current;
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &s.asan_bottom, &s.asan_size);
#endif
    for (;;) {
        while (s.n_started < s.n_threads) {
            unsigned number = s.n_started++;
            f->thread = s.reverse ? s.n_threads - 1 - number : number;
            threadIdx = {f->thread, 0, 0};
            s.body(s.data);
            s.n_ended++;
        }
        f->idle = true;
        switch_to_scheduler(f);
    }
}

fiber *idle_fiber(void)
{
    for (unsigned i = 0; i < s.n_fibers; i++)
        if (s.fibers[i].idle)
            return &s.fibers[i];
    if (s.n_fibers == N_THREADS_MAX)
        die("no fiber is left");
    fiber *f = &s.fibers[s.n_fibers++];
    f->stack = static_cast<unsigned char *>(std::malloc(STACK_SIZE));
    if (!f->stack || !machine_init(&f->state, f->stack, STACK_SIZE, fiber_main))
        die("no memory for a fiber");
    return f;
}

void wait_for(enum wait what)
{
    fiber *f = s.current;
    f->wait = what;
    switch_to_scheduler(f);
}

/* How many fibers wait at a barrier; warp < 0: of the whole block. */
unsigned count_waiting(enum wait what, int warp)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s.n_fibers; i++) {
        const fiber *f = &s.fibers[i];
        bool inside = warp < 0 || f->thread / CUDA_HOST_WARP == (unsigned)warp;
        n += !f->idle && f->wait == what && inside;
    }
    return n;
}

void open_barrier(enum wait what, int warp)
{
    for (unsigned i = 0; i < s.n_fibers; i++) {
        fiber *f = &s.fibers[i];
        if (!f->idle && f->wait == what && (warp < 0 || f->thread / CUDA_HOST_WARP == (unsigned)warp))
            f->wait = WAIT_NOTHING;
    }
}

/* Lets every fiber run that can. */
void run_all(void)
{
    for (unsigned i = 0; i < s.n_fibers; i++) {
        fiber *f = &s.fibers[s.reverse ? s.n_fibers - 1 - i : i];
        if (!f->idle && f->wait == WAIT_NOTHING)
            switch_to(f);
    }
}

/* Every thread has started and none can go on: opens what all of them have reached. */
void open_barriers(void)
{
    if (count_waiting(WAIT_BLOCK, -1) == s.n_threads) {
        open_barrier(WAIT_BLOCK, -1);
        return;
    }
    bool opened = false;
    for (unsigned w = 0; w < s.n_threads / CUDA_HOST_WARP; w++)
        if (count_waiting(WAIT_WARP, (int)w) == CUDA_HOST_WARP) {
            open_barrier(WAIT_WARP, (int)w);
            opened = true;
        }
    if (!opened)
        die("its threads wait for each other at different barriers, or some have ended before a barrier");
}

void run_block(void)
{
    s.n_started = s.n_ended = 0;
    for (warp &w : s.warps)
        std::memset(w.turn, 0, sizeof(w.turn));
    while (s.n_started < s.n_threads) {
        fiber *f = idle_fiber();
        f->idle = false;
        f->wait = WAIT_NOTHING;
        switch_to(f);
    }
    while (s.n_ended < s.n_threads) {
        open_barriers();
        run_all();
    }
}

} // namespace

void cuda_host_sync_block(void)
{
    wait_for(WAIT_BLOCK);
}

void cuda_host_sync_warp(void)
{
    wait_for(WAIT_WARP);
}

/* Two halves in turn: a lane that is ahead by one exchange does not overwrite what another still reads. */
const unsigned char *cuda_host_exchange(const void *mine, size_t n_bytes)
{
    unsigned lane = threadIdx.x % CUDA_HOST_WARP;
    warp *w = &s.warps[threadIdx.x / CUDA_HOST_WARP];
    unsigned char *half = w->slots[w->turn[lane]++ % 2];
    if (n_bytes > CUDA_HOST_SLOT)
        die("a lane exchanges more than its slot holds");
    std::memcpy(half + lane * CUDA_HOST_SLOT, mine, n_bytes);
    wait_for(WAIT_WARP);
    return half;
}

void cuda_host_reverse_order(bool reverse)
{
    s.reverse = reverse;
}

void cuda_host_set_dry(bool dry)
{
    s.dry = dry;
}

void cuda_host_run_grid(dim3 grid, dim3 block, void (*body)(void *data), void *data)
{
    size_t n_blocks = (size_t)grid.x * grid.y * grid.z;
    gridDim = grid;
    blockDim = block;
    s.n_threads = block.x;
    s.body = body;
    s.data = data;
    if (n_blocks == 0 || block.y != 1 || block.z != 1 || block.x == 0 || block.x > N_THREADS_MAX ||
        block.x % CUDA_HOST_WARP != 0)
        die("a launch with an empty grid, or with blocks that are not one row of whole warps");
    for (size_t i = 0; i < n_blocks && !s.dry; i++) {
        size_t number = s.reverse ? n_blocks - 1 - i : i;
        blockIdx.x = (unsigned)(number % grid.x);
        blockIdx.y = (unsigned)(number / grid.x % grid.y);
        blockIdx.z = (unsigned)(number / grid.x / grid.y);
        run_block();
    }
}
