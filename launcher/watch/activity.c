#include "launcher/watch/activity.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/err.h"

/* ---- system calls ---- */

enum call_kind { CALL_OTHER, CALL_WAITS, CALL_READS, CALL_WRITES, CALL_SLEEPS, CALL_REAPS, CALL_OPENS };

static const struct {
    int number;
    enum call_kind kind;
} calls[] = {
    {SYS_futex, CALL_WAITS},      {SYS_epoll_pwait, CALL_WAITS},
    {SYS_ppoll, CALL_WAITS},      {SYS_pselect6, CALL_WAITS},
    {SYS_connect, CALL_WAITS},    {SYS_accept4, CALL_WAITS},
    {SYS_accept, CALL_WAITS},
#ifdef SYS_poll
    {SYS_poll, CALL_WAITS},       {SYS_select, CALL_WAITS},
    {SYS_epoll_wait, CALL_WAITS},
#endif
    {SYS_read, CALL_READS},       {SYS_readv, CALL_READS},
    {SYS_pread64, CALL_READS},    {SYS_recvfrom, CALL_READS},
    {SYS_recvmsg, CALL_READS},    {SYS_write, CALL_WRITES},
    {SYS_writev, CALL_WRITES},    {SYS_pwrite64, CALL_WRITES},
    {SYS_sendto, CALL_WRITES},    {SYS_sendmsg, CALL_WRITES},
    {SYS_fsync, CALL_WRITES},     {SYS_fdatasync, CALL_WRITES},
    {SYS_nanosleep, CALL_SLEEPS}, {SYS_clock_nanosleep, CALL_SLEEPS},
    {SYS_wait4, CALL_REAPS},      {SYS_waitid, CALL_REAPS},
    {SYS_openat, CALL_OPENS}, /* of a FIFO that no other process has opened */
};

static enum call_kind kind_of_call(int number)
{
    for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
        if (calls[i].number == number)
            return calls[i].kind;
    return CALL_OTHER;
}

bool activity_call_uses_descriptor(int call)
{
    enum call_kind kind = kind_of_call(call);

    return kind == CALL_READS || kind == CALL_WRITES;
}

bool activity_is_compiler(const char *name)
{
    static const char *const names[] = {"cc1",  "cc1plus", "g++",   "gcc", "clang", "clang++",
                                        "nvcc", "cicc",    "ptxas", "ld",  "as"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* ---- the decision ---- */

static bool is_share(uint64_t ran_ns, uint64_t elapsed_ns)
{
    return ran_ns > 0 && ran_ns >= elapsed_ns / ACTIVITY_BUSY_SHARE;
}

static enum activity judge_transfer(enum activity_target target, bool writes, bool child_runs)
{
    if (target == ACTIVITY_TARGET_SOCKET)
        return ACTIVITY_WAITS;
    if (target == ACTIVITY_TARGET_PIPE && child_runs)
        return ACTIVITY_CHILD;
    if (target == ACTIVITY_TARGET_PIPE)
        return writes ? ACTIVITY_FULL_PIPE : ACTIVITY_NO_INPUT;
    return writes ? ACTIVITY_WRITES : ACTIVITY_READS;
}

static enum activity judge_call(const struct activity_facts *f)
{
    bool child_runs = is_share(f->child_ran_ns, f->elapsed_ns);

    switch (kind_of_call(f->call)) {
    case CALL_WAITS:
        return child_runs ? ACTIVITY_CHILD : ACTIVITY_WAITS;
    case CALL_READS:
        return judge_transfer(f->target, false, child_runs);
    case CALL_WRITES:
        return judge_transfer(f->target, true, child_runs);
    case CALL_SLEEPS:
        return ACTIVITY_SLEEPS;
    case CALL_REAPS:
        return ACTIVITY_CHILD;
    case CALL_OPENS:
        return ACTIVITY_NO_INPUT;
    case CALL_OTHER:
        break;
    }
    return f->call == -1 ? ACTIVITY_COMPUTES : ACTIVITY_UNKNOWN;
}

enum activity activity_judge(const struct activity_facts *f)
{
    uint64_t bytes = f->read > f->written ? f->read : f->written;

    if (f->has_ended)
        return ACTIVITY_ENDED;
    if (f->state == 'T' || f->state == 't')
        return ACTIVITY_STOPPED;
    if (f->state == 'D')
        return ACTIVITY_BLOCKED;
    if (f->elapsed_ns && (double)bytes * 1e9 >= (double)ACTIVITY_BYTES_MIN * (double)f->elapsed_ns)
        return f->read >= f->written ? ACTIVITY_READS : ACTIVITY_WRITES;
    if (f->child_compiles)
        return ACTIVITY_COMPILES;
    if (is_share(f->ran_ns, f->elapsed_ns))
        return ACTIVITY_COMPUTES;
    return judge_call(f);
}

/* ---- words ---- */

static void put_rate(const struct activity_words *w, const char *verb, char *out, size_t size)
{
    const char *path = w->path ? w->path : "a file";

    (void)snprintf(out, size, "%s %.100s at %.1f MB/s", verb, path, (double)w->bytes_per_s / 1e6); /* fits */
}

static void put_child(const struct activity_words *w, const char *verb, char *out, size_t size)
{
    if (w->child)
        (void)snprintf(out, size, "%s its process %lld (%.32s)", verb, (long long)w->child,
                       w->name ? w->name : "?");
    else
        (void)snprintf(out, size, "%s a process of its own", verb);
}

void activity_text(const struct activity_words *w, char *out, size_t size)
{
    static const char *const plain[ACTIVITY_COUNT] = {
        [ACTIVITY_UNKNOWN] = "is in a system call",
        [ACTIVITY_WAITS] = "waits for other ranks",
        [ACTIVITY_COMPUTES] = "computes (no tool for its stack)",
        [ACTIVITY_SLEEPS] = "sleeps",
        [ACTIVITY_STOPPED] = "is stopped by a signal",
        [ACTIVITY_ENDED] = "has ended with success",
    };

    switch (w->activity) {
    case ACTIVITY_READS:
        put_rate(w, "reads", out, size);
        return;
    case ACTIVITY_WRITES:
        put_rate(w, "writes", out, size);
        return;
    case ACTIVITY_COMPILES:
        put_child(w, "compiles in", out, size);
        return;
    case ACTIVITY_CHILD:
        put_child(w, "waits for", out, size);
        return;
    case ACTIVITY_NO_INPUT:
        (void)snprintf(out, size, "waits for input of %.100s", w->path ? w->path : "a pipe");
        return;
    case ACTIVITY_FULL_PIPE:
        (void)snprintf(out, size, "cannot write to %.100s, which is full", w->path ? w->path : "a pipe");
        return;
    case ACTIVITY_BLOCKED:
        (void)snprintf(out, size, "is blocked in the kernel (state D)%s%.64s",
                       w->place && strcmp(w->place, "0") != 0 ? " at " : "",
                       w->place && strcmp(w->place, "0") != 0 ? w->place : "");
        return;
    default:
        (void)snprintf(out, size, "%s", w->activity < ACTIVITY_COUNT ? plain[w->activity] : "?");
    }
}
