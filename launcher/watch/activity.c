#include "launcher/watch/activity.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

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

    switch (f->call) {
    case ACTIVITY_CALL_WAITS:
        return child_runs ? ACTIVITY_CHILD : ACTIVITY_WAITS;
    case ACTIVITY_CALL_READS:
        return judge_transfer(f->target, false, child_runs);
    case ACTIVITY_CALL_WRITES:
        return judge_transfer(f->target, true, child_runs);
    case ACTIVITY_CALL_SLEEPS:
        return ACTIVITY_SLEEPS;
    case ACTIVITY_CALL_REAPS:
        return ACTIVITY_CHILD;
    case ACTIVITY_CALL_OPENS:
        return ACTIVITY_NO_INPUT;
    case ACTIVITY_CALL_RUNS:
        return ACTIVITY_COMPUTES;
    case ACTIVITY_CALL_OTHER:
        break;
    }
    return ACTIVITY_UNKNOWN;
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
    if (f->child_compiles)
        return ACTIVITY_COMPILES;
    if (f->elapsed_ns && (double)bytes * 1e9 >= (double)ACTIVITY_BYTES_MIN * (double)f->elapsed_ns)
        return f->read >= f->written ? ACTIVITY_READS : ACTIVITY_WRITES;
    if (is_share(f->ran_ns, f->elapsed_ns))
        return ACTIVITY_COMPUTES;
    return judge_call(f);
}

bool activity_waits_now(const struct activity_facts *f)
{
    bool is_transfer = f->call == ACTIVITY_CALL_READS || f->call == ACTIVITY_CALL_WRITES;
    uint64_t threads_ns = f->ran_ns > f->main_ran_ns ? f->ran_ns - f->main_ran_ns : 0;

    if (f->has_ended || f->state != 'S' || f->child_runs ||
        threads_ns > f->elapsed_ns / ACTIVITY_THREADS_SHARE)
        return false;
    return f->call == ACTIVITY_CALL_WAITS || (is_transfer && f->target == ACTIVITY_TARGET_SOCKET);
}

/* ---- words ---- */

const char *activity_name(enum activity activity)
{
    static const char *const names[ACTIVITY_COUNT] = {
        "unknown",  "waits",     "computes", "compiles", "reads",   "writes", "sleeps",
        "no_input", "full_pipe", "child",    "stopped",  "blocked", "ended",
    };

    return activity < ACTIVITY_COUNT ? names[activity] : names[ACTIVITY_UNKNOWN];
}

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

static void put_activity(const struct activity_words *w, char *out, size_t size)
{
    static const char *const plain[ACTIVITY_COUNT] = {
        [ACTIVITY_UNKNOWN] = "is in a system call",
        [ACTIVITY_WAITS] = "waits for a lock or a peer",
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

/* A worker may give a file or a process any name. */
void activity_text(const struct activity_words *w, char *out, size_t size)
{
    put_activity(w, out, size);
    text_clean(out);
}

void activity_add_place(char *text, size_t size, const char *place)
{
    static const char in[] = ", in ";
    char *former = strstr(text, in);
    size_t n = former ? (size_t)(former - text) : strlen(text);

    (void)snprintf(text + n, size - n, "%s%s", in, place); /* may be cut */
}
