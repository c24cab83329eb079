/*
 * Measures the callbacks of libuv's loops, for LD_PRELOAD: how long each one takes, in CPU time of its thread and in time
 * passed. When the program exits, a file is written to the folder $MEASURED_LOOP:
 *
 *   program PATH
 *   callback OFFSET COUNT MAX_CPU_NS MAX_WALL_NS     one for each function, OFFSET in the program's file
 *   cpu BUCKET COUNT                                 all callbacks; bucket b ends at 2^(b / 8) * (1 + b % 8 / 8) ns
 *
 * It takes the place of the functions that are given callbacks, keeps those by handle, and gives libuv its own. One loop,
 * of one thread; handles beyond TABLE_SIZE are not measured.
 */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

enum { TABLE_SIZE = 1 << 18, FUNCTIONS_MAX = 128, BUCKETS = 64 * 8, N_KINDS = 16 };

enum kind { POLL = 1, TIMER, ASYNC, IDLE, CHECK, SIGNAL, CLOSE, WORK, READ };

static struct entry {
    const void *handle;
    enum kind kind;
    void *callback;
} table[TABLE_SIZE];

static struct function {
    void *callback;
    uint64_t count, max_cpu_ns, max_wall_ns;
} functions[FUNCTIONS_MAX];

static uint64_t buckets[BUCKETS];

/* ---- callbacks by handle ---- */

/* The entry of this handle, a free one, or NULL. Entries are never removed: a new handle at the address takes it. */
static struct entry *find_entry(const void *handle, enum kind kind)
{
    size_t at = ((uintptr_t)handle >> 4) * N_KINDS + kind;

    for (size_t i = 0; i < 64; i++) {
        struct entry *e = &table[(at * UINT64_C(0x9e3779b97f4a7c15) >> 40) % TABLE_SIZE];
        if (!e->handle || (e->handle == handle && e->kind == kind))
            return e;
        at += 0x10001;
    }
    return NULL;
}

static int keep_callback(const void *handle, enum kind kind, void *callback)
{
    struct entry *e = find_entry(handle, kind);

    if (e)
        *e = (struct entry){.handle = handle, .kind = kind, .callback = callback};
    return e != NULL;
}

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* ---- measuring ---- */

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct start {
    uint64_t cpu, wall;
};

static struct start start_measuring(void)
{
    return (struct start){read_clock(CLOCK_THREAD_CPUTIME_ID), read_clock(CLOCK_MONOTONIC)};
}

static unsigned bucket_of(uint64_t ns)
{
    unsigned exponent = 63 - (unsigned)__builtin_clzll(ns | 8);

    return exponent * 8 + (unsigned)(ns >> (exponent - 3) & 7);
}

static void note(void *callback, struct start start)
{
    uint64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID) - start.cpu;
    uint64_t wall = read_clock(CLOCK_MONOTONIC) - start.wall;
    struct function *f = functions;

    while (f < functions + FUNCTIONS_MAX - 1 && f->callback && f->callback != callback)
        f++;
    f->callback = callback;
    f->count++;
    f->max_cpu_ns = cpu > f->max_cpu_ns ? cpu : f->max_cpu_ns;
    f->max_wall_ns = wall > f->max_wall_ns ? wall : f->max_wall_ns;
    buckets[bucket_of(cpu)]++;
}

/* ---- in the place of libuv's functions ---- */

static void on_poll(uv_poll_t *handle, int status, int events)
{
    uv_poll_cb callback = (uv_poll_cb)find_entry(handle, POLL)->callback;
    struct start start = start_measuring();

    callback(handle, status, events);
    note((void *)callback, start);
}

int uv_poll_start(uv_poll_t *handle, int events, uv_poll_cb callback)
{
    static int (*next)(uv_poll_t *, int, uv_poll_cb);

    next = next ? next : (int (*)(uv_poll_t *, int, uv_poll_cb))real("uv_poll_start");
    return next(handle, events, keep_callback(handle, POLL, (void *)callback) ? on_poll : callback);
}

#define MEASURE(type, name, kind)                                                                            \
    static void on_##name(type *handle)                                                                      \
    {                                                                                                        \
        void (*callback)(type *) = (void (*)(type *))find_entry(handle, kind)->callback;                     \
        struct start start = start_measuring();                                                              \
                                                                                                             \
        callback(handle);                                                                                    \
        note((void *)callback, start);                                                                       \
    }

MEASURE(uv_timer_t, timer, TIMER)
MEASURE(uv_async_t, async, ASYNC)
MEASURE(uv_idle_t, idle, IDLE)
MEASURE(uv_check_t, check, CHECK)
MEASURE(uv_handle_t, close, CLOSE)

/* libuv starts a timer that repeats again by itself, with the callback that it has: ours. */
int uv_timer_start(uv_timer_t *handle, uv_timer_cb callback, uint64_t timeout, uint64_t repeat)
{
    static int (*next)(uv_timer_t *, uv_timer_cb, uint64_t, uint64_t);

    next = next ? next : (int (*)(uv_timer_t *, uv_timer_cb, uint64_t, uint64_t))real("uv_timer_start");
    if (callback == on_timer)
        return next(handle, callback, timeout, repeat);
    return next(handle, keep_callback(handle, TIMER, (void *)callback) ? on_timer : callback, timeout,
                repeat);
}

int uv_async_init(uv_loop_t *loop, uv_async_t *handle, uv_async_cb callback)
{
    static int (*next)(uv_loop_t *, uv_async_t *, uv_async_cb);

    next = next ? next : (int (*)(uv_loop_t *, uv_async_t *, uv_async_cb))real("uv_async_init");
    if (!callback)
        return next(loop, handle, callback);
    return next(loop, handle, keep_callback(handle, ASYNC, (void *)callback) ? on_async : callback);
}

int uv_idle_start(uv_idle_t *handle, uv_idle_cb callback)
{
    static int (*next)(uv_idle_t *, uv_idle_cb);

    next = next ? next : (int (*)(uv_idle_t *, uv_idle_cb))real("uv_idle_start");
    return next(handle, keep_callback(handle, IDLE, (void *)callback) ? on_idle : callback);
}

int uv_check_start(uv_check_t *handle, uv_check_cb callback)
{
    static int (*next)(uv_check_t *, uv_check_cb);

    next = next ? next : (int (*)(uv_check_t *, uv_check_cb))real("uv_check_start");
    return next(handle, keep_callback(handle, CHECK, (void *)callback) ? on_check : callback);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    uv_read_cb callback = (uv_read_cb)find_entry(stream, READ)->callback;
    struct start start = start_measuring();

    callback(stream, n, buf);
    note((void *)callback, start);
}

int uv_read_start(uv_stream_t *stream, uv_alloc_cb allocate, uv_read_cb callback)
{
    static int (*next)(uv_stream_t *, uv_alloc_cb, uv_read_cb);

    next = next ? next : (int (*)(uv_stream_t *, uv_alloc_cb, uv_read_cb))real("uv_read_start");
    return next(stream, allocate, keep_callback(stream, READ, (void *)callback) ? on_read : callback);
}

void uv_close(uv_handle_t *handle, uv_close_cb callback)
{
    static void (*next)(uv_handle_t *, uv_close_cb);

    next = next ? next : (void (*)(uv_handle_t *, uv_close_cb))real("uv_close");
    next(handle, callback && keep_callback(handle, CLOSE, (void *)callback) ? on_close : callback);
}

static void on_signal(uv_signal_t *handle, int number)
{
    uv_signal_cb callback = (uv_signal_cb)find_entry(handle, SIGNAL)->callback;
    struct start start = start_measuring();

    callback(handle, number);
    note((void *)callback, start);
}

int uv_signal_start(uv_signal_t *handle, uv_signal_cb callback, int number)
{
    static int (*next)(uv_signal_t *, uv_signal_cb, int);

    next = next ? next : (int (*)(uv_signal_t *, uv_signal_cb, int))real("uv_signal_start");
    return next(handle, keep_callback(handle, SIGNAL, (void *)callback) ? on_signal : callback, number);
}

static void on_after_work(uv_work_t *work, int status)
{
    uv_after_work_cb callback = (uv_after_work_cb)find_entry(work, WORK)->callback;
    struct start start = start_measuring();

    callback(work, status);
    note((void *)callback, start);
}

int uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb callback)
{
    static int (*next)(uv_loop_t *, uv_work_t *, uv_work_cb, uv_after_work_cb);

    next =
        next ? next : (int (*)(uv_loop_t *, uv_work_t *, uv_work_cb, uv_after_work_cb))real("uv_queue_work");
    return next(loop, work, run, keep_callback(work, WORK, (void *)callback) ? on_after_work : callback);
}

/* ---- the file ---- */

static void write_functions(FILE *file)
{
    Dl_info info;

    for (int i = 0; i < FUNCTIONS_MAX && functions[i].callback; i++) {
        const struct function *f = &functions[i];
        uintptr_t base = dladdr(f->callback, &info) ? (uintptr_t)info.dli_fbase : 0;
        (void)fprintf(file, "callback %lx %lu %lu %lu\n", (unsigned long)((uintptr_t)f->callback - base),
                      f->count, f->max_cpu_ns, f->max_wall_ns);
    }
    for (unsigned i = 0; i < BUCKETS; i++)
        if (buckets[i])
            (void)fprintf(file, "cpu %u %lu\n", i, buckets[i]);
}

__attribute__((destructor)) static void write_measurements(void)
{
    const char *folder = getenv("MEASURED_LOOP");
    char path[4096], program[4096];

    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (!folder || !functions[0].callback || n < 0)
        return;
    program[n] = '\0';
    (void)snprintf(path, sizeof(path), "%s/%d.%lx", folder, getpid(), read_clock(CLOCK_MONOTONIC));
    FILE *file = fopen(path, "we");
    if (!file)
        return;
    (void)fprintf(file, "program %s\n", program);
    write_functions(file);
    (void)fclose(file);
}
